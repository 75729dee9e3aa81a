"""Tests of scripts/circles.py on small crates and packages."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "circles.py"
spec = importlib.util.spec_from_file_location("rivulet_circles", SCRIPT)
assert spec is not None and spec.loader is not None
circles = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = circles
spec.loader.exec_module(circles)

CRATE = "host/core/src"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository without sources and with an empty table."""
    monkeypatch.setattr(circles, "ROOT", tmp_path)
    (tmp_path / "scripts").mkdir()
    circles.write_table(tmp_path, [])
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    return tmp_path


def write(root: Path, folder: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(root: Path) -> list[list[str]]:
    groups = (group for graph in circles.graphs(root) for group in circles.circles(graph))
    return [[path.name for path in group] for group in groups]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["circles.py", *arguments])
    return int(circles.main())


@pytest.mark.parametrize(
    "b",
    [
        "use crate::a::A;",
        "use super::a;\nfn f(_: a::A) {}",
        "use super::{c::C, a::{self as x, Other}};",
        "fn f() -> u8 { crate::a::f(1) }",
        "mod inner { use super::super::a::A; }",
        "use crate::A;",
        "use super::*;\nfn f(_: A) {}",
        "fn f() { let _ = '\"'; crate::a::f(\"it's\") }",
        "#[cfg(test)]\nmod tests { use super::*; }\nuse crate::a::A;",
    ],
)
def test_two_files_that_use_each_other_are_a_circle(tree: Path, b: str) -> None:
    library = "mod a;\nmod b;\npub use a::A;\n"
    write(tree, CRATE, {"lib.rs": library, "a.rs": "use crate::b::B;\npub struct A;", "b.rs": b})
    assert found(tree) == [["a.rs", "b.rs"]]


@pytest.mark.parametrize(
    "b",
    [
        "",
        "// crate::a::A",
        '/* use crate::a::A; */ fn f() { g("crate::a::A") }',
        "#[cfg(test)]\nmod tests { use crate::a::A; fn f() {} }",
        "#[cfg(test)]\nuse crate::{a::A};\n",
        "fn f(a: &T) { a.f() }",
    ],
)
def test_comments_strings_and_tests_are_no_use(tree: Path, b: str) -> None:
    write(tree, CRATE, {"lib.rs": "mod a;\nmod b;", "a.rs": "use crate::b::B;\npub struct A;", "b.rs": b})
    assert found(tree) == []


def test_longer_circle_has_only_its_own_files(tree: Path) -> None:
    files = {"lib.rs": "mod a; mod b; mod c; mod d;", "a.rs": "use crate::b::B;", "b.rs": "use crate::c::C;"}
    write(tree, CRATE, {**files, "c.rs": "use crate::{a::A, d::D};", "d.rs": "pub struct D;"})
    assert found(tree) == [["a.rs", "b.rs", "c.rs"]]


def test_parent_that_passes_on_a_name_does_not_use_it(tree: Path) -> None:
    parent = "mod child;\npub use child::Child;\npub struct Parent;\n"
    child = {"parent/child.rs": "use super::Parent;\npub struct Child;"}
    write(tree, CRATE, {"lib.rs": "mod parent;", "parent.rs": parent, **child})
    assert found(tree) == []
    write(tree, CRATE, {"parent.rs": parent + "pub fn f(_: Child) {}"})
    assert found(tree) == [["child.rs", "parent.rs"]]


def test_siblings_use_each_other_through_their_parent(tree: Path) -> None:
    write(tree, CRATE, {"lib.rs": "mod up;", "up/mod.rs": "mod a;\nmod b;\nuse a::A;\npub(crate) use b::B as Name;"})
    write(tree, CRATE, {"up/a.rs": "use super::Name;\npub struct A;", "up/b.rs": "use super::A;\npub struct B;"})
    assert found(tree) == [["a.rs", "b.rs"]]


def test_each_program_of_a_crate_is_searched(tree: Path) -> None:
    write(tree, CRATE, {"bin/tool/main.rs": "mod a; mod b;", "bin/tool/a.rs": "use crate::b::B;"})
    write(tree, CRATE, {"bin/tool/b.rs": "use crate::a::A;"})
    assert found(tree) == [["a.rs", "b.rs"]]


@pytest.mark.parametrize(
    "b",
    [
        "from package.a import A",
        "from . import a",
        "from .a import A",
        "import package.a",
        "from package import A",
        "def f():\n    from package import a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.a import A",
    ],
)
def test_python_files_that_import_each_other_are_a_circle(tree: Path, b: str) -> None:
    package = {"__init__.py": "from package.a import A\n", "a.py": "from package.b import B\n", "b.py": f"{b}\n"}
    write(tree, "controller/package", package)
    assert found(tree) == [["a.py", "b.py"]]


def test_package_that_passes_on_names_is_no_circle(tree: Path) -> None:
    package = {"__init__.py": "from package.a import A\n", "a.py": "import package.b\n", "b.py": "import json\n"}
    write(tree, "controller/package", package)
    assert found(tree) == []


def test_circle_in_the_table_may_only_get_smaller(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tree, CRATE, {"lib.rs": "mod a; mod b; mod c;", "a.rs": "use crate::b::B;", "b.rs": "use crate::a::A;"})
    write(tree, CRATE, {"c.rs": ""})
    assert run(monkeypatch) == 1
    assert f"these files use each other: {CRATE}/a.rs {CRATE}/b.rs." in capsys.readouterr().err
    assert run(monkeypatch, "--update") == 1
    assert circles.read_table(tree) == []
    circles.write_table(tree, [[f"{CRATE}/{name}.rs" for name in "abc"]])
    assert run(monkeypatch, "--update") == 0
    assert circles.read_table(tree) == [{f"{CRATE}/a.rs", f"{CRATE}/b.rs"}]
    write(tree, CRATE, {"b.rs": "use crate::c::C;", "c.rs": "use crate::a::A;"})
    assert run(monkeypatch) == 1
    write(tree, CRATE, {"b.rs": ""})
    assert run(monkeypatch, "--update") == 0
    assert circles.read_table(tree) == []

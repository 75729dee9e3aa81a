"""Tests of scripts/links.py on a small repository, and its run on this one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "links.py"
spec = importlib.util.spec_from_file_location("rivulet_links", SCRIPT)
assert spec is not None and spec.loader is not None
links = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = links
spec.loader.exec_module(links)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with two pages and a picture."""
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.md").write_text("# One\n\n## A `part` of it, *here*\n\n## Twice\n\n## Twice\n")
    (tmp_path / "docs" / "two (b).md").write_text("# Two\n")
    (tmp_path / "docs" / "picture.svg").write_text("<svg/>\n")
    return tmp_path


@pytest.mark.parametrize(
    "link",
    [
        "[a](docs/one.md)",
        "[a](docs/one.md#a-part-of-it-here)",
        "[a](docs/one.md#twice-1) and [b](#front)",
        "![a](docs/picture.svg) [a](<docs/two%20(b).md>)",
        "[a]: docs/one.md",
        '<img src="docs/picture.svg">',
        "[a](https://example.org/none.md#none)",
        "`[a](none.md)`",
        "```\n[a](none.md)\n```",
        "````\n```\n[a](none.md)\n````",
    ],
)
def test_link_that_leads_somewhere_passes(tree: Path, link: str) -> None:
    (tree / "README.md").write_text(f"# Front\n\n{link}\n")
    assert links.mistakes(tree) == []


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ("[a](docs/none.md)", "no such file"),
        ("[a](docs)", "no such file (a folder is none"),
        ("[a](/docs/one.md)", "not in the repository"),
        ("[a](../elsewhere.md)", "not in the repository"),
        ("[a](docs/one.md#none)", "no heading has this anchor"),
        ("[a](#none)", "no heading has this anchor"),
        ("[a](docs/one.md#twice-2)", "no heading has this anchor"),
        ("![a](docs/none.svg)", "no such file"),
        ("[a]: docs/none.md", "no such file"),
        ('<a href="none.md">', "no such file"),
        ("```\ncode\n```\n[a](none.md)", "no such file"),
    ],
)
def test_link_that_leads_nowhere_is_reported_with_its_line(tree: Path, link: str, wrong: str) -> None:
    text = f"# Front\n\n{link}\n"
    (tree / "README.md").write_text(text)
    (found,) = links.mistakes(tree)
    assert found.startswith(f"README.md:{len(text.splitlines())}: ") and wrong in found


def test_page_that_a_source_names_must_exist(tree: Path) -> None:
    (tree / "a.rs").write_text("// docs/one.md\n")
    assert links.mistakes(tree) == []
    (tree / "a.rs").write_text("// docs/one.md\n// docs/three.md\n")
    assert links.mistakes(tree) == ["a.rs:2: docs/three.md: no such page"]


def test_links_of_this_repository_lead_somewhere() -> None:
    assert links.mistakes(links.ROOT) == []

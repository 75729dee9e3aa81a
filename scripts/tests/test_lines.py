"""Tests of scripts/lines.py on a small repository."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "lines.py"
spec = importlib.util.spec_from_file_location("rivulet_lines", SCRIPT)
assert spec is not None and spec.loader is not None
lines = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = lines
spec.loader.exec_module(lines)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a file of 500 lines and an empty table."""
    monkeypatch.setattr(lines, "ROOT", tmp_path)
    (tmp_path / "scripts").mkdir()
    lines.write_table(tmp_path, {})
    (tmp_path / "short.rs").write_text("//\n" * 500)
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["lines.py", *arguments])
    return int(lines.main())


def test_source_file_above_the_limit_fails(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "page.md").write_text("\n" * 1000)
    assert run(monkeypatch) == 0
    (tree / "long.py").write_text("#\n" * 501)
    assert run(monkeypatch) == 1
    assert "lines: long.py has 501 lines, 500 are allowed" in capsys.readouterr().err
    assert run(monkeypatch, "--update") == 1
    assert lines.read_table(tree) == {}


def test_file_in_the_table_may_only_get_shorter(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "long.py").write_text("#\n" * 600)
    lines.write_table(tree, {"long.py": 600, "short.rs": 700})
    assert run(monkeypatch) == 0
    (tree / "long.py").write_text("#\n" * 550)
    assert run(monkeypatch, "--update") == 0
    assert lines.read_table(tree) == {"long.py": 550}
    (tree / "long.py").write_text("#\n" * 551)
    assert run(monkeypatch, "--update") == 1
    assert lines.read_table(tree) == {"long.py": 550}

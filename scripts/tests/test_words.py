"""Tests of scripts/words.py on a small repository."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "words.py"
spec = importlib.util.spec_from_file_location("rivulet_words", SCRIPT)
assert spec is not None and spec.loader is not None
words = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = words
spec.loader.exec_module(words)
Count = words.Count

CLEAN = "// The replica sends a probe.\n"
RIDDLE = "// Nobody is told.\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A crate with four hits and a name in ten lines of comment, and a clean top folder; the table is empty."""
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "host" / "core").mkdir(parents=True)
    (tmp_path / "host" / "core" / "Cargo.toml").write_text("")
    (tmp_path / "host" / "core" / "lib.rs").write_text(CLEAN * 8 + RIDDLE * 2 + "fn " + "who_died() {}\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("Clean.\n\n```\nnobody counts code\n```\n")
    (tmp_path / "docs" / "tool.py").write_text('"""A tool.\n\nIt runs.\n"""\nTEXT = "who"\n')
    (tmp_path / "scripts").mkdir()
    table(tmp_path, {})
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def table(root: Path, rows: dict[str, object]) -> None:
    words.write_table(root, rows)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["words.py", *arguments])
    return int(words.main())


def test_comments_docstrings_and_pages_count_by_crate_and_folder(repository: Path) -> None:
    found = words.count(repository)
    assert found["host/core"] == Count(lines=10, hits=4, names=1)
    assert found["docs"] == Count(lines=5, hits=0, names=0)


def test_folder_above_the_bars_fails(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 1
    printed = capsys.readouterr().err
    assert "host/core: 4 hits, 400 per 1,000 lines; allowed are 25 per 1,000" in printed
    assert "host/core: 1 names of the list; allowed are 0" in printed


def test_folder_in_the_table_may_not_get_worse(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(repository, {"host/core": Count(10, 4, 1)})
    assert run(monkeypatch) == 0
    # More hits, but fewer for each line.
    with (repository / "host" / "core" / "lib.rs").open("a") as file:
        file.write(CLEAN * 20 + RIDDLE)
    assert run(monkeypatch) == 0
    with (repository / "host" / "core" / "lib.rs").open("a") as file:
        file.write(RIDDLE * 20)
    assert run(monkeypatch) == 1


def test_update_lowers_figures_and_never_raises_them(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(repository, {"host/core": Count(10, 5, 2), "docs": Count(5, 4, 0)})
    assert run(monkeypatch, "--update") == 0
    assert words.read_table(repository) == {"host/core": Count(10, 4, 1)}
    with (repository / "host" / "core" / "lib.rs").open("a") as file:
        file.write(RIDDLE * 5)
    assert run(monkeypatch, "--update") == 1
    assert words.read_table(repository) == {"host/core": Count(10, 4, 1)}

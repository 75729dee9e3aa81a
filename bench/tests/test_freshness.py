"""Tests of the marks of stale sections on the results page."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rivulet_bench import freshness


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, which replaces ours in the module."""
    monkeypatch.setattr(freshness, "REPOSITORY", tmp_path)
    monkeypatch.setattr(freshness, "RESULTS", tmp_path / "bench" / "results")
    monkeypatch.setattr(freshness, "SOURCES", {"cm": ("host/cm",)})
    git(tmp_path, "init", "-q")
    commit(tmp_path, "bench/results/cm.json", "{}")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, name: str, text: str) -> str:
    """Commits a changed file; returns the commit's hash."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    git(folder, "add", name)
    git(folder, "commit", "-q", "-m", name)
    return git(folder, "rev-parse", "HEAD")


def test_change_of_sources_makes_figures_stale(repository: Path) -> None:
    measured = commit(repository, "host/cm/lib.rs", "1")
    data = {"machine": {"commit": measured}}
    assert not freshness.is_stale("cm", data)
    commit(repository, "docs/cm.md", "words")
    assert not freshness.is_stale("cm", data)
    commit(repository, "host/cm/lib.rs", "2")
    assert freshness.is_stale("cm", data)


def test_change_of_bench_makes_figures_stale(repository: Path) -> None:
    data = {"machine": {"commit": commit(repository, "bench/rivulet_bench/cm.py", "RATE = 1")}}
    commit(repository, "bench/rivulet_bench/tls.py", "RATE = 1")
    assert not freshness.is_stale("cm", data)
    commit(repository, "bench/rivulet_bench/cm.py", "RATE = 2")
    assert freshness.is_stale("cm", data)


def test_unrecorded_commit_is_that_of_the_file(repository: Path) -> None:
    assert not freshness.is_stale("cm", {})
    commit(repository, "host/cm/lib.rs", "1")
    assert freshness.is_stale("cm", {})
    commit(repository, "bench/results/cm.json", '{"again": 1}')
    assert not freshness.is_stale("cm", {})


def test_unknown_commit_is_not_judged(repository: Path) -> None:
    commit(repository, "host/cm/lib.rs", "1")
    assert not freshness.is_stale("cm", {"machine": {"commit": "0123456789ab"}})


def test_stale_section_without_mark_is_named(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text("# Results\n\n## One\n\nStale: yes\n\n## Two\n\nfresh\n\n## Three\n\nfresh\n")
    assert freshness.unmarked(page, {"One": True, "Two": True, "Three": False}, "Stale:") == ["Two"]

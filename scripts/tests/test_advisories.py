"""Tests of scripts/advisories.py, which compares lock files with copies of advisory lists."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "advisories.py"
spec = importlib.util.spec_from_file_location("advisories", SCRIPT)
assert spec is not None and spec.loader is not None
advisories = importlib.util.module_from_spec(spec)
spec.loader.exec_module(advisories)


@pytest.mark.parametrize(
    ("version", "requirement", "meets"),
    [
        ("1.2.3", ">= 1.2.3", True),
        ("1.2.2", ">= 1.2.3", False),
        ("1.10.0", "> 1.9", True),
        ("1.2.3-rc.1", ">= 1.2.3", False),
        ("0.2.5", "=0.2.5", True),
        ("0.2.5", "=0.2", True),
        ("0.15.1", "^0.15.0", True),
        ("0.16.0", "^0.15.0", False),
        ("1.9.0", "^1.2", True),
        ("2.0.0", "^1.2", False),
        ("1.2.9", "~1.2.3", True),
        ("1.3.0", "~1.2.3", False),
        ("1.5.0", ">= 1.0, < 1.4", False),
        ("1.3.9", ">= 1.0, < 1.4", True),
        ("7.0.0", "*", True),
    ],
)
def test_requirements_match_as_in_cargo(version: str, requirement: str, meets: bool) -> None:
    assert advisories.satisfies(version, requirement) is meets


@pytest.mark.parametrize(
    ("version", "affected"),
    [("1.0", False), ("1.1", True), ("1.1.9", True), ("1.2", False), ("2.0", True), ("2.5", True), ("2.6", False)],
)
def test_ranges_of_python_packages(version: str, affected: bool) -> None:
    events = [{"introduced": "1.1"}, {"fixed": "1.2"}, {"introduced": "2.0"}, {"last_affected": "2.5"}]
    assert advisories.is_affected(version, {"ranges": [{"type": "ECOSYSTEM", "events": events}]}) is affected


def test_advisories_of_both_lock_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Cargo.lock").write_text(
        '[[package]]\nname = "leaky"\nversion = "1.0.0"\nsource = "registry"\n'
        '[[package]]\nname = "ours"\nversion = "0.1.0"\n'
    )
    (tmp_path / "requirements.lock").write_text("Sharp_Edge==2.0 \\\n    --hash=sha256:00\n")
    (tmp_path / "deny.toml").write_text('[advisories]\nignore = [{ id = "RUSTSEC-2", reason = "of no concern" }]\n')
    crates, vulns = tmp_path / "advisory-db" / "crates" / "leaky", tmp_path / "advisory-database" / "vulns"
    crates.mkdir(parents=True)
    for number, patched in ((1, ">= 1.0.1"), (2, ">= 2.0.0"), (3, ">= 0.9.0")):
        head = f'[advisory]\nid = "RUSTSEC-{number}"\npackage = "leaky"\n[versions]\npatched = ["{patched}"]\n'
        (crates / f"RUSTSEC-{number}.md").write_text(f"```toml\n{head}```\n# It leaks\n")
    (vulns / "sharp-edge").mkdir(parents=True)
    (vulns / "sharp-edge" / "PYSEC-1.yaml").write_text("id: PYSEC-1\naffected:\n- versions: ['2.0']\n")
    monkeypatch.setattr(advisories, "ROOT", tmp_path)
    assert [line.split()[0] for line in advisories.of_crates(tmp_path / "advisory-db")] == ["RUSTSEC-1", "RUSTSEC-2"]
    assert [line.split()[0] for line in advisories.of_packages(tmp_path / "advisory-database")] == ["PYSEC-1"]
    assert advisories.accepted() == {"RUSTSEC-2": "of no concern"}

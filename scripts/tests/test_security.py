"""Tests of scripts/security.py on small pages, and its run on this repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import security

PAGE = """# Security

## Doors

| door | who |
|---|---|
| one | {door} |

## What an attacker can try

| attack | defence |
|---|---|
| two | {attack} |

## Keys

| key | no test is needed here |
|---|---|
| three | nothing |
"""
TESTS = {"first_test", "test_second", "Third"}


def found(door: str, attack: str) -> list[str]:
    return security.problems(PAGE.format(door=door, attack=attack), TESTS)


def test_rows_with_existing_tests_pass() -> None:
    assert found("x (test: `first_test`)", "y (tests: `test_second`, `Third`), z") == []
    assert found("x (test, in `make test-long`: `Third`)", "y (no test: arithmetic)") == []


def test_rows_without_tests_are_reported() -> None:
    assert found("x", "y `first_test`") == [
        "docs/security.md:7: the row names no test: | one | x |",
        "docs/security.md:13: the row names no test: | two | y `first_test` |",
    ]


def test_missing_tests_are_reported() -> None:
    assert found("x (tests: `first_test`, `gone`)", "y (test: `test_second`)") == [
        "docs/security.md:7: there is no test gone"
    ]


def test_page_without_table_is_reported() -> None:
    text = PAGE.format(door="(test: `Third`)", attack="(test: `Third`)").replace("## Doors", "## Windows")
    assert security.problems(text, TESTS) == ['docs/security.md: no table under "Doors"']


def test_only_tests_count_as_tests(tmp_path: Path) -> None:
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    (tmp_path / "a.rs").write_text(
        'fn helper() {}\n#[test]\n#[ignore = "long"]\nfn is_tested() {}\n'
        "    #[test]\n    fn random(value: u32) {}\n#[tokio::test]\nasync fn waits() {}\n"
    )
    (tmp_path / "b.py").write_text("class Packets:\n    pass\n\ndef test_it() -> None: ...\ndef other() -> None: ...\n")
    assert security.test_names(tmp_path) == {"is_tested", "random", "waits", "Packets", "test_it"}


def test_this_repository_passes() -> None:
    assert security.main() == 0

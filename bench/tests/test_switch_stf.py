"""Tests of the counts of p4c's own tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rivulet_bench import results, switch_stf
from rivulet_lab import RackError


def runner(folder: Path, said: dict[str, str]) -> Path:
    """A stand-in for stf-run that prints these lines with and without --interpret."""
    path = folder / "runner"
    path.write_text(
        "#!/bin/sh\n"
        f"if [ \"$1\" = --interpret ]; then printf '{said['interpreted']}'; else printf '{said['machine code']}'; fi\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("arith-bmv2", "table-bmv2"):
        (tmp_path / f"{name}.json").write_text("{}")
        (tmp_path / f"{name}.stf").write_text("")
    (tmp_path / "alone.stf").write_text("")
    return tmp_path


PASSED = "2 run, 2 passed, 0 failed\\n"
FAILED = "FAILED table-bmv2: port 1: expected 1 packets, got 0 \\n2 run, 1 passed, 1 failed\\n"


def test_both_kinds_run_and_failures_keep_reasons(folder: Path) -> None:
    refused = {"extern-funcs-bmv2": "unknown extern function"}
    (folder / "corpus.json").write_text(json.dumps({"p4c": "1.2.5.16", "compiled": 2, "refused": refused}))
    found = switch_stf.counts(runner(folder, {"machine code": PASSED, "interpreted": FAILED}), folder)
    assert found["p4c"] == "1.2.5.16" and found["date"]
    assert found["machine code"] == {"run": 2, "passed": 2, "failed": 0, "failures": []}
    why = "port 1: expected 1 packets, got 0 "
    assert found["interpreted"] == {
        "run": 2,
        "passed": 1,
        "failed": 1,
        "failures": [{"name": "table-bmv2", "why": why}],
    }
    assert found["not_compiled"] == [{"name": "extern-funcs-bmv2", "why": "unknown extern function"}]
    assert "arith-bmv2" not in found["not_in_folder"] and "arith1-bmv2" in found["not_in_folder"]


@pytest.mark.parametrize(
    "said",
    [
        "",  # it crashed
        "FAILED table-bmv2: x\\n",  # half way
        "3 run, 3 passed, 0 failed\\n",  # more than there are
        "2 run, 1 passed, 1 failed\\n",  # which one?
        "2 run, 1 passed, 0 failed\\n",
    ],
)
def test_inconsistent_counts_are_error(folder: Path, said: str) -> None:
    with pytest.raises(RackError):
        switch_stf.counts(runner(folder, {"machine code": said, "interpreted": PASSED}), folder)


def test_folder_without_tests_is_error(tmp_path: Path) -> None:
    (tmp_path / "alone.stf").write_text("")
    with pytest.raises(RackError, match="has no"):
        switch_stf.counts(Path("/bin/true"), tmp_path)


def test_counts_of_earlier_run_are_carried_over(tmp_path: Path) -> None:
    path = tmp_path / "switch.json"
    assert switch_stf.carried(path) is None
    path.write_text(json.dumps({"stf": {"stated_in": "README", "interpreted": {"run": 2, "passed": 2, "failed": 0}}}))
    assert switch_stf.carried(path) is None
    stf = {"date": "2026-01-01", "p4c": "1.2.5.16"}
    path.write_text(json.dumps({"machine": {"date": "2026-02-02"}, "runs": [1]}))
    switch_stf.replace(path, stf)
    assert json.loads(path.read_text()) == {"machine": {"date": "2026-02-02"}, "runs": [1], "stf": stf}
    assert switch_stf.carried(path) == stf
    with pytest.raises(RackError):
        switch_stf.replace(tmp_path / "none.json", stf)


def test_page_has_counts_date_compiler_and_failures(folder: Path) -> None:
    found = switch_stf.counts(runner(folder, {"machine code": PASSED, "interpreted": FAILED}), folder)
    found |= {"date": "2026-01-01", "p4c": "1.2.5.16"}
    page = results.stf_section(found)
    assert "1.2.5.16" in page and "2026-01-01" in page
    assert "| machine code | 2 | 2 | 0 |" in page and "| interpreted | 2 | 1 | 1 |" in page
    assert "table-bmv2 (port 1: expected 1 packets, got 0)" in page

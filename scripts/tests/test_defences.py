"""Tests of scripts/defences.py: `--check` finds removals that no longer fit the code or its tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "defences.py"
spec = importlib.util.spec_from_file_location("rivulet_defences", SCRIPT)
assert spec is not None and spec.loader is not None
defences = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = defences
spec.loader.exec_module(defences)


@pytest.mark.parametrize(
    ("old", "test", "problem"),
    [
        ("if bad {", "checks_it", ""),
        ("if worse {", "checks_it", "code.rs holds 'if worse {' 0 times, not once"),
        ("if bad {", "checked_it_once", "no test checked_it_once"),
    ],
)
def test_check_finds_missing_text_and_tests(
    old: str, test: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code.rs").write_text("if bad {}")
    removals = {"it": defences.Removal("code.rs", old, "", (test,))}
    args = defences.parser("", removals).parse_args(["--check"])
    code = defences.run(removals, args, tmp_path, lambda _: [], lambda name: name == "checks_it")
    assert code == bool(problem)
    assert (f"it: {problem}" if problem else "1 removals") in capsys.readouterr().out

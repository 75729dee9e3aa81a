"""Tests of scripts/test.py: a part that fails keeps no other part from running, except those that need it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """scripts/test.py with parts that record that they ran."""
    path = Path(__file__).resolve().parents[1] / "test.py"
    spec = importlib.util.spec_from_file_location("rivulet_test_runner", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LOGS", tmp_path)
    return module


def run_parts(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, failing: set[str], *parts: str
) -> tuple[int, list[str]]:
    """The exit code, and the parts that ran, when the parts `failing` fail."""
    ran = []

    def part(name: str) -> object:
        def work(run: object) -> None:
            ran.append(name)
            if name in failing:
                raise runner.PartFailed("on purpose")

        return work

    monkeypatch.setattr(runner, "PARTS", {name: part(name) for name in runner.PARTS})
    monkeypatch.setattr(runner, "BESIDE", ())
    monkeypatch.setattr(sys, "argv", ["test.py", *parts])
    return runner.main(), ran


def test_failed_rust_tests_do_not_stop_racks(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran = run_parts(runner, monkeypatch, {"check", "rust"}, "setup", "check", "build", "rust", "racks")
    assert (code, ran) == (1, ["setup", "check", "build", "rust", "racks"])


def test_failed_build_stops_what_runs_binaries(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, ran = run_parts(runner, monkeypatch, {"build"}, "setup", "build", "p4", "rust", "racks")
    assert (code, ran) == (1, ["setup", "build", "p4"])
    assert "rust did not run: it needs build, which failed" in capsys.readouterr().out


def test_failed_setup_stops_all(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    code, ran = run_parts(runner, monkeypatch, {"setup"}, "setup", "check", "build", "rust")
    assert (code, ran) == (1, ["setup"])


def test_all_parts_pass(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_parts(runner, monkeypatch, set(), "setup", "build", "rust")[0] == 0

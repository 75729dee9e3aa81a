"""Tests of scripts/test.py and of the failures that ptf-tests/run.py prints."""

from __future__ import annotations

import importlib.util
import io
import sys
import unittest
from pathlib import Path
from types import ModuleType

import pytest


def load(name: str, path: str) -> ModuleType:
    """A program of the repository as a module of this name."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).resolve().parents[2] / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """scripts/test.py, with its logs in a temporary folder."""
    module = load("rivulet_test_runner", "scripts/test.py")
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


def test_failed_build_stops_parts_that_run_binaries(
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


def test_failed_packet_test_keeps_its_message(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "t01_a.Good ... ok\n",
        "t01_a.Bad ... FAIL\n",
        "Ran 2 tests in 1.0s\n",
        "FAILED t01_a.Bad: expected a frame, none came\n",
    ]
    monkeypatch.setattr(runner, "lines_of", lambda command: lines)
    run = runner.Run()
    runner.ptf(run, "embedded")
    found = [(outcome.name, outcome.how, outcome.why) for outcome in run.outcomes]
    assert found == [
        ("ptf embedded t01_a.Good", "passed", ""),
        ("ptf embedded t01_a.Bad", "failed", "expected a frame, none came"),
    ]


def test_messages_of_failed_packet_tests_are_found() -> None:
    class Packets(unittest.TestCase):
        def test_fails(self) -> None:
            self.fail("the frame differs\n\nexpected 00\ncame     01")

        def test_raises(self) -> None:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise ValueError("second: no such port") from error

        def test_passes(self) -> None:
            pass

    output = io.StringIO()
    unittest.TextTestRunner(output, verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Packets))
    found = load("rivulet_ptf_run", "ptf-tests/run.py").failures(output.getvalue().splitlines(keepends=True))
    assert [(name.split()[0], message) for name, message in found] == [
        ("test_raises", "ValueError: second: no such port"),
        ("test_fails", "AssertionError: the frame differs\n\nexpected 00\ncame     01"),
    ]

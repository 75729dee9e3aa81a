"""Tests of what `make demo` chooses, computes and draws, without a rack."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rivulet_demo.capacity import FULL, Capacity, fit
from rivulet_demo.cpu import CpuMeter
from rivulet_demo.curve import curve, marks
from rivulet_demo.fetch import fetch
from rivulet_demo.moments import describe, events, moment
from rivulet_demo.report import AGAIN, RIVULET, STATELESS, TCP
from rivulet_demo.scenario import Parameters
from rivulet_demo.scenarios.failover.page import TERMS, seen, show
from rivulet_demo.services import SwitchView

SLOW = Capacity(
    cores=2,
    trial_mbit=20.0,
    cores_idle=0.3,
    cores_trial=1.3,
    fullest_idle=0.1,
    fullest_trial=0.3,
    fullest_name="rivulet-switch",
    lateness_ms=1.0,
)


def parameters(folder: Path, switch: str = "embedded") -> Parameters:
    return Parameters(100.0, 10.0, 200.0, 3, switch, folder, live=False)


def test_chosen_rate_fills_neither_machine_nor_core() -> None:
    assert SLOW.rate(100.0) == 20.0
    assert SLOW.cores_idle + (SLOW.cores_trial - SLOW.cores_idle) <= FULL * SLOW.cores
    assert replace(SLOW, cores=64).rate(100.0) == 50.0, "one process fills its core before the machine is full"
    assert replace(SLOW, cores=64, fullest_trial=0.1).rate(100.0) == 100.0
    assert replace(SLOW, cores_idle=1.9, cores_trial=2.0).rate(100.0) == 5.0, "the lowest rate where nothing fits"


def test_bound_and_size_follow_measurement(tmp_path: Path) -> None:
    values, words = fit(parameters(tmp_path), replace(SLOW, lateness_ms=29.0), size_given=False)
    assert (values.rate_mbit, values.liveness_ms, values.size_mb) == (20.0, 50.0, 40.0)
    assert values.spec().heartbeat_ms == 5.0
    assert "20 Mb/s a client, at which it fills no core" in words and "every 5 ms" in words
    _, words = fit(parameters(tmp_path), replace(SLOW, cores_idle=1.9, cores_trial=2.0), size_given=False)
    assert "5 Mb/s a client, the lowest rate, although it may fill the cores" in words
    assert fit(parameters(tmp_path), SLOW, size_given=True)[0].size_mb == 200.0
    assert replace(SLOW, excluded=1).bound_ms(20.0) == 50.0, "live replicas were excluded in the trial"
    assert replace(SLOW, excluded=1, lateness_ms=500.0).bound_ms(20.0) == 200.0
    bmv2, _ = fit(parameters(tmp_path, "bmv2"), replace(SLOW, trial_mbit=5.0), size_given=False)
    assert (bmv2.rate_mbit, bmv2.liveness_ms) == (5.0, 200.0)


def test_cpu_meter_counts_own_process() -> None:
    meter = CpuMeter()
    while sum(range(10_000)) and meter.cores()[0] == 0.0:
        pass
    cores, fullest, _ = meter.cores()
    assert 0.0 < fullest <= cores


def test_curl_is_not_started_again_with_once(tmp_path: Path) -> None:
    fake = tmp_path / "run"
    fake.write_text(f"#!{sys.executable}\nimport sys\nsys.stdout.write('0123')\nsys.exit(18)\n")
    fake.chmod(0o755)
    result = fetch("http://none.invalid/", 10, [str(fake)], None, 20.0, once=True)
    assert (result["connections_opened"], result["bytes"], result["complete"]) == (1, 4, False)
    failures = result["failures"]
    assert isinstance(failures, list) and [f["exit"] for f in failures] == [18]


def test_curve_scales_and_shows_every_value() -> None:
    assert curve([0.0, 0.1, 5.0, 10.0, 20.0], 10.0, 9) == " ▁▄██"
    assert curve([1.0, 2.0, 10.0], 10.0, 1) == "█"
    assert marks([(2, "✗"), (4, "↑"), (90, "✗")], 0, 6) == "  ✗ ↑"


def view(at: float, heartbeats: int, packets: int, excluded: int, returned: int = 0) -> SwitchView:
    return SwitchView(
        at,
        {"r1": 500, "r2": packets, "r3": 500},
        {"r1": 0, "r2": 0, "r3": excluded},
        {"r1": 0, "r2": 0, "r3": returned},
        {"r1": 9, "r2": 9, "r3": heartbeats},
        {},
    )


VIEWS = [view(9.9, 1, 1, 0), view(10.004, 2, 1, 0), view(10.022, 2, 1, 1), view(10.027, 2, 40, 1)]
RIVULET_SAMPLES = [(9.85, 1000), (9.95, 2000), (10.001, 3000), (10.061, 9000), (10.1, 9500)]
TCP_SAMPLES = [(9.85, 1000), (10.0, 2000)]


def killed() -> dict[str, Any]:
    samples = {RIVULET: RIVULET_SAMPLES, STATELESS: RIVULET_SAMPLES, TCP: TCP_SAMPLES, AGAIN: RIVULET_SAMPLES}
    return moment((10.0, "kill", "r3"), VIEWS, samples, {TCP: (10.02, 18)})


def test_moment_of_kill_has_events_of_switch_and_stalls() -> None:
    one = killed()
    assert one["switch"] == {"last_heartbeat_ms": 4.0, "exclusion_ms": 22.0, "next_ms": 27.0, "next": "r2"}
    assert events(one) == [(4.0, "last heartbeat"), (22.0, "excluded"), (27.0, "packets to r2")]
    assert one["clients"][RIVULET]["stall_ms"] == 60.0
    assert one["clients"][RIVULET]["bytes"][0] == [-50.0, 1000], "counted from the left edge"
    assert one["clients"][RIVULET]["exit"] is None and one["clients"][TCP]["exit"] == 18
    assert describe(one, 0.0).startswith("kill -9 of r3 at 10.0 s; the switch: last heartbeat 4 ms after, excluded 22")


def test_moment_of_return_has_readmission_and_first_packets() -> None:
    def of(at: float, beats: int, packets: int, back: int) -> SwitchView:
        one = view(at, beats, 1, 1, back)
        return replace(one, packets={**one.packets, "r3": packets})

    one = moment((10.0, "return", "r3"), [of(9.95, 2, 7, 0), of(10.2, 3, 7, 1), of(10.21, 4, 9, 1)], {}, {})
    assert events(one) == [
        (-200.0, "process started"),
        (0.0, "first heartbeat"),
        (0.0, "readmitted"),
        (10.0, "packets to r3"),
    ]
    assert one["at"] == pytest.approx(10.2)


def test_moment_without_readings_has_no_events() -> None:
    assert events(moment((10.0, "kill", "r3"), [], {}, {})) == []
    assert events(moment((10.0, "return", "r3"), VIEWS[:1], {}, {})) == []


def report() -> dict[str, Any]:
    def client(complete: bool, connections: int, samples: list[tuple[float, int]]) -> dict[str, Any]:
        return {
            "bytes": samples[-1][1],
            "complete": complete,
            "sha256_ok": complete,
            "connections_opened": connections,
            "resets_seen": connections - complete,
            "failures": [{"exit": 18, "at": 10.02}] * (connections - complete),
            "goodput_mbps": 1.0,
            "longest_gap_ms": 60.0,
            "kills": [{"stall_ms": 60.0}],
            "samples": samples,
        }

    return {
        "scenario": "failover",
        "parameters": {"replicas": 3, "bytes": 9500, "rate_mbit": 10.0},
        "marks": [{"at_s": 10.0, "what": "kill", "replica": "r3"}],
        "moments": [killed()],
        "excluded_alive": [],
        "clients": {
            RIVULET: client(True, 1, RIVULET_SAMPLES),
            STATELESS: client(True, 1, RIVULET_SAMPLES),
            TCP: client(False, 1, TCP_SAMPLES),
            AGAIN: client(True, 2, RIVULET_SAMPLES),
        },
    }


def test_sentence_comes_from_measurements() -> None:
    words = seen(report())
    assert "curl under rivulet run kept its one connection and stalled at most 60 ms after a kill" in words
    assert "ended with curl's exit code 18" in words and "it needed 2 connections" in words
    broken = report()
    broken["clients"][STATELESS]["connections_opened"] = 2
    assert "plain curl on stateless TCP did NOT keep its connection" in seen(broken)
    early = report()
    early["clients"][TCP]["failures"] = [{"exit": 56, "at": 9.5}]
    assert "ended BEFORE the first kill with curl's exit code 56" in seen(early)
    whole = report()
    whole["clients"][TCP] |= {"complete": True, "failures": []}
    assert "plain curl on kernel TCP met no kill" in seen(whole)


@pytest.mark.parametrize("switch", ["embedded", "bmv2"])
def test_page_has_title_once_and_every_picture(tmp_path: Path, switch: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(report(), parameters(tmp_path, switch)) == 0
    name = "failover" if switch == "embedded" else "failover-bmv2"
    page = (tmp_path / f"{name}.html").read_text()
    assert page.count("<h1>") == 1 and page.count("data:image/svg+xml") == 2
    assert all(f"<dt>{term}</dt>" in page for term, _ in TERMS)
    data = json.loads((tmp_path / f"{name}.json").read_text())
    assert data["seen"] == seen(report())
    assert (tmp_path / f"{name}.png").stat().st_size > 0
    broken = report()
    broken["clients"][RIVULET]["connections_opened"] = 2
    assert show(broken, parameters(tmp_path, switch)) == 1

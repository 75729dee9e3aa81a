"""Tests of parts of the demos that need no rack."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rivulet_controller.rack_file import parse
from rivulet_demo.fetch import fetch
from rivulet_demo.figure import throughput
from rivulet_demo.meter import Meter, longest_gap, typical_mbps
from rivulet_demo.plan import failover, rolling
from rivulet_demo.spec import Link, rack
from rivulet_lab import nginx


def test_controller_accepts_rack_configuration() -> None:
    spec = rack(clients=2, replicas=8, policy="round_robin", weights={"r2": 5})
    config = parse(json.dumps(spec.controller_config("unix:/x/s", "unix:/x/a", "127.0.0.1:1", "/x/db")))
    assert [replica.weight for replica in config.replicas][:3] == [1, 5, 1]
    assert config.services[0].policy == "round_robin"
    assert {host.gateway for host in spec.hosts} == {"10.0.1.254", "10.0.2.254"}
    assert len({host.mac for host in spec.hosts}) == len(spec.hosts)


def test_client_links_have_delay_and_bdp_queue() -> None:
    spec = rack(rate_mbit=100, rtt_ms=10)
    assert spec.host("c1").link == Link(100, 5.0, 0.0, 83)
    assert spec.host("r1").link.delay_ms == 0.0
    assert "--rate" in spec.host("c1").link.arguments()


@pytest.mark.parametrize("count", [2, 3, 8])
def test_failover_plan_kills_all_but_one_and_restarts_them(count: int) -> None:
    names = [f"r{n}" for n in range(count)]
    steps = failover(names, 16.0)
    alive = set(names)
    fewest = count
    for step in sorted(steps, key=lambda s: s.at):
        assert 0 < step.at < 16.0
        (alive.discard if step.kill else alive.add)(step.replica)
        fewest = min(fewest, len(alive))
    assert fewest == 1
    assert alive == set(names)


def test_rolling_plan_has_one_replica_down() -> None:
    down: set[str] = set()
    seen: set[str] = set()
    for step in rolling(["r1", "r2", "r3"], 12.0):
        (down.add if step.kill else down.discard)(step.replica)
        seen.add(step.replica)
        assert len(down) <= 1 and step.at < 12.0
    assert seen == {"r1", "r2", "r3"} and not down


def test_longest_gap_overlaps_window() -> None:
    samples = [(0.0, 1), (0.1, 2), (1.1, 3), (1.2, 4), (3.2, 5)]
    assert longest_gap(samples, 0.5, 1.15) == pytest.approx(1.0)
    assert longest_gap(samples, 1.3, 2.0) == pytest.approx(2.0)
    assert longest_gap(samples, 5.0, 6.0) == 0.0
    assert longest_gap([], 0.0, 1.0) == 0.0


def test_typical_goodput_is_median() -> None:
    steady = [(n / 100, 1000 * n) for n in range(101)]
    assert typical_mbps(steady, 0.0, 1.0) == pytest.approx(0.8, rel=0.15)
    assert typical_mbps([s for s in steady if not 0.2 < s[0] < 0.6], 0.0, 1.0) == pytest.approx(0.8, rel=0.15), (
        "a pause"
    )
    slow = [(at, count if at < 0.3 else 30_000) for at, count in steady]
    assert typical_mbps(slow, 0.0, 1.0) == 0.0
    assert typical_mbps([], 0.0, 1.0) == 0.0


def test_throughput_counts_every_byte_once() -> None:
    samples = [(10.05, 1000), (10.15, 3000), (10.95, 4000)]
    times, rates = throughput(samples, 10.0, 11.0, 0.1)
    assert len(times) == len(rates) == 10
    assert sum(rates) * 0.1 * 1e6 / 8 == pytest.approx(4000)
    assert rates[5] == 0.0


def test_meter_records_bytes_gaps_and_digest() -> None:
    meter = Meter()
    for data, now in ((b"a", 1.0), (b"b", 1.0004), (b"c", 1.5)):
        meter.take(data, now)
    assert (meter.count, meter.gap_s, len(meter.samples)) == (3, 0.5, 2)
    assert meter.digest.hexdigest() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_failed_curl_is_resumed_with_range(tmp_path: Path) -> None:
    """A stand-in for curl writes four bytes at a time and fails until all ten have come."""
    fake = tmp_path / "run"
    fake.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "start = int(sys.argv[sys.argv.index('-C') + 1]) if '-C' in sys.argv else 0\n"
        "sys.stdout.write('0123456789'[start:start + 4])\n"
        "sys.exit(0 if start + 4 >= 10 else 56)\n"
    )
    fake.chmod(0o755)
    result = fetch("http://none.invalid/", 10, [str(fake)], None, 20.0)
    assert result["complete"] is True
    assert result["connections_opened"] == 3
    failures = result["failures"]
    assert isinstance(failures, list) and [f["exit"] for f in failures] == [56, 56]
    assert result["sha256"] == "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"


def test_trods_service_has_store_in_rack() -> None:
    spec = rack(clients=1, stores=1, services=(("files", 80, "trods"), ("beside", 81, "kernel")))
    config = parse(json.dumps(spec.controller_config("unix:/x/s", "unix:/x/a", "127.0.0.1:1", "/x/db")))
    files, beside = config.services
    assert files.trods is not None and files.trods.store == ("10.0.3.1:11211",)
    assert beside.plain == "kernel" and beside.trods is None
    assert spec.host("s1").link is None and spec.host("s1").port in config.switches[0].ports


def test_nginx_listens_at_every_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nginx, "program", lambda: "nginx")
    command = nginx.command(tmp_path / "n", tmp_path, "10.9.0.1:80", "[fd00:9::1]:80")
    config = Path(command[command.index("-c") + 1]).read_text()
    assert "listen 10.9.0.1:80; listen [fd00:9::1]:80; root" in config

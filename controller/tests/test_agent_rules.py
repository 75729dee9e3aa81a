"""`check` and agents accept and refuse the same values: rows of values, tested here for `check` and
in host/agent/src/convert.rs for the agent.

A row: verdict, services, pools, heartbeat, liveness and horizon in microseconds, port, addresses of
the first service, switches of other racks. `check` alone also enforces limits of the ToR (two
heartbeats within a liveness, a horizon of at most 4 s), which no row tests.
`RIVULET_WRITE_VECTORS=1` writes the file again.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import NamedTuple

from sample_rack import numbers_of, weights_of

from rivulet_controller.config import Config, ConfigError
from rivulet_controller.rack_file import parse
from rivulet_controller.state import State
from rivulet_controller.updates import update

FOLDER = Path(__file__).resolve().parents[2] / "host" / "agent" / "tests"
FILE = FOLDER / "agent_rules.txt"
TLS_FILE = FOLDER / "tls_rules.txt"

HEARTBEATS = (0, 1, 50, 99, 100, 101, 2_000, 20_000, 9_999_999, 10_000_000, 10_000_001, 15_000_000)
LIVENESSES = (20_000, 600_000_000, 600_000_001, 7_200_000_000)
HORIZONS = (1, 999, 1_000, 100_000, 4_000_000, 3_600_000_001, 86_400_000_000)
PORTS = (0, 1, 80, 65_535, 65_536)
ADDRESSES = (
    "10.9.0.1", "192.0.2.1", "223.255.255.255", "fd09::1", "2001:db8::1", "0.0.0.0", "0.1.2.3", "127.0.0.1",
    "127.255.255.255", "169.254.7.7", "224.0.0.5", "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "::1",
    "::ffff:10.0.0.1", "fe80::1", "febf::1", "ff02::1", "fec0::1", "::2:0:1", "1.0.0.0", "126.255.255.255", "128.0.0.1",
)  # fmt: skip


class Row(NamedTuple):
    """Values of a configuration that agents also check."""

    services: int = 1
    pools: int = 1
    heartbeat: int = 2_000
    liveness: int = 600_000_000
    horizon: int = 4_000_000
    port: int = 80
    addresses: tuple[str, ...] = ("10.9.0.1",)
    racks: int = 0

    def line(self, verdict: bool) -> str:
        """The row in the file."""
        numbers = (self.services, self.pools, self.heartbeat, self.liveness, self.horizon, self.port)
        return " ".join(["yes" if verdict else "no", *map(str, numbers), ",".join(self.addresses), str(self.racks)])

    def description(self) -> str:
        """A configuration with these values."""
        others = "".join(
            f"  - {{name: t{n}, address: '127.0.0.1:{7000 + n}', number: {n + 1}, mac: '02:00:00:01:00:{n:02x}',"
            f" addresses: [10.3.0.{n}], ports: [1],"
            f" hosts: [{{ip: 10.3.1.{n}, mac: '02:00:00:02:00:{n:02x}', port: 1}}],"
            f" routes: [{{prefix: 10.2.0.0/16, via: 10.3.1.{n}}}]}}\n"
            for n in range(1, self.racks + 1)
        )
        first = ", ".join(f"'{address}'" for address in self.addresses)
        services = "".join(
            f"  - {{name: s{n}, addresses: [{first if n == 0 else f'10.8.{n // 250}.{n % 250 + 1}'}],"
            f" port: {self.port}, replicas: [r1], pool: p{n % self.pools}, slots: 1, heartbeat: {self.heartbeat}us,"
            f" liveness: {self.liveness}us}}\n"
            for n in range(self.services)
        )
        return (
            "switches:\n  - {name: t0, address: '127.0.0.1:7000', number: 1, mac: '02:00:00:01:00:00',"
            f" addresses: [10.2.0.254], ports: [1]}}\n{others}"
            "replicas: [{name: r1, switch: t0, port: 1, mac: '02:00:00:00:00:01', ip: 10.2.0.1}]\n"
            f"services:\n{services}keys: {{horizon: {self.horizon}us}}\n"
        )


def rows() -> list[Row]:
    """Each value alone, counts at their limits, and random combinations."""
    found = [Row(heartbeat=us) for us in HEARTBEATS]
    found += [Row(liveness=us) for us in LIVENESSES] + [Row(heartbeat=20_000, liveness=10_000)]
    found += [Row(horizon=us) for us in HORIZONS] + [Row(port=port) for port in PORTS]
    found += [Row(addresses=(address,)) for address in ADDRESSES]
    found += [Row(addresses=tuple(f"10.9.1.{n}" for n in range(1, count + 1))) for count in (15, 16, 17)]
    found += [Row(addresses=("10.9.0.1", "10.9.0.1"))]
    found += [Row(services=count) for count in (2, 17, 1024, 1025)]
    found += [Row(services=200, pools=pools) for pools in (199, 200)] + [Row(services=201, pools=201)]
    found += [Row(services=300, pools=300, heartbeat=3_000), Row(services=301, pools=301, heartbeat=3_000)]
    found += [Row(racks=count) for count in (1, 16, 17)]
    rng = random.Random(39)
    for _ in range(100):
        count = rng.randint(1, 3)
        found.append(
            Row(
                heartbeat=rng.choice(HEARTBEATS), liveness=rng.choice(LIVENESSES[1:3]),
                horizon=rng.choice(HORIZONS[1:5]), port=rng.choice(PORTS[1:4]),
                addresses=tuple(rng.sample(ADDRESSES, count)),
            )
        )  # fmt: skip
    return found


def checked(row: Row) -> Config | None:
    """The configuration, or None if `check` refuses it."""
    try:
        return parse(row.description(), "rack.yaml")
    except ConfigError:
        return None


def test_check_accepts_each_row_as_recorded() -> None:
    lines = []
    for row in rows():
        config = checked(row)
        lines.append(row.line(config is not None))
        if config is None:
            continue
        state = State()
        numbers = numbers_of(config, state)
        services_sent = update(config, "r1", numbers, {}, {}, weights_of(config), frozenset()).services
        assert len(services_sent) == row.services and len({service.pool for service in services_sent}) == row.pools
        first = services_sent[0]
        assert (first.heartbeat_interval_us, first.liveness_bound_us) == (row.heartbeat, row.liveness)
        assert (first.horizon_us, first.port, len(first.tunnels)) == (row.horizon, row.port, row.racks)
        assert len(first.addresses) == len(row.addresses)
    if os.environ.get("RIVULET_WRITE_VECTORS"):
        FILE.write_text("".join(f"{line}\n" for line in lines))
    assert FILE.read_text().splitlines() == lines
    verdicts = [line.split()[0] for line in lines]
    assert verdicts.count("yes") >= 40 and verdicts.count("no") >= 40


class TlsRow(NamedTuple):
    """Values of a service's `tls` that agents also check."""

    plain: str = "trods"
    count: int = 1
    certificate: str = "/etc/site.pem"
    key: str = "/etc/site.key"
    server: str = "127.0.0.1:80"
    client_ca: str = ""

    def line(self, verdict: bool) -> str:
        """The row in the file: columns with tabs between them, %00 for a zero byte."""
        columns = ["yes" if verdict else "no", *map(str, self)]
        return "\t".join(columns).replace("\0", "%00")

    def description(self) -> str:
        """A configuration with these values."""
        quoted = {name: json.dumps(text) for name, text in self._asdict().items()}
        files = f"{{certificate: {quoted['certificate']}, key: {quoted['key']}}}"
        client_ca = f", client_ca: {quoted['client_ca']}" if self.client_ca else ""
        store = ", trods: {store: ['10.2.0.9:11211']}" if self.plain == "trods" else ""
        return (
            Row()
            .description()
            .replace(
                "replicas: [r1], pool",
                f"replicas: [r1], plain: {self.plain}{store}, tls: {{certificates: [{', '.join([files] * self.count)}],"
                f" server: {quoted['server']}{client_ca}}}, pool",
            )
        )


SERVERS = (
    "127.0.0.1:80", "127.255.0.9:65535", "[::1]:8080", "10.2.0.1:80", "[fd00::1]:80", "127.0.0.1:0", "127.0.0.1:65536",
    "127.0.0.1", "::1:80", "localhost:80", "0.0.0.0:80", "[::]:80", "224.0.0.1:80", "169.254.1.1:80", "[fe80::1]:80",
    "[::ffff:127.0.0.1]:80", "10.9.0.1:80", "10.9.0.1:81", "", ":80", "[127.0.0.1]:80", "127.0.0.1:http",
    "127.0.0.1:-1",
)  # fmt: skip
FILES = (
    "/a", "/a b.pem", "/\u00e4.pem", "/" + "x" * 4094, "/" + "x" * 4095, "/" + "\u00e4" * 2047, "/" + "\u00e4" * 2048,
    "a.pem", "./a.pem", "~/a.pem", "/a\0b", "\0", "//a", "/",
)  # fmt: skip
SHORT = [path for path in FILES if len(path) < 100]


def tls_rows() -> list[TlsRow]:
    """Each value alone, and random combinations."""
    found = [TlsRow(plain=plain) for plain in ("none", "kernel", "stateless", "trods")]
    found += [TlsRow(count=count) for count in (0, 1, 64, 65)] + [TlsRow(server=server) for server in SERVERS]
    found += [TlsRow(certificate=path) for path in ("", *FILES)] + [TlsRow(key=path) for path in ("", *SHORT)]
    found += [TlsRow(client_ca=path) for path in SHORT]
    rng = random.Random(42)
    for _ in range(30):
        good = rng.choice(FILES[:3]), rng.choice(FILES[:3])
        found.append(TlsRow(rng.choice(("kernel", "trods")), rng.randint(1, 3), *good, rng.choice(SERVERS[:8])))
    return found


def test_check_accepts_each_row_of_tls_as_recorded() -> None:
    lines = []
    for row in tls_rows():
        try:
            config = parse(row.description(), "rack.yaml")
        except ConfigError:
            lines.append(row.line(False))
            continue
        lines.append(row.line(True))
        state = State()
        sent = update(config, "r1", numbers_of(config, state), {}, {}, weights_of(config), frozenset()).services[0].tls
        assert (sent.server, sent.client_ca, len(sent.certificates)) == (row.server, row.client_ca, row.count)
        assert (sent.certificates[0].certificate, sent.certificates[0].key) == (row.certificate, row.key)
    if os.environ.get("RIVULET_WRITE_VECTORS"):
        TLS_FILE.write_text("".join(f"{line}\n" for line in lines))
    assert TLS_FILE.read_text().splitlines() == lines
    verdicts = [line.split()[0] for line in lines]
    assert verdicts.count("yes") >= 30 and verdicts.count("no") >= 30

"""Shared parts of the scenarios: parameters, a running rack with its services, clients, live view."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rivulet_lab import REPOSITORY, Process, RackError, binary, prompt

from .curve import curve, marks
from .rack import Rack, running_rack
from .services import Replicas, Watch, make_file, ping_ms, start_controller, url, wait_ready
from .spec import RackSpec, rack

console = Console(highlight=False)

MEGA = 1_000_000
CELL_S = 0.3
"""Seconds that a character of the live curves shows."""
OVERLOAD_S = 30.0
"""Seconds in which the links must show their delay on a busy machine."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Settings of the command line."""

    rate_mbit: float
    rtt_ms: float
    size_mb: float
    replicas: int
    switch: str
    out: Path
    live: bool
    checks: str = "tor"
    bound_ms: float | None = None
    """The exclusion bound, if it was measured (`capacity`)."""

    @property
    def size(self) -> int:
        """Size of the fetched file in bytes."""
        return round(self.size_mb * MEGA)

    @property
    def liveness_ms(self) -> float:
        """The exclusion bound; BMv2 is ten times slower than the embedded switch (docs/dataplane.md)."""
        if self.bound_ms is not None:
            return self.bound_ms
        return 200.0 if self.switch == "bmv2" else 20.0

    def spec(self, **more: Any) -> RackSpec:
        """The rack for these parameters."""
        settings: dict[str, Any] = {
            "replicas": self.replicas,
            "rate_mbit": self.rate_mbit,
            "rtt_ms": self.rtt_ms,
            "liveness_ms": self.liveness_ms,
            "heartbeat_ms": self.liveness_ms / 10,
            "checks": self.checks,
        }
        return rack(**(settings | more))


def parser(name: str, words: str) -> argparse.ArgumentParser:
    """Flags of every scenario."""
    flags = argparse.ArgumentParser(
        prog=f"make demo-{name}", description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--rate", type=float, help="rate of every link, Mb/s (100; 10 on BMv2)")
    flags.add_argument("--rtt", type=float, default=10.0, help="round-trip time between client and replica, ms")
    flags.add_argument("--size", type=float, help="megabytes of the file (200; 20 on BMv2)")
    flags.add_argument("--replicas", type=int, default=3, help="replicas, 2 to 8")
    flags.add_argument("--switch", choices=["embedded", "bmv2"], default="embedded", help="which switch is the ToR")
    flags.add_argument("--checks", choices=["tor", "host"], default="tor", help="where requests are checked")
    flags.add_argument("--out", type=Path, default=REPOSITORY / "build" / "demo", help="folder for results")
    flags.add_argument("--plain", action="store_true", help="no live view (also without a terminal)")
    return flags


def parameters(options: argparse.Namespace) -> Parameters:
    """Checks the flags and fills in the defaults."""
    bmv2 = options.switch == "bmv2"
    if not 2 <= options.replicas <= 8:
        raise RackError("--replicas: 2 to 8")
    values = Parameters(
        rate_mbit=options.rate if options.rate is not None else (10.0 if bmv2 else 100.0),
        rtt_ms=options.rtt,
        size_mb=options.size if options.size is not None else (20.0 if bmv2 else 200.0),
        replicas=options.replicas,
        switch=options.switch,
        checks=options.checks,
        out=options.out.resolve(),
        live=not options.plain and sys.stdout.isatty(),
    )
    for what, value in (("--rate", values.rate_mbit), ("--rtt", values.rtt_ms), ("--size", values.size_mb)):
        if not 0 < value < 1e5:
            raise RackError(f"{what}: {value:g} makes no sense")
    return values


@dataclass(slots=True)
class Standing:
    """A running rack with its services."""

    parameters: Parameters
    rack: Rack
    replicas: Replicas
    watch: Watch
    sha256: str
    marks: list[tuple[float, str, str]] = field(default_factory=list)
    """Actions on the rack: time, action (`kill`, `return`, ...), replica."""
    clients: dict[str, tuple[Process, Path]] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    """Host of each client."""
    notes: dict[str, dict[str, int]] = field(default_factory=dict)
    """The switch's counters at times that a scenario names."""
    unit: tuple[str, int] = ("MB", MEGA)
    """Unit in which clients' progress is shown, and its size in the counts that they write."""
    units: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The same for clients with another unit."""
    undo: list[Callable[[], None]] = field(default_factory=list)
    """Actions before the teardown, such as continuing stopped processes."""

    def client(
        self,
        name: str,
        host: str,
        via: str,
        path: str = "file.bin",
        size: int | None = None,
        address: str = "",
        once: bool = False,
    ) -> None:
        """Starts a download on a host; `via` runs curl (empty: kernel TCP). `address` replaces the service's.

        `once`: curl is not started again after a failure.
        """
        flags = ("--via", via, *(("--once",) if once else ()))
        self.program(name, host, "fetch", address or url(path), str(size or self.parameters.size), *flags)

    def program(self, name: str, host: str, module: str, *arguments: str) -> None:
        """Starts a module of the demo as a client on a host; it writes its progress and its result to files."""
        result, live = self.rack.folder / f"{module}-{name}.json", self.rack.folder / f"live-{name}"
        for old in (result, live):
            old.unlink(missing_ok=True)
        # Scheduled at once too: otherwise a busy machine would look like a stall of the network.
        command = [*prompt(), sys.executable, "-m", f"rivulet_demo.{module}", *arguments]
        command += ["--out", str(result), "--live", str(live)]
        self.hosts[name] = host
        self.clients[name] = (self.rack.start(f"client-{name}", command, self.rack.spaces[host]), result)

    def via_rivulet(self, host: str) -> str:
        """Command that runs curl over Rivulet on a host."""
        return shlex.join([*prompt(), binary("rivulet"), "run", "--"])

    def started(self, name: str) -> bool:
        """Whether a client's curl has been started."""
        return (self.rack.folder / f"live-{name}").exists()

    def so_far(self, name: str) -> int:
        """Bytes that a client has received."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.rack.folder / f"live-{name}").read_text())
        return 0

    def amount(self, name: str, digits: int = 0) -> str:
        """The received amount in words."""
        unit, one = self.units.get(name, self.unit)
        return f"{self.so_far(name) / one:.{digits if one > 1 else 0}f} {unit}"

    def left(self, name: str) -> Any:
        """The result that a client wrote at its end; RackError if there is none."""
        process, path = self.clients[name]
        if not path.exists():
            raise RackError(f"client {name} ended without a result; its log ends:\n{process.last_lines()}")
        return json.loads(path.read_text())

    def result(self, name: str) -> dict[str, Any]:
        """The result of a downloading client."""
        loaded: dict[str, Any] = self.left(name)
        loaded["sha256_ok"] = loaded["sha256"] == self.sha256
        return loaded

    def mark(self, what: str, who: str) -> None:
        """Records an action at the current time."""
        self.marks.append((time.monotonic(), what, who))

    def kill(self, name: str) -> None:
        """Kills a replica's serving process with SIGKILL and marks it."""
        self.marks.append((self.replicas.kill(name), "kill", name))

    def restart(self, name: str) -> None:
        """Starts a killed replica again and marks it."""
        self.replicas.start(name)
        self.mark("return", name)

    def run(self, act: Callable[[Standing, float], None], patience_s: float) -> None:
        """Runs until all clients have ended; calls `act(self, seconds)` repeatedly for kills and restarts."""
        started = time.monotonic()
        with view(self) as show:
            while any(process.running() for process, _ in self.clients.values()):
                now = time.monotonic() - started
                if now > patience_s:
                    raise RackError(f"the downloads did not end in {patience_s:g} s")
                act(self, now)
                show()
                time.sleep(0.01)


@contextmanager
def view(standing: Standing) -> Iterator[Callable[[], None]]:
    """The live view; without a terminal, a line every five seconds."""
    rates: dict[str, tuple[float, int, float]] = {}
    curves: dict[str, list[float]] = {}
    begun = time.monotonic()
    shown = 0.0

    def rate(name: str) -> float:
        now, count = time.monotonic(), standing.so_far(name)
        then, before, last = rates.get(name, (now, count, 0.0))
        if now - then < CELL_S:
            rates.setdefault(name, (now, count, 0.0))
            return last
        rates[name] = (now, count, (count - before) / (now - then))
        # A cell for each interval, also for those in which this process was not scheduled.
        cells = curves.setdefault(name, [])
        cells += [rates[name][2]] * max(1, int((now - begun) / CELL_S) - len(cells))
        return rates[name][2]

    def picture() -> Group:
        unit, one = standing.unit
        width = max(10, console.width - 45)
        first = max(0, max((len(cells) for cells in curves.values()), default=0) - width)
        clients = Table(
            "client", "has", "Mb/s" if unit == "MB" else "a second", "", title=None, box=None, padding=(0, 2)
        )
        for name in standing.clients:
            if name in standing.units:
                clients.add_row(name, standing.amount(name), "", "")
                continue
            speed = rate(name) * (8 / MEGA if unit == "MB" else 1 / one)
            top = standing.parameters.rate_mbit * MEGA / 8 if unit == "MB" else max(curves.get(name, [1.0]))
            line = curve(curves.get(name, []), top, width)
            clients.add_row(name, standing.amount(name, 1), f"{speed:.1f}", Text(line, style="green"))
        places = [(int((at - begun) / CELL_S), "✗" if what == "kill" else "↑") for at, what, _ in standing.marks]
        clients.add_row("", "", "", Text(marks(places, first, width), style="red"))
        table = Table("replica", "process", "switch says", "packets", "exclusions", box=None, padding=(0, 2))
        switch = standing.watch.view
        for host in standing.rack.spec.of("replica"):
            alive = host.name in standing.replicas.alive()
            out = switch is not None and switch.excluded(host.name)
            table.add_row(
                host.name,
                Text("runs", style="green") if alive else Text("killed", style="red"),
                Text("excluded", style="red") if out else Text("alive", style="green"),
                f"{switch.packets[host.name]:,}" if switch else "",
                str(switch.exclusions[host.name]) if switch else "",
            )
        drops = "  ".join(f"{reason} {count:,}" for reason, count in (switch.drops if switch else {}).items())
        return Group(clients, Text(), table, Text(), Text(f"drops: {drops or 'none'}", style="dim"))

    if not standing.parameters.live:

        def line() -> None:
            nonlocal shown
            if time.monotonic() - shown > 5.0:
                shown = time.monotonic()
                each = ", ".join(f"{name} {standing.amount(name)}" for name in standing.clients)
                console.print(f"  {each}; alive: {', '.join(standing.replicas.alive()) or 'none'}")

        yield line
        return
    with Live(picture(), console=console, refresh_per_second=8, transient=True) as live:

        def update() -> None:
            nonlocal shown
            if time.monotonic() - shown > 0.1:
                shown = time.monotonic()
                live.update(picture())

        yield update


@contextmanager
def standing_rack(
    name: str,
    values: Parameters,
    api: str = "",
    relayed: Sequence[str] = (),
    serve: Sequence[str] = (),
    www: Path | None = None,
    made_of: type[Replicas] = Replicas,
    quiet: bool = False,
    **settings: Any,
) -> Iterator[Standing]:
    """Starts a rack with switch, controller and replicas, and checks its delay.

    The controller's API listens on `api` (HOST:PORT), by default on a Unix socket in the folder. Agents of the replicas
    in `relayed` reach the controller through a relay. `serve`: more flags of the serving processes. `www`: the folder
    to serve, by default one with a file of the wanted size. `made_of`: the servers in place of `rivulet serve`.
    `quiet`: prints no steps.
    """
    folder = values.out / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.log"), *folder.glob("*.sock"), *folder.glob("live-*"), *folder.glob("controller.db*")]:
        old.unlink()
    spec = values.spec(**settings)
    step = _no_step if quiet else _step
    sha256 = ""
    if www is None:
        step(f"a file of {values.size_mb:g} MB")
        www = values.out / "www"
        sha256 = make_file(www, "file.bin", values.size)
    step("namespaces and links")
    with running_rack(spec, folder, values.switch) as standing:
        switch_socket, agents = folder / "switch.sock", folder / "agents.sock"
        step(f"the ToR ({values.switch})")
        standing.start_switch(switch_socket)
        step("the controller")
        start_controller(standing, switch_socket, agents, api or f"unix:{folder / 'api.sock'}")
        names = [host.name for host in spec.of("replica")]
        replicas = made_of(standing, www, agents, flags=serve)
        step(f"replicas {', '.join(names)}")
        for replica in relayed:
            replicas.relay(replica)()
        for replica in names:
            replicas.start(replica)
        with Watch(f"unix:{switch_socket}", names) as watch:
            wait_ready(standing, watch, names)
            check_links(standing, values, step)
            whole = Standing(values, standing, replicas, watch, sha256)
            try:
                yield whole
            finally:
                for undo in reversed(whole.undo):
                    undo()


def check_links(rack_: Rack, values: Parameters, step: Callable[[str], None]) -> None:
    """Checks that the links have the wanted delay before any measurement."""
    client, replica = rack_.spec.of("client")[0], rack_.spec.of("replica")[0]
    least, most, end = values.rtt_ms * 0.95 - 0.2, values.rtt_ms * 1.2 + 5, time.monotonic() + OVERLOAD_S
    while not least <= (measured := ping_ms(rack_, client.name, replica.ip)) <= most:
        # Too short a delay is an error at once; a long one may be the delay of a busy machine.
        if measured < least or time.monotonic() > end:
            raise RackError(
                f"the round-trip time is {measured:.2f} ms, not {values.rtt_ms:g} ms: is the machine overloaded?"
            )
    step(f"links checked: round-trip time {measured:.2f} ms")


def _step(words: str) -> None:
    console.print(f"[bold cyan]›[/] {words}")


def _no_step(_: str) -> None:
    """In place of `_step`."""


def main_of(name: str, words: str, body: Callable[[Parameters, argparse.Namespace], int]) -> Callable[[list[str]], int]:
    """Wraps a scenario as a command line: flags, error messages, Ctrl-C."""

    def run(arguments: list[str]) -> int:
        options = parser(name, words).parse_args(arguments)
        try:
            return body(parameters(options), options)
        except RackError as error:
            console.print(f"[bold red]failed:[/] {error}", markup=True)
            return 1
        except subprocess.TimeoutExpired as error:
            console.print(f"[bold red]failed:[/] {error}")
            return 1
        except KeyboardInterrupt:
            console.print("[yellow]interrupted; everything was torn down[/]")
            return 130

    return run

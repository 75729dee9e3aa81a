"""Chaos: kills, freezes, a full disk and clock jumps, one after the other, while clients download.

Half of the time with one controller and SQLite, half with two controllers and etcd. Every download must be complete,
over one connection. After each fault the rack must return to its described state by itself. At the end the leader's
memory must equal the store. chaos.csv in bench/results has a row per fault, chaos.json the sums and every broken
download.
"""

from __future__ import annotations

import csv
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rivulet_controller.client import ApiError
from rivulet_demo.services import make_file, url
from rivulet_demo.spec import rack as rack_spec
from rivulet_lab import RackError, binary, prompt

from .bars import Bar, judge
from .chaos_plot import draw
from .chaos_rack import ChaosRack, chaos_rack
from .rig import BUILD, flags, plot_path
from .stats import RESULTS, Json, percentile, save

SIZES = (500_000, 2_000_000, 8_000_000)
RATE_MBIT = 16.0
HUNG_S = 2.0
FULL_S = 3.0
HOUR_S = 3600
CLOCK_S = 2.5
"""Seconds that a jumped clock is kept; a jump shows within one second."""

STORES = ("sqlite", "etcd")


@dataclass(frozen=True, slots=True)
class Download:
    """One download; times are monotonic seconds."""

    began: float
    ended: float
    octets: int
    gap_s: float
    """Longest time without a new byte, and its begin."""
    gap_at: float
    problem: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the table."""

    at_s: float
    store: str
    fault: str
    whom: str
    back_s: float
    """Seconds from the end of the fault until the rack is as described and every replica live."""
    downloads: int
    """Downloads in progress at the fault."""
    stall_ms: float
    """Longest wait of these downloads for data that the fault can have caused; 0: none noticed it."""
    note: str


class Clients:
    """Consecutive downloads on each client host."""

    def __init__(self, rack: ChaosRack, digests: dict[int, bytes], seed: int) -> None:
        self.done: list[Download] = []
        self.going: dict[str, float] = {}
        """Start time of each client's current download."""
        self._rack = rack
        self._files = digests
        self._seed = seed
        self._ending = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the downloads during the block, and waits for their last ones."""
        hosts = [host.name for host in self._rack.spec.of("client")]
        threads = [threading.Thread(target=self._run, args=(host,)) for host in hosts]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in threads:
                thread.join()

    def _run(self, host: str) -> None:
        rng = random.Random(f"{self._seed} {host}")
        while not self._ending.is_set():
            self.done.append(self._one(host, rng.choice(SIZES)))

    def _one(self, host: str, size: int) -> Download:
        out = self._rack.folder / f"{host}.out"
        out.unlink(missing_ok=True)
        out.with_suffix(".part").unlink(missing_ok=True)
        get = [*prompt(), binary("rivulet"), "get", "--json", "-o", str(out), url(f"{size}.bin")]
        began = self.going[host] = time.monotonic()
        try:
            done = subprocess.run(
                self._rack.spaces[host].command(*get), capture_output=True, text=True, timeout=240, check=False
            )
            ended = time.monotonic()
            found = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
            problem = "" if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr.strip()[-200:]}"
            problem = problem or ("" if found.get("ok") else f"{found.get('error')}")
            problem = problem or ("" if found["transport"] == "rivulet" else "not over Rivulet")
            if not problem and out.read_bytes() != self._files[size]:
                problem = "the file is damaged"
            gap, at = float(found.get("longest_gap_ms") or 0.0), float(found.get("longest_gap_at_ms") or 0.0)
            return Download(began, ended, size, gap / 1e3, began + at / 1e3, problem)
        except (subprocess.TimeoutExpired, ValueError, KeyError, OSError) as error:
            return Download(began, time.monotonic(), size, 0.0, began, repr(error))
        finally:
            self.going.pop(host, None)


class Chaos:
    """The faults of one store, one after the other."""

    def __init__(self, rack: ChaosRack, clients: Clients, seed: int, zero: float) -> None:
        self.rows: list[Fault] = []
        self._rack = rack
        self._clients = clients
        self._rng = random.Random(f"{seed} {rack.store}")
        self._zero = zero
        self._hours = [1, 0, -1, 0]
        kinds: dict[str, Callable[[], tuple[str, str]]] = {
            "kill switch": partial(self._kill, "switch"),
            "kill controller": self._kill_controller,
            "full disk": self._full_disk,
            "clock": self._clock,
            "kill agent": lambda: self._kill(f"agent-{self._rng.choice(rack.replicas)}"),
            "hung switch": self._hang,
            "kill replica": lambda: self._kill(self._rng.choice(rack.replicas)),
        }
        if rack.store == "etcd":
            kinds["kill etcd"] = partial(self._kill, "etcd")
            kinds["kill waiting controller"] = self._kill_waiting
        self.kinds = kinds

    def run(self, until: float) -> None:
        """Strikes until the time is over; each kind once before any kind again."""
        while True:
            order = list(self.kinds)
            if self.rows:
                self._rng.shuffle(order)
            for kind in order:
                if time.monotonic() >= until:
                    return
                self._operate()
                self._strike(kind)

    def _strike(self, kind: str) -> None:
        end = time.monotonic() + 30.0
        while not self._clients.going and time.monotonic() < end:
            time.sleep(0.01)
        at, under_way = time.monotonic(), len(self._clients.going)
        whom, note = self.kinds[kind]()
        back = self._rack.whole(kind)
        self.rows.append(
            Fault(round(at - self._zero, 2), self._rack.store, kind, whom, round(back, 2), under_way, 0.0, note)
        )
        print(f"\r{self.rows[-1].at_s:6.0f} s  {self._rack.store}: {kind} {whom}, whole after {back:.1f} s   {note}")
        # A pause, so that the next fault's effects are not counted for this one.
        time.sleep(self._rng.uniform(0.3, 1.0))

    # The faults. Each returns its victim and a note.

    def _kill(self, part: str) -> tuple[str, str]:
        self._rack.kill(part)
        return part, ""

    def _kill_controller(self) -> tuple[str, str]:
        leader = self._rack.leader()
        return self._kill(leader[0] if leader else self._rack.controllers[0])

    def _kill_waiting(self) -> tuple[str, str]:
        leader = self._rack.leader()
        return self._kill(next(name for name in self._rack.controllers if leader is None or name != leader[0]))

    def _hang(self) -> tuple[str, str]:
        switch = self._rack.process("switch").popen
        switch.send_signal(signal.SIGSTOP)
        try:
            time.sleep(HUNG_S)
        finally:
            switch.send_signal(signal.SIGCONT)
        return "switch", f"for {HUNG_S:g} s"

    def _full_disk(self) -> tuple[str, str]:
        refused = asked = 0
        with self._rack.full_disk():
            end = time.monotonic() + FULL_S
            while time.monotonic() < end:
                self._rack.mind()
                asked += 1
                refused += not self._operate()
                time.sleep(0.3)
        return "disk", f"{refused} of {asked} changes refused"

    def _clock(self) -> tuple[str, str]:
        hours = self._hours[0]
        self._hours = [*self._hours[1:], hours]
        self._rack.jump(hours * HOUR_S)
        time.sleep(CLOCK_S)
        leader = self._rack.leader()
        seen = leader[1].get("/api/status")["time"] - time.time() if leader else float("nan")
        if not abs(seen - hours * HOUR_S) < HOUR_S / 60:
            raise RackError(f"the clocks should differ by {hours} h and differ by {seen:.0f} s: no libfaketime?")
        return f"{hours:+d} h", f"the controller's clock differs by {seen:+.0f} s"

    def _operate(self) -> bool:
        """A change as an operator makes it; returns whether the controller accepted it."""
        leader = self._rack.leader()
        if leader is None:
            return False
        replica = self._rng.choice(self._rack.replicas)
        deeds: list[tuple[str, Any]] = [
            (f"/api/replicas/{replica}/drain", None),
            (f"/api/replicas/{replica}/weight", {"weight": self._rng.randint(1, 9)}),
            ("/api/services/files/rotate", {}),
        ]
        path, body = self._rng.choice(deeds)
        with suppress(ApiError):
            leader[1].post(path, body)
            if path.endswith("drain"):
                leader[1].post(path.replace("drain", "undrain"))
            return True
        return False


def stalls(rows: Sequence[Fault], downloads: Sequence[Download], zero: float) -> list[Fault]:
    """Adds to each row the longest gap of its downloads between this fault and the next."""
    found = []
    for index, row in enumerate(rows):
        begin = zero + row.at_s - 0.1
        end = zero + rows[index + 1].at_s if index + 1 < len(rows) else float("inf")
        gaps = [one.gap_s for one in downloads if begin <= one.gap_at < end and one.began < end and one.ended > begin]
        found.append(Fault(**(asdict(row) | {"stall_ms": round(max(gaps, default=0.0) * 1e3, 1)})))
    return found


def half(store: str, seconds: float, seed: int, files: dict[int, bytes]) -> tuple[list[Fault], dict[str, Any]]:
    """Runs one store; returns the faults and the sums."""
    spec = rack_spec(clients=2, replicas=3, rate_mbit=RATE_MBIT, rtt_ms=10.0, heartbeat_ms=20.0, liveness_ms=200.0)
    folder = BUILD / "chaos" / store
    with chaos_rack(spec, folder, store) as rack:
        for size, content in files.items():
            (folder / "www" / f"{size}.bin").write_bytes(content)
        zero = time.monotonic()
        clients = Clients(rack, files, seed)
        chaos = Chaos(rack, clients, seed, zero)
        problem = ""
        with clients.running():
            try:
                chaos.run(zero + seconds)
                rack.jump(0)
                rack.whole("the end")
            except RackError as error:
                problem = str(error)
                print(f"\n{problem}", flush=True)
        same, what = rack.durable() if not problem else (False, "not compared")
        rows = stalls(chaos.rows, clients.done, zero)
        broken = [asdict(one) for one in clients.done if one.problem]
        for one in broken:
            print(f"broken: {one}", flush=True)
        return rows, {
            "downloads": len(clients.done),
            "octets": sum(one.octets for one in clients.done if not one.problem),
            "broken": len(broken),
            "broken_downloads": broken,
            "did_not_come_back": problem,
            "kinds_missing": sorted(set(chaos.kinds) - {row.fault for row in rows}),
            "ended_by_themselves": [part for part in rack.exits if part != "etcd"],
            "etcd_ended_by_itself": rack.exits.count("etcd"),
            "disk_is_memory": same,
            "state": what,
            "bars": [
                [round(one.began - zero, 2), round(one.ended - zero, 2), float(bool(one.problem))]
                for one in clients.done
            ],
        }  # fmt: skip


def bars(result: Json) -> list[Bar]:
    """No download breaks, the rack recovers, and every kind of fault has occurred."""
    halves = [result[store] for store in STORES if store in result]
    total = {key: sum(half[key] for half in halves) for key in ("downloads", "broken", "disk_is_memory")}
    stayed_away = sum(bool(half["did_not_come_back"]) for half in halves)
    ended = sum(len(half["ended_by_themselves"]) for half in halves)
    missing = sum(len(half["kinds_missing"]) for half in halves)
    return [
        Bar("broken downloads", total["broken"], 0, at_most=True),
        Bar("downloads", total["downloads"], result["faults"] / 4),
        Bar("stores with a fault from which the rack did not recover", stayed_away, 0, at_most=True),
        Bar("parts that ended without a fault", ended, 0, at_most=True),
        # A short run has no time for every kind.
        Bar("kinds of faults that did not occur", missing, 0 if result["seconds"] >= 300 else 99, at_most=True),
        Bar("stores that equal the leader's memory", total["disk_is_memory"], len(halves)),
    ]


def main() -> int:
    """Runs for a number of seconds; 0 if nothing broke and the rack recovered from all faults."""
    parser = flags(__doc__ or "")
    parser.set_defaults(seconds=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=STORES, help="only this store")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for chaos.csv, chaos.json and chaos.png")
    options = parser.parse_args()
    files = {}
    for size in SIZES:
        make_file(BUILD / "www", f"chaos-{size}.bin", size)
        files[size] = (BUILD / "www" / f"chaos-{size}.bin").read_bytes()
    stores = (options.store,) if options.store else STORES
    rows: list[Fault] = []
    halves: dict[str, dict[str, Any]] = {}
    for store in stores:
        found, halves[store] = half(store, options.seconds / len(stores), options.seed, files)
        rows += found
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "chaos.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(Fault.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    spans = {store: found.pop("bars") for store, found in halves.items()}
    draw(options.out / "chaos.png" if options.out != RESULTS else plot_path("chaos"), rows, spans)
    kinds = sorted({row.fault for row in rows})
    summary = {
        "seconds": options.seconds,
        "seed": options.seed,
        "faults": len(rows),
        "stall_ms": {
            kind: {f"p{p}": percentile([r.stall_ms for r in rows if r.fault == kind], p) for p in (50, 100)}
            for kind in kinds
        },
        "back_s": {
            kind: {f"p{p}": percentile([r.back_s for r in rows if r.fault == kind], p) for p in (50, 100)}
            for kind in kinds
        },
        **halves,
    }
    if options.out == RESULTS:
        print(save("chaos", summary))
    else:
        (options.out / "chaos.json").write_text(json.dumps(summary, indent=1) + "\n")
    return judge(bars(summary))


if __name__ == "__main__":
    sys.exit(main())

"""Replicas that are sick but not dead: one has old keys, one answers no request, one is frozen.

The first is cut off from the controller while the keys rotate. The second sends heartbeats but no answers (they are
dropped at its interface), so the ToR considers it live, and only other replicas help. The third is stopped (SIGSTOP)
and continued later: its sockets and kernel stay, and only its heartbeats stop. This happens one after the other,
while three clients download.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Callable
from functools import partial

from rivulet_controller.client import Client
from rivulet_lab import RackError

from ...deeds import Deed
from ...report import RIVULET, STATELESS, show, three_clients
from ...scenario import Parameters, Standing, console

WORDS = __doc__ or ""

LEFT_OUT = ("old keys", "frozen")
"""Harms after which the ToR must exclude the replica."""

SEEN_S = 2.0
"""Longest wait for the exclusion before a harm ends, seconds."""

BEHIND_S = 0.5
"""A harm closer to the end of the download is not judged, seconds."""

MUTE = """
table netdev rivulet_demo_mute {{
  chain out {{
    type filter hook egress device "{device}" priority 0; policy accept;
    meta l4proto tcp drop
  }}
}}
"""


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if the Rivulet client kept its connection and the ToR excluded the expected replicas."""
    if values.replicas < 3:
        raise RackError("--replicas: this scenario needs three or more")
    report = three_clients("sick", values, _plan, relayed=("r2",))
    opening = (
        f"One replica had old keys, one answered nothing, one was frozen, one after the other, while three clients"
        f" fetched {values.size / 1e6:g} MB at {values.rate_mbit:g} Mb/s, {values.rtt_ms:g} ms round-trip time."
    )
    client = report["clients"][RIVULET]
    felt = client["kills"]
    beside = {kill["what"]: kill["stall_ms"] for kill in report["clients"][STATELESS]["kills"]}
    words = [
        f"{kill['replica']} ({kill['what']}): the Rivulet client waited {kill['stall_ms']:.0f} ms at most, stateless"
        f" TCP {beside.get(kill['what'], 0.0):.0f} ms; the ToR"
        + (" considered it live." if (after := kill["exclusion_ms"]) is None else f" excluded it after {after:.0f} ms.")
        for kill in felt
    ]
    excluded = {kill["what"] for kill in felt if kill["exclusion_ms"] is not None}
    unseen = [mark for mark in report["marks"] if mark["what"] in LEFT_OUT and mark["what"] not in excluded]
    last = max((at for at, _ in client["samples"]), default=0.0) - BEHIND_S
    late = [mark["what"] for mark in unseen if mark["at_s"] > last]
    if late:
        words.append(f"This came too late in the download to be judged: {', '.join(late)}. Make the file larger.")
    code = show(report, values, "sick replicas: old keys, mute, frozen", opening, words)
    missed = [mark["what"] for mark in unseen if mark["what"] not in late]
    if missed:
        console.print(f"The ToR did NOT exclude: {', '.join(missed)}.")
    return code or int(bool(missed))


def _plan(standing: Standing, seconds: float) -> list[Deed]:
    mute, old, frozen = (host.name for host in standing.rack.spec.of("replica")[:3])
    eighth = seconds / 8
    standing.undo.append(partial(_unmute, standing, mute))
    # A stopped process would ignore the teardown's SIGTERM.
    standing.undo.append(partial(_send, standing, frozen, signal.SIGCONT))
    _rotate_without(standing, old)
    connect = standing.replicas.relay(old)
    return [
        Deed(0.0, partial(Standing.mark, what="old keys", who=old)),
        Deed(3 * eighth, partial(_reconnect, connect=connect, name=old)),
        Deed(4 * eighth, partial(_mute, name=mute)),
        Deed(5 * eighth, partial(_unmute, name=mute, what="return")),
        Deed(6 * eighth, partial(_send, name=frozen, number=signal.SIGSTOP, what="frozen")),
        Deed(7 * eighth, partial(_thaw, name=frozen)),
    ]


def _mute(standing: Standing, name: str) -> None:
    _nft(standing, name, MUTE.format(device=f"{name}-eth0"))
    standing.mark("mute", name)


def _unmute(standing: Standing, name: str, what: str = "") -> None:
    # Both lines, so that it is no error if the table does not exist.
    _nft(standing, name, "table netdev rivulet_demo_mute\ndelete table netdev rivulet_demo_mute\n")
    if what:
        standing.mark(what, name)


def _nft(standing: Standing, name: str, script: str) -> None:
    standing.rack.spaces[name].run("nft", "-f", "-", stdin=script)


def _send(standing: Standing, name: str, number: signal.Signals, what: str = "") -> None:
    standing.replicas.running[name].popen.send_signal(number)
    if what:
        standing.mark(what, name)


def _thaw(standing: Standing, name: str) -> None:
    _seen(standing, name)
    _send(standing, name, signal.SIGCONT, "return")


def _seen(standing: Standing, name: str) -> None:
    """Waits until the ToR has excluded a replica: this process may not have run during the whole harm."""

    def out() -> bool:
        view = standing.watch.view
        return view is not None and view.excluded(name)

    # Without the exclusion the scenario fails in its report.
    with contextlib.suppress(RackError):
        standing.rack.until(out, f"{name} is excluded", SEEN_S)


def _rotate_without(standing: Standing, name: str) -> None:
    """Cuts a replica off from the controller and rotates the keys; waits until the new ones are used without it."""
    api = Client(f"unix:{standing.rack.folder / 'api.sock'}")
    kinds = ("seal", "nonce")

    def epochs() -> list[int]:
        keys = api.get("/api/services")[0]["keys"]
        return [keys[kind]["usable"] for kind in kinds]

    before = epochs()
    standing.replicas.cut(name)
    api.post("/api/services/files/rotate", {"kinds": kinds})

    def used() -> bool:
        # The controller waits some seconds for a replica that does not confirm.
        return all(now > then for now, then in zip(epochs(), before, strict=True))

    standing.rack.until(used, "the keys are rotated", 60.0)


def _reconnect(standing: Standing, connect: Callable[[], None], name: str) -> None:
    """Restores the connection; the agent reconnects to the controller by itself."""
    _seen(standing, name)
    connect()
    standing.mark("return", name)

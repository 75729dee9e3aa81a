"""How a service's plain TCP changes from one mode to another (docs/control-plane.md, "Plain TCP").

A ToR that answers a service's SYNs with cookies spreads segments of one connection over replicas,
so all of them must be stateless: on the way to `stateless` replicas change first and ToRs last, on
the way back ToRs change first. Between kernel and stateless TCP existing connections drain:
replicas serve both kinds, and ToRs keep every flow where it is.

With TRODS the kernel serves too, and the ToR drops what an excluded replica still sends. So ToRs
enter TRODS first, and leave it last, after its connections have drained. TRODS and stateless TCP
never overlap: `kernel` comes between them.

Pure functions: time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .config import PlainMode


@dataclass(frozen=True, slots=True)
class Mode:
    """A service's mode at replicas and ToRs, which differ during a change."""

    replicas: PlainMode
    """Mode sent to agents."""
    drains: PlainMode
    """Former mode, with connections that still drain; equal to `replicas` if none do."""
    tors: PlainMode
    """Mode written to switches."""
    since: float = 0.0
    """When this stage began or was last delayed, in seconds of the controller's clock."""

    @property
    def is_settled(self) -> bool:
        """Whether no change is under way."""
        return self.replicas == self.drains == self.tors

    def __str__(self) -> str:
        """For logs and the status page."""
        if self.is_settled:
            return self.replicas
        parts = [f"ToRs {self.tors}"] if self.tors != self.replicas else []
        parts += [f"{self.drains} drains"] if self.drains != self.replicas else []
        return f"{self.replicas}, {', '.join(parts)}"


def settled(plain: PlainMode) -> Mode:
    """A mode without a change under way."""
    return Mode(plain, plain, plain)


def step(mode: Mode, wanted: PlainMode, now: float, drain: float, confirmed: bool, applied: bool) -> Mode:
    """The next stage, or the same. `confirmed`: every replica that counts applies `mode.replicas`.
    `applied`: every reachable switch has `mode.tors`. `drain`: seconds for which existing
    connections are served after a change.
    """
    if now < mode.since:
        # The clock was set back: the stage begins again.
        mode = replace(mode, since=now)
    if {"stateless", "trods"} <= {mode.replicas, mode.drains, mode.tors, wanted}:
        wanted = "kernel"
    if mode.tors == "stateless" and wanted != "stateless":
        return replace(mode, tors=wanted, since=now)
    if mode.replicas != wanted:
        if mode.replicas == "stateless" and not applied:
            return mode
        if (mode.replicas, wanted) == ("kernel", "trods"):
            if mode.tors != "trods":
                return replace(mode, tors="trods", since=now)
            return Mode("trods", "trods", "trods", now) if applied else mode
        drains = mode.replicas if "none" not in (mode.replicas, wanted) else wanted
        late = wanted == "stateless" or (mode.replicas, wanted) == ("trods", "kernel")
        return Mode(wanted, drains, mode.tors if late else wanted, now)
    if mode.is_settled:
        return mode
    if not confirmed:
        return replace(mode, since=now)
    if mode.drains != mode.replicas and mode.tors != "stateless" and now - mode.since < drain:
        return mode
    if mode.drains == "trods" != mode.replicas:
        # Replicas drop the remaining TRODS connections before the ToRs leave TRODS.
        return replace(mode, drains=wanted, since=now)
    if mode.tors != wanted:
        return replace(mode, tors=wanted, since=now)
    return settled(wanted) if applied else mode


def next_change(mode: Mode, drain: float) -> float:
    """When `step` may next change something without any other event; infinity if never."""
    waits = mode.drains != mode.replicas and mode.tors != "stateless"
    return mode.since + drain if waits else float("inf")

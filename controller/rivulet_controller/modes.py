"""How a service's plain TCP comes from one mode to another (docs/control-plane.md, "Plain TCP").

A ToR that answers SYNs of a service with cookies and spreads their segments must have none but stateless replicas
behind it, so replicas become stateless first and ToRs last, and the other way round ToRs come first. Between the kernel
and stateless TCP what began before goes on for a while: replicas serve both kinds, ToRs leave every flow where it is.

With TRODS the kernel serves too, and the ToR drops what an excluded replica still says: so ToRs come first, and go
last, when what began with TRODS has drained. It and stateless TCP are never there together: the kernel's comes between.

Pure: time comes in as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .config import PlainMode


@dataclass(frozen=True, slots=True)
class Mode:
    """Where a service is on its way."""

    replicas: PlainMode
    """What agents are told."""
    drains: PlainMode
    """What they were told before, while connections of then go on; the same where none do."""
    tors: PlainMode
    """What switches are told."""
    since: float = 0.0
    """When this stage began, or was last held up; seconds of the controller's own clock."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way."""
        return self.replicas == self.drains == self.tors

    def __str__(self) -> str:
        """In words, for people."""
        if self.is_settled:
            return self.replicas
        parts = [f"ToRs {self.tors}"] if self.tors != self.replicas else []
        parts += [f"{self.drains} drains"] if self.drains != self.replicas else []
        return f"{self.replicas}, {', '.join(parts)}"


def settled(plain: PlainMode) -> Mode:
    """Nothing is under way."""
    return Mode(plain, plain, plain)


def step(mode: Mode, wanted: PlainMode, now: float, drain: float, told: bool, held: bool) -> Mode:
    """The next stage, or the same. `told`: every replica that counts has `mode.replicas` in force; `held`: every switch
    that can be reached has `mode.tors`. `drain`: seconds for which what began before goes on.
    """
    if now < mode.since:
        # The clock went back: what is under way takes its time again.
        mode = replace(mode, since=now)
    if {"stateless", "trods"} <= {mode.replicas, mode.drains, mode.tors, wanted}:
        wanted = "kernel"
    if mode.tors == "stateless" and wanted != "stateless":
        return replace(mode, tors=wanted, since=now)
    if mode.replicas != wanted:
        if mode.replicas == "stateless" and not held:
            return mode
        if (mode.replicas, wanted) == ("kernel", "trods"):
            if mode.tors != "trods":
                return replace(mode, tors="trods", since=now)
            return Mode("trods", "trods", "trods", now) if held else mode
        drains = mode.replicas if "none" not in (mode.replicas, wanted) else wanted
        late = wanted == "stateless" or (mode.replicas, wanted) == ("trods", "kernel")
        return Mode(wanted, drains, mode.tors if late else wanted, now)
    if mode.is_settled:
        return mode
    if not told:
        return replace(mode, since=now)
    if mode.drains != mode.replicas and mode.tors != "stateless" and now - mode.since < drain:
        return mode
    if mode.drains == "trods" != mode.replicas:
        # Replicas let go of what is left before the ToRs do.
        return replace(mode, drains=wanted, since=now)
    if mode.tors != wanted:
        return replace(mode, tors=wanted, since=now)
    return settled(wanted) if held else mode


def next_change(mode: Mode, drain: float) -> float:
    """When `step` may next do something by time alone."""
    waits = mode.drains != mode.replicas and mode.tors != "stateless"
    return mode.since + drain if waits else float("inf")

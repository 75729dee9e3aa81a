"""Changes of the mode of plain TCP: no ToR spreads segments over kernels, no ToR forwards for an
excluded replica under TRODS, and existing connections drain.
"""

from __future__ import annotations

import itertools
import random
from typing import get_args

import pytest

from rivulet_controller.config import PlainMode
from rivulet_controller.modes import Mode, next_change, settled, step

DRAIN = 10.0
MODES = get_args(PlainMode)


def walk(mode: Mode, wanted: PlainMode, confirmed: bool = True, applied: bool = True) -> list[Mode]:
    """The stages up to the last, with their times."""
    found = [mode]
    for now in range(100):
        mode = step(mode, wanted, float(now), DRAIN, confirmed, applied)
        if (mode.replicas, mode.drains, mode.tors) != (found[-1].replicas, found[-1].drains, found[-1].tors):
            found.append(mode)
    return found


def stages(found: list[Mode]) -> list[tuple[str, str, str]]:
    return [(mode.replicas, mode.drains, mode.tors) for mode in found]


def test_change_to_stateless_starts_with_replicas() -> None:
    found = walk(settled("kernel"), "stateless")
    assert stages(found) == [
        ("kernel", "kernel", "kernel"),
        ("stateless", "kernel", "kernel"),
        ("stateless", "kernel", "stateless"),
        ("stateless", "stateless", "stateless"),
    ]
    assert found[2].since - found[1].since >= DRAIN
    assert next_change(found[1], DRAIN) == found[1].since + DRAIN
    assert str(found[1]) == "stateless, ToRs kernel, kernel drains" and str(found[3]) == "stateless"


def test_change_to_kernel_starts_with_tors() -> None:
    found = walk(settled("stateless"), "kernel")
    assert stages(found) == [
        ("stateless", "stateless", "stateless"),
        ("stateless", "stateless", "kernel"),
        ("kernel", "stateless", "kernel"),
        ("kernel", "kernel", "kernel"),
    ]
    mode = settled("stateless")
    first = step(mode, "kernel", 0.0, DRAIN, True, True)
    assert step(first, "kernel", 1e6, DRAIN, True, False) == first, "a ToR still answers SYNs"


def test_tors_enter_trods_first_and_leave_last() -> None:
    found = walk(settled("kernel"), "trods")
    assert stages(found) == [
        ("kernel", "kernel", "kernel"),
        ("kernel", "kernel", "trods"),
        ("trods", "trods", "trods"),
    ]
    first = step(settled("kernel"), "trods", 0.0, DRAIN, True, True)
    assert step(first, "trods", 1e6, DRAIN, True, False) == first, "a ToR may still forward for an excluded replica"
    back = walk(settled("trods"), "kernel")
    assert stages(back) == [
        ("trods", "trods", "trods"),
        ("kernel", "trods", "trods"),
        ("kernel", "kernel", "trods"),
        ("kernel", "kernel", "kernel"),
    ]
    assert back[2].since - back[1].since >= DRAIN
    assert next_change(back[1], DRAIN) == back[1].since + DRAIN
    assert str(back[1]) == "kernel, ToRs trods, trods drains" and str(first) == "kernel, ToRs trods"
    assert stages(walk(back[1], "trods"))[-1] == ("trods", "trods", "trods"), "wanted after all"


def test_kernel_serves_between_stateless_and_trods() -> None:
    for old, new in (("stateless", "trods"), ("trods", "stateless")):
        found = stages(walk(settled(old), new))  # type: ignore[arg-type]
        assert ("kernel", "kernel", "kernel") in found and found[-1] == (new, new, new)
        assert not any({"stateless", "trods"} <= set(stage) for stage in found)


@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(MODES, 2)))
def test_every_mode_change_completes(old: PlainMode, new: PlainMode) -> None:
    assert stages(walk(settled(old), new))[-1] == (new, new, new)
    if "none" in (old, new):
        assert not any(mode.drains != mode.replicas for mode in walk(settled(old), new)), "there is nothing to drain"


def test_drain_begins_with_last_confirmation() -> None:
    mode = step(settled("kernel"), "stateless", 0.0, DRAIN, True, True)
    mode = step(mode, "stateless", 50.0, DRAIN, False, True)
    assert (mode.tors, mode.since) == ("kernel", 50.0)
    assert step(mode, "stateless", 50.0 + DRAIN - 0.1, DRAIN, True, True) == mode
    assert step(mode, "stateless", 50.0 + DRAIN, DRAIN, True, True).tors == "stateless"


def test_clock_set_back_ends_no_drain_early() -> None:
    mode = step(settled("kernel"), "stateless", 1000.0, DRAIN, True, True)
    back = step(mode, "stateless", 5.0, DRAIN, True, True)
    assert (back.tors, back.since) == ("kernel", 5.0)
    assert step(back, "stateless", 5.0 + DRAIN, DRAIN, True, True).tors == "stateless"


@pytest.mark.parametrize("seed", range(20))
def test_random_targets_and_confirmations_keep_invariants(seed: int) -> None:
    rng = random.Random(seed)
    mode, wanted, now = settled("kernel"), "kernel", 0.0
    for _ in range(2000):
        if rng.random() < 0.1:
            wanted = rng.choice(MODES)
        now += rng.choice((0.1, 1.0, 5.0))
        confirmed, applied = rng.random() < 0.7, rng.random() < 0.7
        before, mode = mode, step(mode, wanted, now, DRAIN, confirmed, applied)
        assert mode.tors != "stateless" or mode.replicas == "stateless", "a ToR spreads over kernels"
        if mode.tors == "stateless" != before.tors:
            assert confirmed and before.replicas == "stateless", "a replica may not have it in force"
        if before.replicas == "stateless" != mode.replicas:
            assert applied and before.tors != "stateless", "a ToR may still answer SYNs"
        assert "none" not in (mode.replicas, mode.drains) or mode.replicas == mode.drains
        assert "trods" not in (mode.replicas, mode.drains) or mode.tors == "trods", (
            "a ToR may forward for an excluded replica"
        )
        if mode.replicas == "trods" != before.replicas:
            assert applied or before.replicas == "none", "a ToR may still forward for it"
        assert not {"stateless", "trods"} <= {mode.replicas, mode.drains, mode.tors}
    mode = Mode(mode.replicas, mode.drains, mode.tors)
    assert walk(mode, wanted)[-1].is_settled and walk(mode, wanted)[-1].tors == wanted

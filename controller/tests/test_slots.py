"""Slots: exact shares, few moves, second places by weight, and drains that move nothing
permanently.
"""

import random
from collections import Counter
from collections.abc import Collection

import pytest

from rivulet_controller.slots import apportion, drained, pair, round_robin, smooth


def moved(before: tuple[tuple[int, int], ...], after: tuple[tuple[int, int], ...]) -> int:
    """Slots whose first replica differs."""
    return sum(old[0] != new[0] for old, new in zip(before, after, strict=True))


def loads(pairs: tuple[tuple[int, int], ...], alive: Collection[int]) -> dict[int, float]:
    """Slots of each live replica: as first, else as second, else an equal part of the rest
    (pick.p4, slot.rs).
    """
    found = dict.fromkeys(alive, 0.0)
    neither = 0
    for first, second in pairs:
        if first in found or second in found:
            found[first if first in found else second] += 1
        else:
            neither += 1
    return {index: load + neither / len(found) for index, load in found.items()}


SIZES = [(n, 128) for n in range(2, 65)] + [(n, size) for size in (256, 512, 1024) for n in (2, 3, 7, 16, 33, 48, 64)]


@pytest.mark.parametrize(("replicas", "size"), SIZES)
def test_survivors_share_evenly_after_any_deaths(replicas: int, size: int) -> None:
    weights = dict.fromkeys(range(replicas), 1)
    rng = random.Random(replicas * size)
    for pairs in (pair((), size, weights, "web"), round_robin(size, weights)):
        most = -(-size // replicas)
        firsts, seconds = (Counter(place) for place in zip(*pairs, strict=True))
        assert {*firsts.values()} | {*seconds.values()} <= {most, size // replicas, most - 1}
        every = -(-most // (replicas - 1))
        assert max(Counter(pairs).values()) <= every, "the death of one spreads over all others"
        sets = [range(low) for low in range(1, replicas + 1)] + [range(low, replicas) for low in range(replicas)]
        sets += [rng.sample(range(replicas), rng.randint(1, replicas)) for _ in range(40)]
        for alive in sets:
            fair = size / len(alive)
            found = loads(pairs, alive)
            assert sum(found.values()) == pytest.approx(size)
            # A replica's own slots and an equal part of the rest are `fair`; only second places of
            # dead replicas add to it.
            assert max(found.values()) <= fair + most + 1, (len(alive), max(found.values()), fair)
            assert min(found.values()) >= size // replicas


@pytest.mark.parametrize(("replicas", "size"), [(n, size) for n, size in SIZES if n in (3, 7, 16, 33, 64)])
def test_staying_replicas_share_evenly_in_any_drain(replicas: int, size: int) -> None:
    weights = dict.fromkeys(range(replicas), 1)
    pairs = pair((), size, weights, "web")
    most = -(-size // replicas)
    rng = random.Random(replicas * size)
    for _ in range(40):
        stay = rng.sample(range(replicas), rng.randint(1, replicas))
        draining = frozenset(range(replicas)) - {*stay}
        found = Counter(first for first, _ in drained(pairs, draining, weights))
        assert found.keys() == {*stay} and min(found.values()) >= size // replicas
        assert max(found.values()) <= max(-(-size // len(stay)), 2 * most)
        if len(stay) < replicas / 2:
            assert max(found.values()) <= size / len(stay) + most


def test_second_places_follow_weights_when_half_is_dead() -> None:
    rng = random.Random(5)
    weights = {index: rng.randint(1, 4) for index in range(64)}
    pairs = pair((), 1024, weights, "web")
    whole = sum(weights.values())
    seconds = Counter(second for _, second in pairs)
    for index, weight in weights.items():
        assert seconds[index] == pytest.approx(1024 * weight / whole, rel=0.25)


def test_second_drain_moves_few_slots() -> None:
    weights = dict.fromkeys(range(16), 1)
    pairs = pair((), 1024, weights, "web")
    before = drained(pairs, frozenset(range(6)), weights)
    after = drained(pairs, frozenset(range(7)), weights)
    assert sum(old[0] == 6 for old in before) == pytest.approx(1024 / 10, abs=24)
    others = sum(old[0] != 6 != new[0] and old[0] != new[0] for old, new in zip(before, after, strict=True))
    assert others <= 40, f"{others} of 1024"


def test_new_member_changes_few_second_places() -> None:
    before = pair((), 1024, dict.fromkeys(range(15), 1), "web")
    after = pair(before, 1024, dict.fromkeys(range(16), 1), "web")
    same_first = [(old, new) for old, new in zip(before, after, strict=True) if old[0] == new[0]]
    assert len(same_first) == 960
    assert sum(old[1] != new[1] for old, new in same_first) <= 64 + 32


def test_shares_are_exact_and_every_member_has_a_slot() -> None:
    rng = random.Random(3)
    for _ in range(300):
        weights = {index: rng.randint(1, 256) for index in rng.sample(range(64), rng.randint(1, 16))}
        quotas = apportion(weights, 128)
        assert sum(quotas.values()) == 128 and quotas.keys() == weights.keys()
        whole = sum(weights.values())
        for index, quota in quotas.items():
            # A replica without a slot gets one from the largest share.
            assert quota == 1 or quota >= weights[index] * 128 // whole - len(weights)
            assert quota <= weights[index] * 128 / whole + 1 or quota == 1
    assert apportion({0: 1, 1: 2, 2: 1}, 128) == {0: 32, 1: 64, 2: 32}
    assert apportion({0: 0}, 128) == {}


def test_round_robin_is_smooth() -> None:
    assert smooth({0: 5, 1: 1, 2: 1}) == [0, 0, 1, 0, 2, 0, 0], "nginx's own example"
    firsts = [first for first, _ in round_robin(128, {0: 1, 1: 1, 2: 1})]
    assert all(firsts[i] != firsts[i + 1] for i in range(127))


def test_second_places_differ_from_first_and_follow_weights() -> None:
    pairs = pair((), 1024, {0: 1, 1: 1, 2: 2}, "web")
    assert Counter(first for first, _ in pairs) == {0: 256, 1: 256, 2: 512}
    assert all(first != second for first, second in pairs)
    seconds = Counter(second for first, second in pairs if first == 0)
    assert seconds[2] == pytest.approx(2 * seconds[1], abs=3), "a dead replica's share goes to the others by weight"


def test_new_member_takes_only_its_share() -> None:
    before = pair((), 128, {0: 1, 1: 1, 2: 1}, "web")
    after = pair(before, 128, {0: 1, 1: 1, 2: 1, 3: 1}, "web")
    assert moved(before, after) == 32 == Counter(first for first, _ in after)[3]


def test_leaving_member_moves_only_its_own_slots() -> None:
    before = pair((), 128, {0: 1, 1: 1, 2: 1, 3: 1}, "web")
    after = pair(before, 128, {0: 1, 1: 1, 3: 1}, "web")
    assert all(old[0] == 2 for old, new in zip(before, after, strict=True) if old[0] != new[0])
    assert moved(before, after) == 32


def test_weight_change_moves_fewest_slots() -> None:
    rng = random.Random(11)
    before = pair((), 256, {0: 1}, "web")
    for _ in range(200):
        weights = {index: rng.randint(1, 9) for index in rng.sample(range(12), rng.randint(1, 12))}
        after = pair(before, 256, weights, "web")
        had, has = Counter(f for f, _ in before), Counter(f for f, _ in after)
        assert moved(before, after) == sum(max(has[i] - had[i], 0) for i in has)
        assert len(weights) == 1 or all(first != second for first, second in after)
        before = after


def test_drain_swaps_places_and_undrain_restores_them() -> None:
    weights = {0: 1, 1: 1, 2: 1}
    pairs = pair((), 128, weights, "web")
    away = drained(pairs, frozenset({1}), weights)
    for old, new in zip(pairs, away, strict=True):
        if old[0] == 1:
            assert new == (old[1], 1), "SYNs go to the new first, old flows are handed to the second"
        else:
            assert new == old
    both = drained(pairs, frozenset({0, 1}), weights)
    assert {first for first, _ in both} == {2}
    assert drained(pairs, frozenset({0, 1, 2}), weights) == pairs, "if all drain, no slot moves"
    assert drained(pairs, frozenset(), weights) == pairs


def test_slot_count_may_change_and_pool_may_be_empty() -> None:
    pairs = pair((), 64, {0: 1, 1: 1}, "web")
    doubled = pair(pairs, 128, {0: 1, 1: 1}, "web")
    assert moved(pairs, doubled[:64]) == 0 and moved(pairs, doubled[64:]) == 0
    assert pair(pairs, 8, {}, "web") == ((0, 0),) * 8
    assert pair((), 8, {5: 1}, "web") == ((5, 5),) * 8

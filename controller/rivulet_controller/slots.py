"""Assigns a first and a second replica to each slot of a service. Pure functions over replica
indices.

A slot keeps its replica as long as weights allow, so a change of membership moves as few slots as
possible. Shares are exact to one slot (largest remainder).
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import cache

from .state import Pairs

MAX_INDEX = 64
"""Upper bound of replica indices in a pool (`MAX_MEMBERS` of config.py)."""


def apportion(weights: Mapping[int, int], total: int) -> dict[int, int]:
    """How many of `total` slots each replica gets: by weight, largest remainder, ties to the lower
    index.

    A weight above zero gets at least one slot if there are at least as many slots as replicas.
    """
    live = {index: weight for index, weight in sorted(weights.items()) if weight > 0}
    whole = sum(live.values())
    if not whole:
        return {}
    quotas = {index: weight * total // whole for index, weight in live.items()}
    by_remainder = sorted(live, key=lambda index: (-(live[index] * total % whole), index))
    for index in by_remainder[: total - sum(quotas.values())]:
        quotas[index] += 1
    for index in live:
        if quotas[index] == 0 and total >= len(live):
            quotas[max(quotas, key=lambda other: quotas[other])] -= 1
            quotas[index] = 1
    return {index: quota for index, quota in quotas.items() if quota}


def smooth(quotas: Mapping[int, int]) -> list[int]:
    """Smooth weighted round robin: index `i` appears `quotas[i]` times, as evenly spread as
    possible.
    """
    total = sum(quotas.values())
    credit = dict.fromkeys(sorted(quotas), 0)
    order = []
    for _ in range(total):
        for index in credit:
            credit[index] += quotas[index]
        best = max(credit, key=lambda index: (credit[index], -index))
        credit[best] -= total
        order.append(best)
    return order


def reassign(previous: Sequence[int | None], quotas: Mapping[int, int], seed: str) -> list[int]:
    """Slots with exactly these quotas, changing as few of `previous` as possible.

    `seed` (the service's name) shuffles the order, so that neighbouring slots name different
    replicas.
    """
    order = list(range(len(previous)))
    random.Random(seed).shuffle(order)
    left = dict(quotas)
    result: list[int | None] = [None] * len(previous)
    for slot in order:
        index = previous[slot]
        if index is not None and left.get(index, 0) > 0:
            left[index] -= 1
            result[slot] = index
    missing = iter(smooth({index: count for index, count in left.items() if count}))
    for slot in order:
        if result[slot] is None:
            result[slot] = next(missing)
    return [index for index in result if index is not None]


def balanced_seconds(
    quotas: Mapping[int, int], weights: Mapping[int, int], before: Mapping[tuple[int, int], int], seed: str
) -> dict[int, dict[int, int]]:
    """How many slots of each first replica name each other replica second, exact to one slot in
    every row and column.

    Second places follow the weights, for each replica and for each pair. So for any set of dead
    replicas, a live one gets at most its own share more than its fair share of the rest
    (docs/control-plane.md). `before` counts the existing pairs, which are kept where the counts
    stay exact.
    """
    rng = random.Random(f"{seed}/seconds")
    whole = sum(weight for weight in weights.values() if weight > 0)
    names = [index for index, weight in sorted(weights.items()) if weight > 0]
    counts: dict[int, dict[int, int]] = {}
    open_cells: dict[int, list[int]] = {}
    missing: dict[int, int] = {}
    wanted = dict.fromkeys(names, 0.0)
    for first, quota in quotas.items():
        rest = whole - weights[first]
        others = [index for index in names if index != first]
        counts[first] = {index: quota * weights[index] // rest for index in others}
        open_cells[first] = [index for index in others if quota * weights[index] % rest]
        missing[first] = quota - sum(counts[first].values()) if others else 0
        for index in others:
            wanted[index] += quota * weights[index] / rest - counts[first][index]
    low = {index: math.floor(share + 1e-9) for index, share in wanted.items()}
    high = {index: math.ceil(share - 1e-9) for index, share in wanted.items()}
    column = dict.fromkeys(names, 0)
    chosen: dict[int, set[int]] = {first: set() for first in quotas}
    for first, count in missing.items():
        for index in open_cells[first]:
            had = before.get((first, index), 0) > counts[first][index]
            if had and len(chosen[first]) < count and column[index] < high[index]:
                chosen[first].add(index)
                column[index] += 1
    for first in rng.sample(sorted(missing), len(missing)):
        free = [index for index in rng.sample(open_cells[first], len(open_cells[first])) if index not in chosen[first]]
        free.sort(key=lambda index: column[index] - wanted[index])
        for index in free[: missing[first] - len(chosen[first])]:
            chosen[first].add(index)
            column[index] += 1
    while over := [index for index in names if column[index] > high[index]]:
        if not _shift(chosen, open_cells, column, over, [i for i in names if column[i] < high[i]]):
            break
    while under := [index for index in names if column[index] < low[index]]:
        if not _shift(chosen, open_cells, column, [i for i in names if column[i] > low[i]], under):
            break
    for first, extra in chosen.items():
        for index in extra:
            counts[first][index] += 1
    return counts


def _shift(
    chosen: dict[int, set[int]],
    open_cells: Mapping[int, list[int]],
    column: dict[int, int],
    sources: Sequence[int],
    targets: Sequence[int],
) -> bool:
    """Moves one unit from a source column to a target column along a shortest path of rows. Returns
    False if none exists.
    """
    came: dict[int, tuple[int, int] | None] = dict.fromkeys(sources)
    ends, queue = set(targets), deque(sources)
    while queue:
        at = queue.popleft()
        if at in ends:
            column[at] += 1
            while (step := came[at]) is not None:
                row, before = step
                chosen[row].add(at)
                chosen[row].discard(before)
                at = before
            column[at] -= 1
            return True
        for row, has in chosen.items():
            if at in has:
                for index in open_cells[row]:
                    if index not in has and index not in came:
                        came[index] = (row, at)
                        queue.append(index)
    return False


def pair(previous: Pairs, size: int, weights: Mapping[int, int], seed: str) -> Pairs:
    """First and second replica of `size` slots; the seconds of a replica's slots are spread over
    the others by weight.

    `previous` may have another size: its slots then repeat or are cut. If all weights are zero,
    every slot names replica 0, which is not a member.
    """
    quotas = apportion(weights, size)
    if not quotas:
        return ((0, 0),) * size
    before: list[tuple[int, int] | None] = [
        previous[slot % len(previous)] if previous else None for slot in range(size)
    ]
    firsts = reassign([old[0] if old else None for old in before], quotas, seed)
    stayed = [old[1] if (old := before[slot]) and old[0] == first else None for slot, first in enumerate(firsts)]
    kept = Counter((first, second) for first, second in zip(firsts, stayed, strict=True) if second is not None)
    counts = balanced_seconds(quotas, weights, kept, seed)
    seconds = list(firsts)
    for index in quotas:
        if not counts[index]:
            continue
        places = [slot for slot, first in enumerate(firsts) if first == index]
        chosen = reassign([stayed[slot] for slot in places], counts[index], f"{seed}/{index}")
        for slot, second in zip(places, chosen, strict=True):
            seconds[slot] = second
    return tuple(zip(firsts, seconds, strict=True))


def drained(pairs: Pairs, draining: frozenset[int], weights: Mapping[int, int]) -> Pairs:
    """The pairs with draining replicas moved from first to second place.

    If both replicas of a slot drain, the slot goes to a staying replica with fewer slots than its
    share: to the first such one in an order that depends on the slot alone, so that another drain
    moves few of these slots. If all replicas drain, the pairs stay unchanged.
    """
    stay = {index: weight for index, weight in sorted(weights.items()) if weight > 0 and index not in draining}
    if not stay or not draining:
        return pairs
    result: list[tuple[int, int]] = []
    load = dict.fromkeys(stay, 0)
    for first, second in pairs:
        if first in draining and second in stay:
            first, second = second, first
        if first in load:
            load[first] += 1
        result.append((first, second))
    share = apportion(stay, len(pairs))
    for slot, (first, _) in enumerate(result):
        if first not in draining:
            continue
        heir = next(index for index in _order(slot) if load.get(index, 0) < share.get(index, 0))
        load[heir] += 1
        result[slot] = (heir, first)
    return tuple(result)


@cache
def _order(slot: int) -> tuple[int, ...]:
    """All replica indices in a pseudo-random order that depends on the slot alone."""
    return tuple(random.Random(slot).sample(range(MAX_INDEX), MAX_INDEX))


def round_robin(size: int, weights: Mapping[int, int]) -> Pairs:
    """Slots in smooth weighted order, for round robin by packet; second places are spread as in
    `pair`.
    """
    quotas = apportion(weights, size)
    if not quotas:
        return ((0, 0),) * size
    counts = balanced_seconds(quotas, weights, {}, "round robin")
    seconds = {index: iter(smooth(row) if row else [index] * quotas[index]) for index, row in counts.items()}
    return tuple((first, next(seconds[first])) for first in smooth(quotas))

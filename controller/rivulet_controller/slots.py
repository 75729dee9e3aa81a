"""Which replica each slot of a service names first and second. Pure functions over replica indices.

A flow's slot keeps its replica for as long as weights allow, so a changed membership moves only the slots that
must move. Shares are exact to one slot (largest remainder).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from .state import Pairs


def apportion(weights: Mapping[int, int], total: int) -> dict[int, int]:
    """How many of `total` slots each replica gets: by weight, largest remainder, ties to the lower index.

    A weight above zero gets at least one slot where there are as many slots as replicas.
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
    """Smooth weighted round robin: each replica `quotas[i]` times, spread as evenly as it goes."""
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
    """Slots with exactly these quotas, as few as possible of them changed from `previous`.

    `seed` (the service's name) permutes the order, so that neighbouring slots name different replicas.
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


def pair(previous: Pairs, size: int, weights: Mapping[int, int], seed: str) -> Pairs:
    """Firsts and seconds of `size` slots: seconds of each replica's slots are spread over the others by weight.

    `previous` may have another size; its slots repeat or end. Nobody with a weight: replica 0, which is no member.
    """
    quotas = apportion(weights, size)
    if not quotas:
        return ((0, 0),) * size
    before: list[tuple[int, int] | None] = [
        previous[slot % len(previous)] if previous else None for slot in range(size)
    ]
    firsts = reassign([old[0] if old else None for old in before], quotas, seed)
    seconds = list(firsts)
    for index in quotas:
        places = [slot for slot, first in enumerate(firsts) if first == index]
        others = apportion({other: weight for other, weight in weights.items() if other != index}, len(places))
        if not others:
            continue
        kept = [old[1] if (old := before[slot]) and old[0] == index else None for slot in places]
        for slot, second in zip(places, reassign(kept, others, f"{seed}/{index}"), strict=True):
            seconds[slot] = second
    return tuple(zip(firsts, seconds, strict=True))


def drained(pairs: Pairs, draining: frozenset[int], weights: Mapping[int, int]) -> Pairs:
    """The pairs with draining replicas moved from first to second place.

    Where the second drains too, one that does not takes the first place. All draining: nobody is.
    """
    stay = sorted(index for index, weight in weights.items() if weight > 0 and index not in draining)
    if not stay or not draining:
        return pairs
    result = []
    for slot, (first, second) in enumerate(pairs):
        if first in draining:
            first, second = (second if second not in draining and second in stay else stay[slot % len(stay)]), first
        result.append((first, second))
    return tuple(result)


def round_robin(size: int, weights: Mapping[int, int]) -> Pairs:
    """Slots in smooth weighted order, for round robin by packet; seconds follow the same rule."""
    quotas = apportion(weights, size)
    if not quotas:
        return ((0, 0),) * size
    seconds = {}
    for index, quota in quotas.items():
        others = apportion({other: weight for other, weight in weights.items() if other != index}, quota)
        seconds[index] = iter(smooth(others) if others else [index] * quota)
    return tuple((first, next(seconds[first])) for first in smooth(quotas))

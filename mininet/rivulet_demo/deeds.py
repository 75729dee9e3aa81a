"""Actions on a rack while clients download, and their times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .plan import Plan
from .scenario import Standing


@dataclass(frozen=True, slots=True)
class Deed:
    """An action, `at` seconds after the Rivulet client's first byte (0: at once).

    The action calls `Standing.mark` itself.
    """

    at: float
    do: Callable[[Standing], None]


def of_plan(plan: Plan) -> list[Deed]:
    """Kills and restarts of replicas, from a plan."""
    return [Deed(s.at, partial(Standing.kill if s.kill else Standing.restart, name=s.replica)) for s in plan]

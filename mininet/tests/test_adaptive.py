"""Tests of the reactions of streams that are computed from the servers' lines."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rivulet_demo.adaptive import LAYERS, NS, Journal, layer_at, rate_at, reactions, spent


def served(*steps: tuple[float, int]) -> list[dict[str, object]]:
    """Lines of layers at these seconds."""
    return [{"event": "layer", "at": round(at * NS), "to": to, "sample_ms": 100.0} for at, to in steps]


CHANGES = [(0, 3.0), (10 * NS, 0.7), (20 * NS, 1.4), (30 * NS, 0.3)]


def test_reaction_lasts_until_first_fitting_layer() -> None:
    lines = served((0.1, 0), (0.2, 3), (10.1, 2), (10.3, 1), (10.4, 0), (21, 2), (30.5, 0))
    first, second = reactions(CHANGES, lines, LAYERS)
    assert (first.at, first.before, first.layer) == (10 * NS, 3, 1)
    assert first.seconds == pytest.approx(0.3) and first.rtt == pytest.approx(0.1)
    assert (second.at, second.before, second.layer, second.seconds) == (30 * NS, 2, 0, 0.5)


def test_fitting_layer_is_no_reaction_and_missing_one_is_infinite() -> None:
    assert reactions(CHANGES[:2], served((0.1, 1)), LAYERS) == []
    assert reactions(CHANGES[:2], [], LAYERS) == []
    # A layer after the next change is not a reaction to this one.
    never, later = reactions(CHANGES[:3], served((0.1, 3), (20.1, 0)), LAYERS)
    assert math.isinf(never.seconds) and later.seconds == pytest.approx(0.1)


def test_shares_of_layers_within_window() -> None:
    lines = served((1, 0), (4, 2), (6, 1))
    assert spent(lines, 0, 10 * NS) == pytest.approx({0: 0.3, 2: 0.2, 1: 0.4})
    assert spent(lines, 5 * NS, 7 * NS) == pytest.approx({2: 0.5, 1: 0.5})
    assert (layer_at(lines, NS - 1), layer_at(lines, 4 * NS)) == (None, 2)
    assert (rate_at(CHANGES, 10 * NS - 1), rate_at(CHANGES, 10 * NS)) == (3.0, 0.7)


def test_incomplete_line_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    assert journal.read() == [] and journal.last("layer") == {}
    whole = "".join(json.dumps(line) + "\n" for line in served((1, 0), (2, 1)))
    with path.open("a") as file:
        file.write(whole[:-10])
        file.flush()
        assert [line["to"] for line in journal.of("layer")] == [0]
        file.write(whole[-10:])
        file.flush()
    assert journal.last("layer")["to"] == 1 and len(journal.read()) == 2

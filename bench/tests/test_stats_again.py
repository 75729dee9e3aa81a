"""Tests of results with parts that were measured again."""

from __future__ import annotations

from rivulet_bench.stats import updated


def test_updated_part_has_own_machine() -> None:
    kept = {"machine": {"cpu": "old"}, "took_s": 7.0, "cost": {"a": 1}, "kills": {"b": 2}}
    found = updated(kept, {"nginx_version": "x", "took_s": 1.0, "cost": {"a": 3}}, ["cost"])
    again = found.pop("again")
    assert found == kept | {"cost": {"a": 3}}
    assert list(again) == ["cost"] and "date" in again["cost"]
    twice = updated(found | {"again": again}, {"flood": {"c": 4}}, ["flood"])
    assert set(twice["again"]) == {"cost", "flood"} and twice["cost"] == {"a": 3}

"""Like test_trods_survival.py but without a store: another replica knows only clients' timestamps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from netrack import NetRack, needs_rack
from test_trods_survival import (
    HARMS,
    STORE,
    PlainRack,
    download,
    holder,
    outlives_an_upgrade,
    standing,
    survives_two_harms,
)

pytestmark = needs_rack

PORT = 43001


class StampedRack(PlainRack):
    """A rack with nginx and an agent on each replica, and no store."""

    def description(self) -> str:
        return super().description().replace(f"{{store: ['{STORE}']}}", "{objects: /list}")

    def start_controller(self) -> None:
        self.put_list()
        NetRack.start_controller(self)

    def put_list(self) -> None:
        """The list of objects that timestamps name."""
        (self.file.parent / "list").write_text("/big\n/small\n")

    def agrees(self) -> bool:
        """Whether all replicas have reported the same content."""
        content = self.client.get("/api/services")[0]["content"]
        return content is not None and bool(content["version"]) and not content["others"]


class BothRack(StampedRack):
    """A rack with both a list and a store."""

    def description(self) -> str:
        return PlainRack.description(self).replace("{store:", "{objects: /list, store:")

    def start_controller(self) -> None:
        self.put_list()
        PlainRack.start_controller(self)


@contextmanager
def agreeing(rack: StampedRack) -> Iterator[StampedRack]:
    """Waits until the rack is built and all replicas have the same content."""
    with standing(rack):
        rack.until(rack.agrees, "they agree on what they have")
        yield rack


@pytest.fixture(scope="module")
def stamped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StampedRack]:
    """One rack for all tests of this file."""
    with agreeing(StampedRack(tmp_path_factory.mktemp("stamps"), "embedded")) as rack:
        yield rack


def test_upgrade_without_store_moves_download(stamped: StampedRack) -> None:
    outlives_an_upgrade(stamped, PORT + 50)


@pytest.mark.long
def test_named_downloads_survive_death_and_upgrade_with_store(tmp_path: Path) -> None:
    with agreeing(BothRack(tmp_path, "embedded")) as rack:
        flow = download(rack, PORT + 60)
        one = holder(rack, flow)
        heal = HARMS["link"](rack, one)
        holder(rack, flow, one)
        heal()
        assert flow.ended_well(), rack.status()
        rack.until(rack.all_well, "all are back")
        outlives_an_upgrade(rack, PORT + 61)
        assert rack.trods("refused") == 0


@pytest.mark.parametrize("first, second", [("nginx", "link"), pytest.param("agent", "freeze", marks=pytest.mark.long)])
def test_download_without_store_survives_two_replicas(stamped: StampedRack, first: str, second: str) -> None:
    rack = stamped
    adopted = rack.trods("adopted")
    survives_two_harms(rack, PORT + list(HARMS).index(first), first, second)
    rack.until(lambda: rack.trods("adopted") > adopted, "it is counted")
    assert rack.trods("refused") == 0

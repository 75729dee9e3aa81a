"""As in test_trods_survival.py, without a store: what clients' timestamps say is all that another replica goes by."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from netrack import NetRack, needs_rack
from test_adoption_rack import holders
from test_trods_survival import HARMS, MEGABYTES, STORE, PlainRack, download, holder

pytestmark = needs_rack

PORT = 43001


class StampedRack(PlainRack):
    """A rack whose replicas are nginx with an agent beside it, and nothing else."""

    def description(self) -> str:
        return super().description().replace(f"{{store: ['{STORE}']}}", "{objects: /list}")

    def start_controller(self) -> None:
        (self.file.parent / "list").write_text("/big\n/small\n")
        NetRack.start_controller(self)

    def agrees(self) -> bool:
        """Whether all replicas have said that they have the same."""
        content = self.client.get("/api/services")[0]["content"]
        return content is not None and bool(content["version"]) and not content["others"]


@pytest.fixture(scope="module")
def stamped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StampedRack]:
    """One for all tests here."""
    rack = StampedRack(tmp_path_factory.mktemp("stamps"), "embedded")
    try:
        rack.build(MEGABYTES)
        rack.until(rack.all_well, "all take plain TCP")
        rack.until(rack.agrees, "they agree on what they have")
        yield rack
    finally:
        rack.down()


@pytest.mark.parametrize("first, second", [("nginx", "link"), pytest.param("agent", "freeze", marks=pytest.mark.long)])
def test_a_download_outlives_two_replicas_without_a_store(stamped: StampedRack, first: str, second: str) -> None:
    rack = stamped
    adopted = rack.trods("adopted")
    flow = download(rack, PORT + list(HARMS).index(first))
    one = holder(rack, flow)
    heal_one = HARMS[first](rack, one)
    two = holder(rack, flow, one)
    # However slow this machine is, it is not over before the rest; its kernel goes on answering.
    flow.process.popen.send_signal(signal.SIGSTOP)
    try:
        heal_two = HARMS[second](rack, two)
        three = holder(rack, flow, one, two)
        heal_one()
        heal_two()
        rack.until(rack.all_well, "both are back")
        assert flow.port in holders(rack, (three,)), "what was adopted is not taken back"
    finally:
        flow.process.popen.send_signal(signal.SIGCONT)
    assert flow.ended_well(), rack.status()
    rack.until(lambda: rack.trods("adopted") > adopted, "it is counted")
    assert rack.trods("refused") == 0

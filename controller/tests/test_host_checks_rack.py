"""A rack changes where requests are checked while a download runs: the ToR gets another program."""

from __future__ import annotations

from netrack import NetRack, needs_rack

pytestmark = needs_rack


def describe(rack: NetRack, checks: str) -> int:
    """Puts `checks` in force and waits until every replica takes plain TCP.

    Returns how often the controller has replaced the switch's program so far.
    """
    lines = [line for line in rack.description().splitlines(keepends=True) if "pipeline:" not in line]
    rack.yaml.write_text("".join(lines) + f"checks: {checks}\n")
    rack.until(rack.all_live, f"checks: {checks}", 120.0)
    rack.until(rack.take_plain_tcp, "all take plain TCP", 60.0)
    return rack.log("controller").count("its program differs from ours: replacing it")


def test_download_survives_a_change_of_checks(rack: NetRack) -> None:
    failed = rack.log("controller").count("readings of switch")
    replaced = describe(rack, "tor")
    download = rack.under_way()
    assert describe(rack, "host") == replaced + 1
    rack.finish(download)
    assert rack.spaces["c1"].run(*rack.curl("small")) == "small"
    rack.finish(rack.download())
    assert describe(rack, "tor") == replaced + 2
    rack.finish(rack.download())
    assert rack.spaces["c1"].run(*rack.curl("small")) == "small"
    assert rack.log("controller").count("readings of switch") == failed, "each program's counters are read"

"""A rack with VLANs and without configured MAC addresses: Linux hosts answer ARP and neighbour
discovery.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from netrack import REPLICAS, SWITCHES, NetRack, needs_rack

pytestmark = needs_rack

CLIENT_VLAN, REPLICA_VLAN = 10, 20
TAP = "vlan10"
PING = ("ping", "-c", "3", "-i", "0.2", "-W", "2")
"""One reply is enough."""


class VlanRack(NetRack):
    """The client's frames are tagged with VLAN 10; r1 and r2 are untagged in VLAN 20, r3 in none."""

    def description(self) -> str:
        """The YAML of the plain rack, with VLANs and without the neighbours' MAC addresses."""
        text = super().description()
        for number in (1, 2, 3):
            text = text.replace(f'"mac": "02:00:00:00:02:{number:02x}", ', "")
        vlans = [
            f"{{id: {CLIENT_VLAN}, tagged: [1]}}",
            f"{{id: {REPLICA_VLAN}, untagged: [101, 102]}}",
        ]
        hosts = [f"{{ip: {ip}, port: 1, vlan: {CLIENT_VLAN}}}" for ip in ("10.0.1.1", '"fd00:1::1"')]
        text = text.replace("[10.0.1.254, 10.0.2.254]", '[10.0.1.254, 10.0.2.254, "fd00:1::fe"]')
        before, _, rest = text.partition("    hosts: ")
        _, _, after = rest.partition("\n")
        return f"{before}    vlans: [{', '.join(vlans)}]\n    hosts: [{', '.join(hosts)}]\n{after}"

    def address(self, name: str, device: str, ip: str) -> None:
        if name == "c1":
            # Some kernels lack VLAN devices.
            program = Path(__file__).with_name("vlan_pump.py")
            space, mac = self.spaces[name], "02:00:00:00:01:01"
            self.start("pump", [sys.executable, str(program), device, TAP, str(CLIENT_VLAN)], space)
            self.until(lambda: "ready" in self.log("pump"), "the tap device is there", 10.0)
            space.ip(f"link set dev {TAP} address {mac} mtu 1496 up", f"addr add fd00:1::1/64 dev {TAP} nodad")
            device = TAP
        super().address(name, device, ip)


@pytest.fixture(params=["embedded", pytest.param("bmv2", marks=pytest.mark.long)])
def rack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VlanRack]:
    if request.param not in SWITCHES:
        pytest.skip("the switch is not installed")
    built = VlanRack(tmp_path, request.param)
    try:
        built.build(2)
        yield built
    finally:
        built.down()


def test_hosts_are_found_and_served_across_vlans(rack: VlanRack) -> None:
    def found() -> bool:
        neighbours = rack.status()["switches"][0]["neighbours"]
        return [n["state"] for n in neighbours] == ["found", "found"]

    rack.until(found, "ARP and neighbour discovery find the client")
    seen = {n["ip"]: n["mac"] for n in rack.status()["switches"][0]["neighbours"]}
    assert seen == {"10.0.1.1": "02:00:00:00:01:01", "fd00:1::1": "02:00:00:00:01:01"}
    rack.finish(rack.download())
    entries = rack.client.get("/api/switches/tor1/entries")
    tagged = [line for line in entries if line.startswith("neighbours") and f"vlan={CLIENT_VLAN:#x})" in line]
    assert tagged and all("dst_mac=0x20000000101" in line for line in tagged)
    assert sum(f"vlan={REPLICA_VLAN:#x})" in line for line in entries if line.startswith("neighbours")) == 2
    # The ToR itself answers in the VLAN, and routes (not bridges) packets between VLANs of
    # replicas.
    for source, target in (("c1", "10.0.1.254"), ("c1", "fd00:1::fe"), ("r1", "10.0.2.254"), ("r1", "10.0.2.2")):
        rack.spaces[source].run(*PING, target)
    bridged = ("ping", "-c", "1", "-W", "1", "10.0.2.3")
    assert not rack.spaces["r1"].succeeds(*bridged), "another VLAN is not reached"
    rack.until(rack.all_live, "all are live")
    assert len(rack.status()["replicas"]) == len(REPLICAS)


@pytest.mark.parametrize("rack", ["embedded"], indirect=True)
def test_changed_mac_is_one_changed_row(rack: VlanRack) -> None:
    rack.finish(rack.download())
    excluded = rack.exclusions()
    rack.until(rack.take_plain_tcp, "all take plain TCP")
    writes = rack.status()["switches"][0]["writes"]
    rack.spaces["c1"].ip(f"link set dev {TAP} address 02:00:00:00:01:77")

    def moved() -> bool:
        neighbours = rack.status()["switches"][0]["neighbours"]
        return bool({n["mac"] for n in neighbours} == {"02:00:00:00:01:77"})

    # Its first frame raises an event about a new source, which makes its request due early.
    rack.spaces["c1"].run("ping", "-c", "2", "-W", "2", "10.0.1.254")
    rack.until(moved, "the question finds it", 10.0)
    rack.finish(rack.download())
    # Changes two rows of neighbours (IPv4 and IPv6), and the source that the bridge learned. If a
    # busy machine excluded a replica, its readmission changes one more row.
    assert rack.status()["switches"][0]["writes"] - writes <= 6 + rack.exclusions() - excluded


@pytest.mark.parametrize("rack", ["embedded"], indirect=True)
def test_replica_reports_changed_mac(rack: VlanRack) -> None:
    rack.spaces["r1"].ip("link set dev r1-eth0 address 02:00:00:00:02:77")

    def believed() -> bool:
        entries = rack.client.get("/api/switches/tor1/entries")
        return any(e.startswith("heartbeat_sources") and "source=0x20000000277" in e for e in entries)

    rack.until(believed, "it reported its new address")
    rack.until(rack.all_live, "its heartbeats arrive")
    rack.finish(rack.download())

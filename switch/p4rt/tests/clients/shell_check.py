#!/usr/bin/env python3
"""Drives a switch with p4runtime-shell, unmodified: pipeline, tables, profiles, counters, packets.

    shell_check.py ADDRESS [PEER]

Like finsy_check.py, but with p4runtime-shell 0.0.6, which needs a separate environment (protobuf below 3.21).
The shell contains the messages of release 1.4 and knows no registers or value sets.
"""

import sys
from pathlib import Path

import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeWriteException

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
PEER = int(sys.argv[2]) if len(sys.argv) > 2 else 3
FRAME = bytes.fromhex("0200000000010200000001051234") + b"some payload"


def log_step(what: str) -> None:
    print(f"p4runtime-shell: {what}")


def main() -> None:
    config = sh.FwdPipeConfig(str(PROGRAMS / "everything.p4info.txtpb"), str(PROGRAMS / "everything.json"))
    # Above the ids of this run's other clients, because the switch remembers the highest.
    sh.setup(device_id=0, grpc_addr=sys.argv[1], election_id=(2**62, 1), config=config)
    log_step("connected")

    route = sh.TableEntry("MainIngress.routes")(action="forward")
    route.match["hdr.ipv4.dst"] = "10.0.0.0/8"
    route.action["port"] = "2"
    route.insert()
    acl = sh.TableEntry("MainIngress.acl")(action="set_class")
    acl.match["hdr.ipv4.src"] = "10.0.0.0 &&& 255.0.0.0"
    acl.match["hdr.ipv4.length"] = "1..100"
    acl.match["std.ingress_port"] = "1"
    acl.priority = 10
    acl.action["class"] = "5"
    acl.insert()
    member = sh.ActionProfileMember("MainIngress.selector")(member_id=1, action="forward")
    member.action["port"] = "3"
    member.insert()
    group = sh.ActionProfileGroup("MainIngress.selector")(group_id=1)
    group.add(1, weight=2)
    group.insert()
    grouped = sh.TableEntry("MainIngress.groups")(group_id=1)
    grouped.match["hdr.ipv4.dst"] = "10.1.1.1"
    grouped.insert()
    multicast = sh.MulticastGroupEntry(5)
    multicast.add(2, 1).add(3, 1)
    multicast.insert()
    session = sh.CloneSessionEntry(8)
    session.add(510, 1)
    session.insert()
    counter = sh.CounterEntry("MainIngress.port_counter")
    counter.index = 3
    counter.packet_count = 7
    counter.byte_count = 8
    counter.modify()
    log_step("entities are accepted")

    read = list(sh.TableEntry("MainIngress.routes").read())
    assert len(read) == 1 and read[0].action["port"].value == b"\x02", read
    found = {e.index: (e.packet_count, e.byte_count) for e in sh.CounterEntry("MainIngress.port_counter").read()}
    assert found[3] == (7, 8) and len(found) == 16, found
    direct = sh.DirectCounterEntry("MainIngress.route_counter")
    direct.table_entry.match["hdr.ipv4.dst"] = "10.0.0.0/8"
    assert len(list(direct.read())) == 1
    assert len(list(sh.ActionProfileGroup("MainIngress.selector").read())) == 1
    log_step("and read back")

    try:
        route.insert()
        raise AssertionError("the entry is there already")
    except P4RuntimeWriteException as error:
        assert "ALREADY_EXISTS" in str(error), error
    log_step("an error names its update")

    default = sh.TableEntry("MainIngress.l2")(action="to_cpu", is_default=True)
    default.action["reason"] = "5"
    default.modify()
    packet_in = sh.PacketIn()
    packet_out = sh.PacketOut(FRAME, egress_port="3", mode="0")
    packet_out.send()
    packets = list(packet_in.sniff(timeout=3))
    assert len(packets) == 1, packets
    assert packets[0].packet.payload == FRAME
    values = [m.value for m in packets[0].packet.metadata]
    assert values == [bytes([PEER]), b"\x05"], values
    log_step("a packet was sent and received, with its metadata")

    for entry in (grouped, group, member, multicast, session, acl, route):
        entry.delete()
    log_step("everything worked")
    sh.teardown()


if __name__ == "__main__":
    main()

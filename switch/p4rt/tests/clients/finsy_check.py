#!/usr/bin/env python3
"""Drives a switch with finsy, unmodified: pipeline, entries of every kind, packets, digests, idle timeouts.

    finsy_check.py ADDRESS [PEER]

The switch is `cargo run -p rivulet-p4rt --example bare -- ADDRESS`, or any switch with a cable from port 3
to port PEER. Install finsy 0.30 from PyPI into a separate environment. The script prints one line for each step that
succeeds and stops with an error at the first step that fails.
"""

import asyncio
import sys
from pathlib import Path

import finsy as fy

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
# The port at which a packet sent by port 3 is received again.
PEER = int(sys.argv[2]) if len(sys.argv) > 2 else 3
FRAME = bytes.fromhex("0200000000010200000001051234") + b"some payload"


def log_step(what: str) -> None:
    print(f"finsy: {what}")


async def one(switch: fy.Switch, entity: object) -> object:
    """The only entity that a read finds."""
    (found,) = [e async for e in switch.read(entity)]
    return found


async def entries(switch: fy.Switch) -> None:
    """Writes, reads and deletes entities of every kind."""
    route = fy.P4TableEntry(
        "routes",
        match=fy.P4TableMatch({"hdr.ipv4.dst": "10.0.0.0/8"}),
        action=fy.P4TableAction("forward", port=2),
        counter_data=fy.P4CounterData(),
    )
    acl = fy.P4TableEntry(
        "acl",
        match=fy.P4TableMatch(
            {
                "hdr.ipv4.src": "10.0.0.0/255.0.0.0",
                "std.ingress_port": 1,
                "hdr.ipv4.protocol": 17,
                "hdr.ipv4.length": "1...100",
            }
        ),
        action=fy.P4TableAction("set_class", **{"class": 5}),
        priority=10,
        meter_config=fy.P4MeterConfig(cir=1, cburst=2, pir=3, pburst=4),
    )
    one_shot = fy.P4TableEntry(
        "groups",
        match=fy.P4TableMatch({"hdr.ipv4.dst": "10.1.1.1"}),
        action=fy.P4IndirectAction(
            [(1, fy.P4TableAction("forward", port=1)), (2, fy.P4TableAction("forward", port=2))]
        ),
    )
    member = fy.P4ActionProfileMember("profile", member_id=1, action=fy.P4TableAction("forward", port=3))
    indirect = fy.P4TableEntry(
        "members", match=fy.P4TableMatch({"hdr.ipv4.ttl": 64}), action=fy.P4IndirectAction(member_id=1)
    )
    group = fy.P4MulticastGroupEntry(5, replicas=(2, 3))
    session = fy.P4CloneSessionEntry(8, class_of_service=1, packet_length_bytes=64, replicas=(510,))
    await switch.insert([member])
    everything = [route, acl, one_shot, indirect, group, session]
    await switch.insert(everything)
    await switch.modify(
        [
            fy.P4TableEntry("keyless", is_default_action=True, action=fy.P4TableAction("set_class", **{"class": 3})),
            fy.P4CounterEntry("port_counter", index=3, data=fy.P4CounterData(byte_count=5, packet_count=6)),
            fy.P4MeterEntry("port_meter", index=2, config=fy.P4MeterConfig(cir=1, cburst=2, pir=3, pburst=4)),
            fy.P4RegisterEntry("stamps", index=1, data=42),
            fy.P4DirectCounterEntry(
                "route_counter", table_entry=route, data=fy.P4CounterData(byte_count=7, packet_count=8)
            ),
        ]
    )
    log_step("entities of every kind are accepted")

    read = await one(switch, fy.P4TableEntry("acl"))
    assert (read.priority, read.action) == (acl.priority, acl.action), read
    assert (await one(switch, fy.P4RegisterEntry("stamps", index=1))).data == 42
    counter = await one(switch, fy.P4CounterEntry("port_counter", index=3))
    assert (counter.byte_count, counter.packet_count) == (5, 6), counter
    direct = await one(switch, fy.P4DirectCounterEntry("route_counter", table_entry=route))
    assert (direct.byte_count, direct.packet_count) == (7, 8), direct
    assert len([e async for e in switch.read(fy.P4TableEntry())]) == 4 + 6
    assert len([e async for e in switch.read(fy.P4MulticastGroupEntry())]) == 1
    assert (await one(switch, fy.P4CloneSessionEntry(8))).packet_length_bytes == 64
    log_step("they are read back, one by one and all at once")

    other = fy.P4TableEntry(
        "routes", match=fy.P4TableMatch({"hdr.ipv4.dst": "11.0.0.0/8"}), action=fy.P4TableAction("drop")
    )
    try:
        await switch.insert([route, other])
        raise AssertionError("the first of the batch is there already")
    except fy.P4ClientError as error:
        assert sorted(d.canonical_code.name for d in error.details.values()) == ["ALREADY_EXISTS"], error.details
    log_step("an error names its update")
    await switch.delete([*everything, other])
    await switch.delete([member])
    left = [e async for e in switch.read(fy.P4TableEntry())]
    assert all(e.is_const for e in left), left
    log_step("and deleted; const entries stay")


async def messages(switch: fy.Switch) -> None:
    """Packets out and in, a digest, an idle entry."""
    await switch.modify(
        [
            fy.P4TableEntry("l2", is_default_action=True, action=fy.P4TableAction("to_cpu", reason=5)),
            fy.P4TableEntry("aging", is_default_action=True, action=fy.P4TableAction("learn")),
        ]
    )
    await switch.insert([fy.P4DigestEntry("learn_t", max_list_size=1, max_timeout_ns=0, ack_timeout_ns=0)])
    packets, digests = switch.read_packets(), switch.read_digests("learn_t")
    waiting = [asyncio.ensure_future(anext(aiter(x))) for x in (packets, digests)]
    await asyncio.sleep(0.1)
    # Sent by port 3, where this switch receives it again.
    await switch.write(fy.P4PacketOut(FRAME, egress_port=3, mode=0))
    packet, digest = await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert packet.payload == FRAME and packet["ingress_port"] == PEER and packet["reason"] == 5, packet
    log_step("a packet was sent and received, with its metadata")
    assert digest.data == [{"src": 0x020000000105, "port": PEER}], digest
    log_step("a digest arrived, with its field names")

    idle = switch.read_idle_timeouts()
    waiting = asyncio.ensure_future(anext(aiter(idle)))
    await switch.insert(
        [
            fy.P4TableEntry(
                "aging",
                match=fy.P4TableMatch({"hdr.ethernet.src": 7}),
                action=fy.P4TableAction("nothing"),
                idle_timeout_ns=300_000_000,
            )
        ]
    )
    notification = await asyncio.wait_for(waiting, 5)
    assert [e.table_id for e in notification.table_entry] == ["aging"], notification
    log_step("an idle entry was reported")


async def main() -> None:
    options = fy.SwitchOptions(
        p4info=PROGRAMS / "everything.p4info.txtpb", p4blob=PROGRAMS / "everything.json", device_id=0, p4force=True
    )
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ready(switch: fy.Switch) -> None:
        try:
            log_step(f"connected as primary: {switch.is_primary}")
            await entries(switch)
            await messages(switch)
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)
            raise

    options = options(ready_handler=ready)
    switch = fy.Switch("sw1", sys.argv[1], options)
    running = asyncio.ensure_future(switch.run())
    await asyncio.wait({done, running}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    if not done.done():
        sys.exit("finsy: did not get ready within 30 seconds")
    done.result()
    log_step("everything worked")


if __name__ == "__main__":
    asyncio.run(main())

"""A switch's desired entries: the rows of docs/dataplane.md, in the P4 program's names and widths."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from sample_rack import ARTIFACTS, LIVES, NAMES, RACK, TWO_RACKS, config, fragments, lines, numbers_of, weights_of

from rivulet_controller.config import Config
from rivulet_controller.desired import ORDER
from rivulet_controller.entry import Entry, Meter, difference
from rivulet_controller.keys import RACK_RING, KeyRing, Kind, Lives, derived, words
from rivulet_controller.l2 import address_int
from rivulet_controller.names import ENUMS, Names, NamesError
from rivulet_controller.numbers import Tor, tor_of
from rivulet_controller.placement import number
from rivulet_controller.state import State
from rivulet_controller.updates import update

WEB = f"{address_int(config().services[0].addresses[0]):#x}"


def everything(text: str) -> list[Entry]:
    rack = config(text)
    return [item for s in rack.switches for f in fragments(rack, s.name).values() for item in f]  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        RACK,
        TWO_RACKS,
        TWO_RACKS.replace("ip: 10.0.2.1}", "ip: 10.0.2.1, tunnel: gue}"),
        RACK
        + "    policy: round_robin\n    meters: {syn: 100, timeout: 10, restart: 1}\n    checks: {unjudged: drop}\n",
        RACK.replace("ip: 10.0.2.2}", "ip: 10.0.2.2, maintenance: true}"),
        TWO_RACKS + "    plain: stateless\n",
    ],
)
def test_every_entry_fits_committed_p4info(text: str) -> None:
    for item in everything(text):
        item.entity().encode(NAMES.schema)
        if isinstance(item, Entry):
            assert item.table in ORDER
            table = NAMES.schema.tables[item.table]
            assert item.default or {f.alias for f in table.match_fields} >= {name for name, _ in item.match}


def test_agents_and_switches_get_equal_slots_during_drain() -> None:
    rack, state = config(RACK), State()
    away = frozenset({"r1", "r2"})
    parts = fragments(rack, state=state, draining=away)
    rows = {dict(i.match)["slot"]: dict(i.params) for i in parts["slots web"] if isinstance(i, Entry)}
    service = update(rack, "r3", numbers_of(rack, state), state.rings, state.slots, weights_of(rack), away).services[0]
    assert list(service.slots) == [rows[slot][key] for slot in sorted(rows) for key in ("first", "second")]
    assert {*service.slots[::2]} == {service.replica}


def test_insertion_order_has_every_filled_table() -> None:
    const = {table.alias for table in NAMES.schema.tables if table.is_const}
    assert set(ORDER) == {table.alias for table in NAMES.schema.tables} - const


def test_entries_of_small_rack() -> None:
    found = lines(fragments(config()))
    assert {
        line for line in found if line.startswith(("services", "addresses", "pools", "replicas", "heartbeat", "second"))
    } == {
        f"services[address={WEB} port=0x50] set_service(service=0x1)",
        "services[address=0xfd000009000000000000000000000001 port=0x50] set_service(service=0x1)",
        "addresses[address=0xffff0a0001fe] own_address()",
        "addresses[address=0xfd0000010000000000000000000000fe] own_address()",
        f"addresses[address={WEB}] service_address()",
        "addresses[address=0xfd000009000000000000000000000001] service_address()",
        "pools[pool=0x0] set_pool(bound=0x4e20, copies_group=0x400, members=0x7, settle=0x6590)",
        "replicas[pool=0x0 replica=0x0] rack(next_hop=0x2)",
        "replicas[pool=0x0 replica=0x1] rack(next_hop=0x3)",
        "replicas[pool=0x0 replica=0x2] rack(next_hop=0x4)",
        *(
            f"heartbeat_sources[ingress_port={port:#x} pool=0x0 remote=0x0 replica={index:#x} source={mac:#x}]"
            " admit_heartbeat(readmitted=0x0)"
            for index, port, mac in [(0, 101, 0x20000000201), (1, 102, 0x20000000202), (2, 103, 0x20000000203)]
        ),
        *(
            f"second_chances[ingress_port={port:#x} mac={mac:#x} pool=0x0] handed_on_by(replica={index:#x})"
            for index, port, mac in [(0, 101, 0x20000000201), (1, 102, 0x20000000202), (2, 103, 0x20000000203)]
        ),
    }
    assert "multicast[1024] 101 102#1 103#2" in found
    assert "routes[any] route_to(next_hop=0x1)" in found, "IPv6's default route matches all 128 bits"
    assert "routes[destination=0xffff00000000/0x60] route_to(next_hop=0x1)" in found
    assert (
        "service_config[service=0x1] configure(affinity=0x0, flow_mask=0xf, flow_set=0x2, plain=0x1, policy=0x0,"
        " pool=0x0, slot_key0=…, slot_key1=…, spray_mask=0xf, spray_set=0x2)" in found
    )
    assert (
        "service_checks[service=0x1] set_checks(drop_unjudged=0x0, horizon=0x3d0900, key_mode=0x2, meter_mode=0x2,"
        " nonce_epoch=0x1, range_mode=0x2, replay_mode=0x2, seal_epoch=0x1, sum_mode=0x2, time_mode=0x2)" in found
    )


def test_keys_never_appear_in_text() -> None:
    state = State()
    parts = fragments(config(), tor=Tor(0x0101, 5, True, (0xDEADBEEF, 0xFEEDFACE)), state=state)
    text = repr(parts) + " ".join(lines(parts)) + repr(state.rings)
    secret = state.rings["web"].of(Kind.NONCE)[0].secret
    words = [int.from_bytes(secret[at : at + 4], "little") for at in range(0, 32, 4)]
    words += [int.from_bytes(secret[at : at + 4], "big") for at in range(0, 32, 4)]
    for word in [*words, 0xDEADBEEF, 0xFEEDFACE]:
        assert f"{word:x}" not in text and str(word) not in text
    assert secret.hex() not in text and repr(secret) not in text


def test_nonce_key_words_are_little_endian() -> None:
    state = State()
    parts = fragments(config(), state=state)
    key = next(item for item in parts["service web"] if isinstance(item, Entry) and item.table == "nonce_keys")
    secret = state.rings["web"].of(Kind.NONCE)[0].secret
    params = dict(key.params)
    assert params["k0"].to_bytes(4, "little") + params["k1"].to_bytes(4, "little") == secret[:8]
    assert params["k0_prime"].to_bytes(4, "little") + params["k1_prime"].to_bytes(4, "little") == secret[8:16]


def test_weak_requests_are_metered_by_default() -> None:
    cells = NAMES.members("service_meter_t")

    def rates(rack: Config) -> dict[int, int]:
        items = fragments(rack)["service web"]
        return {i.index: i.cir for i in items if isinstance(i, Meter) and i.meter == "service_meters"}

    meters = rates(config())
    assert {8 + cell for cell in cells.values()} == meters.keys(), "a class without a limit"
    assert sum(meters[8 + cells[name]] for name in ("SYN", "RESTART", "UNPROVED")) < 7800, "what the sketch judges"
    meters = rates(config(RACK + "    meters: {syn: null, unproved: 7}\n"))
    assert 8 + cells["SYN"] not in meters and meters[8 + cells["UNPROVED"]] == 7


def test_agents_and_switches_choose_equal_slots() -> None:
    rack, state = config(), State()
    parts = fragments(rack, state=state)
    configure = next(i for i in parts["service web"] if isinstance(i, Entry) and i.action == "configure")
    rows = {dict(i.match)["slot"]: dict(i.params) for i in parts["slots web"] if isinstance(i, Entry)}
    numbers = number(rack, state)
    numbers = dataclasses.replace(numbers, secret=bytes(range(32)))  # sample_rack's
    service = update(rack, "r1", numbers, state.rings, state.slots, weights_of(rack), frozenset()).services[0]
    params = dict(configure.params)
    assert words(service.slot_key) == (params["slot_key0"], params["slot_key1"])
    assert list(service.slots) == [rows[slot][key] for slot in sorted(rows) for key in ("first", "second")]
    assert words(service.slot_key) != words(derived(bytes(32), "slots", "web")), "it depends on the secret"


def test_service_without_nonce_key_has_no_entries() -> None:
    found = lines(fragments(config(), keys=False))
    assert not any(line.startswith(("services[", "service_config[", "nonce_keys[")) for line in found)
    assert not any(WEB in line for line in found)
    order = {name: place for place, name in enumerate(ORDER)}
    for earlier, later in [("nonce_keys", "service_checks"), ("pools", "slots"), ("slots", "service_config")]:
        assert order[earlier] < order[later]
    inserts = difference([i for f in fragments(config()).values() for i in f], [], ORDER).insert
    tables = [item.table for item in inserts if isinstance(item, Entry)]
    assert tables == sorted(tables, key=lambda t: order[t])
    deletes = difference([], inserts, ORDER).delete
    assert [i.table for i in deletes if isinstance(i, Entry)] == sorted(tables, key=lambda t: -order[t])


def test_withdrawn_nonce_key_is_unusable_before_removal() -> None:
    lives = Lives(seal_rotation=1e6, nonce_rotation=10.0, resume=1e6, horizon=4.0)
    ring = KeyRing()
    for now in (0.0, 0.0, 10.0, 10.0, 15.0):
        ring = ring.tick(now, lives, lambda kind, epoch: True)
    state = State()
    state.set_ring("web", ring)
    usable = {
        line.split("]")[0]: line.rsplit("usable=", 1)[1]
        for line in lines(fragments(config(), state=state))
        if "usable" in line
    }
    assert usable == {
        "nonce_keys[nonce_epoch=0x1 service=0x1": "0x0)",
        "nonce_keys[nonce_epoch=0x2 service=0x1": "0x1)",
    }


def test_drain_changes_slots_and_maintenance_changes_pool() -> None:
    state = State()
    before = lines(fragments(config(), state=state))
    away = lines(fragments(config(), draining=frozenset({"r1"}), state=state))
    assert all(line.startswith("slots[") for line in before ^ away), "draining touches slots alone"
    assert not any("first=0x0" in line for line in away if line.startswith("slots["))
    out = lines(fragments(config(RACK.replace("ip: 10.0.2.2}", "ip: 10.0.2.2, maintenance: true}"))))
    assert "pools[pool=0x0] set_pool(bound=0x4e20, copies_group=0x400, members=0x5, settle=0x6590)" in out
    assert "multicast[1024] 101 103#2" in out


def test_unknown_clock_leaves_sources_unknown() -> None:
    found = lines(fragments(config(), tor=Tor(0x0101)))
    assert not any(line.startswith("known_sources") for line in found)
    assert sum(line.startswith("known_sources") for line in lines(fragments(config()))) == 4


def test_replicas_of_another_rack_are_reached_by_tunnel() -> None:
    found = lines(fragments(config(TWO_RACKS), "tor2"))
    assert (
        "replicas[pool=0x0 replica=0x0] remote(block_key0=…, block_key1=…, key_epoch=0x0, next_hop=0x1, overhead=0x14,"
        " path_mtu=0x0)" in found
    )
    assert "encapsulations[pool=0x0 replica=0x0] ip_in_ip_v4(dst=0xa000201, next_hop=0x1, src=0xa0003fe)" in found
    assert (
        "heartbeat_sources[ingress_port=0x1 pool=0x0 remote=0x1 replica=0x0 source=0xffff0a000201]"
        " admit_heartbeat(readmitted=0x0)" in found
    )


def test_each_replica_has_own_keys_with_tors() -> None:
    def held(kind: Kind, epoch: int) -> bool:
        return True

    state, rack = State(), config(TWO_RACKS)
    ring = KeyRing().tick(1.0, LIVES, held, kinds=(Kind.TOR,)).tick(1.0, LIVES, held, kinds=(Kind.TOR,))
    # A successor being distributed, and a retired key: the ToR accepts all, and the newest two key
    # new openings.
    ring = ring.tick(90_000.0, LIVES, lambda kind, epoch: False, kinds=(Kind.TOR,))
    state.set_ring(RACK_RING, ring)
    parts = {name: fragments(rack, name, state=state)["pool web"] for name in ("tor1", "tor2")}
    rows = {
        name: {
            (dict(i.match)["replica"], dict(i.match)["key_epoch"]): dict(i.params)
            for i in part
            if isinstance(i, Entry) and i.table == "heartbeat_keys"
        }
        for name, part in parts.items()
    }
    assert set(rows["tor1"]) == {(index, epoch) for index in range(3) for epoch in (1, 2)}
    assert rows["tor1"] == rows["tor2"], "a heartbeat has one tag for all ToRs"
    assert len({(row["k0"], row["k1"]) for row in rows["tor1"].values()}) == 6
    assert all(row["newest"] == 1 for row in rows["tor1"].values()), "none was replaced yet"
    remote = next(i for i in parts["tor2"] if isinstance(i, Entry) and i.action == "remote")
    service = update(
        rack, "r1", numbers_of(rack, state), state.rings, state.slots, weights_of(rack), frozenset()
    ).services[0]
    keys = {key.epoch: key for key in service.tor_keys}
    assert (sorted(keys), service.usable_tor_epoch) == ([1, 2], 1)
    assert words(keys[1].heartbeat) == (rows["tor1"][0, 1]["k0"], rows["tor1"][0, 1]["k1"])
    params = dict(remote.params)
    assert (params["key_epoch"], words(keys[1].block)) == (1, (params["block_key0"], params["block_key1"]))
    # All replicas and ToRs hold the successor.
    state.set_ring(RACK_RING, ring.tick(90_001.0, LIVES, held, kinds=(Kind.TOR,)))
    newest = {
        dict(i.match)["key_epoch"]: dict(i.params)["newest"]
        for i in fragments(rack, "tor1", state=state)["pool web"]
        if isinstance(i, Entry) and i.table == "heartbeat_keys"
    }
    assert newest == {1: 0, 2: 1}
    assert words(keys[1].heartbeat)[0] != words(keys[1].block)[0]
    text = " ".join(lines(fragments(rack, "tor2", state=state))) + repr(state.rings)
    assert f"{params['block_key0']:x}" not in text and keys[1].heartbeat.hex() not in text


def test_packets_to_the_switch_are_metered_by_default() -> None:
    cells = NAMES.members("own_class_t")

    def rates(rack: Config) -> dict[int, int]:
        items = fragments(rack)["switch"]
        return {i.index: i.cir for i in items if isinstance(i, Meter) and i.meter == "own_meter"}

    meters = rates(config())
    assert meters.keys() == {port * 8 + cell for port in (1, 101, 102, 103) for cell in cells.values()}
    meters = rates(config(RACK.replace("    hosts:", "    own_meters: {echo: null, own_udp: 7}\n    hosts:")))
    assert 8 + cells["ECHO"] not in meters and meters[8 + cells["OWN_UDP"]] == 7


def test_path_mtu_limits_only_its_tunnel() -> None:
    state, rack = State(), config(TWO_RACKS)
    before = lines(fragments(rack, "tor2", state=state))
    after = lines(fragments(rack, "tor2", state=state, path_mtus={"10.0.2.1": 1400}))
    (changed,) = after - before
    assert changed.startswith("replicas[pool=0x0 replica=0x0] remote(") and "path_mtu=0x578" in changed


def test_round_robin_has_separate_slot_set() -> None:
    rack = config(RACK + "    policy: round_robin\n")
    state = State()
    assert len(fragments(rack, state=state)["spray web"]) == 16
    drained = fragments(rack, draining=frozenset({"r3"}), state=state)["spray web"]
    assert all("=0x2" not in str(item).split("]")[1] for item in drained), "a draining replica gets no requests"


def test_unchanged_fragment_is_the_same_object() -> None:
    text = RACK + RACK.split("services:\n")[1].replace("web", "other").replace('10.9.0.1, "fd00:9::1"', "10.9.0.2")
    state = State()
    before = fragments(config(text), state=state)
    after = fragments(config(text.replace("port: 80", "port: 81", 1)), state=state)
    for name, fragment in before.items():
        same = name.startswith(("pool", "slots")) or name == "service other"
        assert (after[name] is fragment) == same or after[name] == fragment, name
    assert after["service other"] is before["service other"] and after["slots web"] is before["slots web"]


def test_tor_is_read_from_switch() -> None:
    tor = Tor(0x0102, 99, True, (1, 2))
    params = next(dict(i.params) for i in fragments(config(), tor=tor)["switch"] if isinstance(i, Entry))
    assert tor_of(params) == tor
    assert tor_of({}) is None and tor_of({**params, "tor_id": 0}) is None
    assert dataclasses.replace(tor, sketch_keys=(0, 0)) != tor and "1, 2" not in repr(tor)


def test_names_need_only_compiled_files(tmp_path: Path) -> None:
    """An installed controller has no P4 sources beside it."""
    alone = Names(Path(shutil.copytree(ARTIFACTS, tmp_path / "p4")))
    for enum in ENUMS:
        assert alone.members(enum) == NAMES.members(enum) != {}
    assert alone.members("service_meter_t").keys() == {"SYN", "TIMEOUT", "RESTART", "UNPROVED", "RANGES"}
    with pytest.raises(NamesError, match="does not define"):
        alone.value("event_kind_t", "PARTY")
    with pytest.raises(NamesError, match="run `make p4`"):
        Names(tmp_path / "nowhere")


def test_enumerations_come_from_the_program() -> None:
    assert NAMES.value("drop_reason_t", "NO_REPLICA") == 40
    assert NAMES.member("drop_reason_t", 40) == "NO_REPLICA" and NAMES.member("drop_reason_t", 250) == "250"

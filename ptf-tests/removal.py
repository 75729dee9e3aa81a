#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Removes one defence at a time from a copy of the P4 program and checks that a packet test fails.

ptf-tests/removal.py [--switch bmv2] [NAME...]   needs p4c and root; without names it removes all, one after the other
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "scripts"))

from defences import Removal, parser, run, take_out  # noqa: E402

CORE = Path("core")
"""Folder of p4src that the file names below are relative to."""


def reason(file: str, name: str, *tests: str) -> Removal:
    """A check that still runs but no longer records its drop reason."""
    failed = f"meta.verdict.failed = drop_reason_t.{name};"
    return Removal(file, failed, failed.replace(name, "NONE"), tests)


def meter(name: str) -> Removal:
    metered = f"meter_as(service_meter_t.{name}, drop_reason_t.METER_{name})"
    free = metered.replace(f"METER_{name}", "NONE")
    return Removal("checks_at_tor/checks.p4", metered, free, ("t03_checks.MetersOfUnprovedRequestsV4",))


def heartbeat(name: str, *tests: str) -> Removal:
    dropped = f"meta.decided.drop_reason = drop_reason_t.HEARTBEAT_{name};"
    return Removal("control/heartbeats.p4", dropped, dropped.replace(f"HEARTBEAT_{name}", "NONE"), tests)


def own_meter(name: str) -> Removal:
    metered = f"own_as(own_class_t.{name}, drop_reason_t.METER_{name});"
    free = metered.replace(f"METER_{name}", "NONE")
    return Removal("control/own_meters.p4", metered, free, ("t17_own_meters.OwnMeters",))


def cookie(name: str, *tests: str) -> Removal:
    dropped = f"meta.decided.drop_reason = drop_reason_t.{name};"
    return Removal("checks_at_tor/cookies.p4", dropped, dropped.replace(name, "NONE"), tests)


REMOVALS = {
    "key": reason("checks_at_tor/checks.p4", "KEY_UNKNOWN", "t03_checks.KeyEpochsV4"),
    "key-usable": reason("checks_at_tor/checks.p4", "KEY_NOT_USABLE", "t03_checks.KeyEpochsV4"),
    "stale": reason("checks_at_tor/checks.p4", "STALE", "t03_checks.FreshnessV4"),
    "future": reason("checks_at_tor/checks.p4", "FUTURE", "t03_checks.FreshnessV4"),
    "range-order": reason("control/ranges.p4", "RANGE_ORDER", "t03_checks.FormOfTheProofV4"),
    "range-missing": reason("control/ranges.p4", "RANGE_MISSING", "t03_checks.FormOfTheProofV4"),
    "range-cover": reason("control/ranges.p4", "RANGE_COVER", "t12_attacks.CopiesOfAVictimV4"),
    "entry-form": reason("control/ranges.p4", "ENTRY_FORM", "t03_checks.FormOfTheProofV4"),
    "sum": reason("control/ranges.p4", "SUM", "t12_attacks.GuessedSumsV4"),
    "replay": reason("control/replay.p4", "REPLAY", "t12_attacks.CopiesOfAVictimV4"),
    "vlan-filter": Removal(
        "control/ports.p4",
        "not_member(drop_reason_t.VLAN_REFUSED)",
        "not_member(drop_reason_t.NONE)",
        ("t07_forward.VlanFilter",),
    ),
    "meter-syn": meter("SYN"),
    "meter-timeout": meter("TIMEOUT"),
    "meter-restart": meter("RESTART"),
    "meter-unproved": meter("UNPROVED"),
    "meter-ranges": meter("RANGES"),
    "sums-in-sight": Removal(
        "checks_at_tor/checks.p4",
        "if (meta.checks.sum_mode",
        "if (meta.proof.ranges_unseen == 0 && meta.checks.sum_mode",
        ("t03_checks.MoreRangesThanTheSwitchSeesV4",),
    ),
    "cover-in-sight": Removal(
        "checks_at_tor/checks.p4", "|| meta.proof.beyond == 1", "", ("t12_attacks.NumbersOfAForgedRangeV4",)
    ),
    # The replay sketch: its limit, the keys of the slot before, which uses count, and the sketch of openings.
    "sketch-limit": Removal("control/replay.p4", "put = ~full;", "put = 1;", ("t12_attacks.AfterASaturatedSlot",)),
    "sketch-slot-before": Removal(
        "control/replay.p4", "judged = ~(full | full_before);", "judged = ~full;", ("t12_attacks.SketchOverflowV4",)
    ),
    "sketch-every-key": Removal(
        "control/replay.p4",
        "put == 1 && current_uses == 0",
        "put == 1 && uses == 0",
        ("t12_attacks.UsesAreKnownInTheNextSlot",),
    ),
    "sketch-two-slots": Removal(
        "control/replay.p4",
        "uses = current_uses + previous_uses;",
        "uses = current_uses;",
        ("t12_attacks.UsesAreKnownInTheNextSlot",),
    ),
    "sketch-of-openings": Removal(
        "control/replay.p4",
        "if (meta.proof.opening == 0) {",
        "if (meta.tor.sketch_mask != 0) {",
        ("t03_checks.SketchFullV4",),
    ),
    "icmp-error-meter": Removal(
        "control/service_path.p4",
        "meta.decided.drop_reason = drop_reason_t.ICMP_ERROR_METER;",
        "meta.decided.drop_reason = drop_reason_t.NONE;",
        ("t09_icmp_errors.ErrorsAreMetered",),
    ),
    "heartbeat-source": Removal(
        "control/heartbeats.p4",
        "meta.decided.drop_reason = reason;",
        "meta.heartbeat.admitted = 1;",
        ("t05_liveness.HeartbeatsFromWrongSourcesV4",),
    ),
    # Heartbeats: tag, sequence number, which members they exclude and when; tags of answers and of blocks in tunnels.
    "heartbeat-key": heartbeat("KEY", "t16_heartbeats.TagsAreChecked"),
    "heartbeat-tag": heartbeat("TAG", "t16_heartbeats.TagsAreChecked", "t16_heartbeats.UdpHeartbeatTagsV4"),
    "heartbeat-replay": heartbeat(
        "REPLAY", "t16_heartbeats.ReplayedHeartbeatsHaveNoEffectV4", "t16_heartbeats.SequencesOnlyGrow"
    ),
    "heartbeat-incarnation": heartbeat("INCARNATION", "t16_heartbeats.SequencesOnlyGrow", "t16_heartbeats.KeysRotate"),
    "ring": Removal(
        "control/judge.p4",
        "meta.decided.resubmit = 1;",
        "meta.decided.resubmit = 0;",
        ("t16_heartbeats.DeathsAreFoundWithoutTraffic", "t16_heartbeats.OneHeartbeatFindsSixtyThreeDeaths"),
    ),
    "settle": Removal(
        "control/judge.p4",
        "if (meta.pool.settled == 1 && (last",
        "if (meta.pool.settle != 7 && (last",
        ("t16_heartbeats.NewTorExcludesNoReplica",),
    ),
    "answer-tag": Removal(
        "control/heartbeats.p4", "answer_hash.apply(hdr, meta);", "", ("t16_heartbeats.AnswersListLiveMembers",)
    ),
    "block-tag": Removal(
        "control/ingress.p4", "block_tag.apply(hdr, meta);", "", ("t08_remote.BlocksForOutsideAreTaggedV4",)
    ),
    "path-mtu": Removal(
        "control/forward.p4",
        "meta.bridged.mtu = meta.bridged.path_mtu;",
        "",
        ("t08_remote.PathsWithASmallerMtuV4",),
    ),
    "own-punt": own_meter("PUNT"),
    "own-arp": own_meter("ARP"),
    "own-solicitation": own_meter("SOLICITATION"),
    "own-icmp": own_meter("OWN_ICMP"),
    "own-udp": own_meter("OWN_UDP"),
    # With one meter for all classes a flood of UDP takes the rate that neighbours' answers need.
    "own-classes": Removal(
        "control/own_meters.p4",
        "own_meter.apply(meta.carried.ingress_port, cell, above);",
        "own_meter.apply(meta.carried.ingress_port, own_class_t.OWN_UDP, above);",
        ("t17_own_meters.OwnMeters",),
    ),
    # Stateless TCP: the cookie, its two keys and its inputs; handshakes; meters; choice of a replica.
    "cookie": cookie("COOKIE", "t18_cookies.AcknowledgementsWithinCookieReachV4"),
    "cookie-handshake": cookie("HANDSHAKE", "t18_cookies.HandshakesEndAtTheTorV4"),
    "cookie-meter": cookie("METER_PLAIN", "t18_cookies.Metered"),
    "cookie-uncookied": cookie("METER_UNCOOKIED", "t18_cookies.Metered"),
    "cookie-flags": Removal(
        "checks_at_tor/cookies.p4",
        "(hdr.tcp.flags & (TCP_FIN | TCP_RST)) != 0",
        "(hdr.tcp.flags & (TCP_FIN | TCP_RST)) == (TCP_FIN | TCP_RST)",
        ("t18_cookies.SynsWithDataOrOddFlagsV4",),
    ),
    "cookie-two-keys": Removal(
        "checks_at_tor/cookies.p4",
        "cookie_hash.apply(meta, meta.cookie.other0, meta.cookie.other1);",
        "cookie_hash.apply(meta, meta.cookie.current0, meta.cookie.current1);",
        ("t18_cookies.AcknowledgementsWithinCookieReachV4",),
    ),
    "cookie-pad": Removal(
        "checks_at_tor/cookies.p4",
        "(first[14:0] ^ meta.hash.result[31:17])",
        "first[14:0]",
        ("t18_cookies.SynsOfKnownStacksV4",),
    ),
    "cookie-by-flow": Removal(
        "checks_at_tor/cookies.p4",
        "meta.flow.by_flow = 0;",
        "meta.flow.by_flow = 1;",
        ("t18_cookies.FlowAndSprayedSegmentsV4",),
    ),
    "cookie-opening-by-flow": Removal(
        "checks_at_tor/cookies.p4",
        "|| hdr.stamps.echo[31:24] != 0",
        "|| hdr.stamps.echo[31:24] != 0xff",
        ("t18_cookies.FlowAndSprayedSegmentsV4",),
    ),
    "cookie-sack": Removal(
        "checks_at_tor/cookies.p4",
        "&& hdr.tcp.data_offset <= STAMPS_OFFSET",
        "&& hdr.tcp.data_offset != 0",
        ("t18_cookies.HandshakesEndAtTheTorV4",),
    ),
    # Large answers: how far an acknowledgement may reach, and which replica has a block.
    "large-reach": Removal(
        "checks_at_tor/cookies.p4",
        "reach = LARGE_REACH;",
        "reach = STAMPED_REACH;",
        ("t18_cookies.AcknowledgementsWithinCookieReachV4",),
    ),
    "large-no-further": Removal(
        "checks_at_tor/cookies.p4",
        "LARGE_REACH    = 0x40000010;",
        "LARGE_REACH    = 0xfffffff8;",
        ("t18_cookies.AcknowledgementsWithinCookieReachV4",),
    ),
    "large-cells": Removal(
        "checks_at_tor/cookies.p4",
        "LARGE_CELLS    = 120;",
        "LARGE_CELLS    = 255;",
        ("t18_cookies.AcknowledgementsWithinCookieReachV4",),
    ),
    "large-by-block": Removal(
        "checks_at_tor/cookies.p4",
        "meta.flow.by_block = 1;",
        "meta.flow.by_block = 0;",
        ("t18_cookies.BlocksOfLargeAnswersV4",),
    ),
    "large-blocks": Removal(
        "control/pick.p4",
        "(meta.cookie.distance >> BLOCK_SHIFT)",
        "(meta.cookie.distance >> 31)",
        ("t18_cookies.BlocksOfLargeAnswersV4",),
    ),
    # Slots of a flow under a key that clients do not know.
    "slot-key-flow": Removal(
        "control/half_sip_hash.p4",
        "hash_key.apply(meta, meta.service.slot_key0, meta.service.slot_key1);",
        "hash_key.apply(meta, 0, 0);",
        ("t04_choice.SlotsUnderAKeyV4",),
    ),
    "slot-key-block": Removal(
        "control/half_sip_hash.p4",
        "nonce_tag.apply(meta, meta.service.slot_key0, meta.service.slot_key1, tag);",
        "nonce_tag.apply(meta, 0, 0, tag);",
        ("t04_choice.BlocksOfEightNumbersV4",),
    ),
    "third-choice": Removal(
        "control/pick.p4", "(meta.carried.pick * 0x9e3779b9)[31:16]", "16w0", ("t04_choice.SurvivorsShareEvenly",)
    ),
    "second-chance-mark": Removal(
        "control/rewrite.p4", "hdr.ethernet.src = source;", "", ("t15_second_chance.SegmentWithoutASocketV4",)
    ),
    "second-chance-sender": Removal(
        "control/choose.p4",
        "meta.choice.candidates = others;",
        "meta.choice.candidates = meta.bridged.alive;",
        ("t15_second_chance.SegmentWithoutASocketV4",),
    ),
    # TRODS: replicas that may send as a service, which packets are checked for that, and second chances.
    "plain-source": Removal(
        "control/liveness.p4",
        "meta.decided.drop_reason = drop_reason_t.SOURCE_EXCLUDED;",
        "meta.decided.drop_reason = drop_reason_t.NONE;",
        ("t19_trods.ExcludedMembersCannotSendV4",),
    ),
    "plain-source-guarded": Removal(
        "control/ingress.p4",
        "if (meta.address.guarded == 1) {",
        "if (meta.parsed.is_ip == 1) {",
        ("t19_trods.UnguardedSegmentsPassV4",),
    ),
    "plain-source-option": Removal(
        "control/plain_source.p4", "&& !hdr.option.isValid()", "", ("t19_trods.ExcludedMembersCannotSendV4",)
    ),
    "holder": Removal(
        "control/choose.p4", "others = holder;", "others = others & ~holder;", ("t19_trods.SegmentsGoToNamedHolderV4",)
    ),
    "holder-alive": Removal(
        "control/choose.p4",
        "&& holder != 0) {",
        "&& meta.bridged.alive != 0) {",
        ("t19_trods.SegmentsGoToNamedHolderV4",),
    ),
    "holder-of-members": Removal(
        "control/choose.p4",
        "if (meta.bridged.handed_on == 1) {",
        "if (meta.bridged.handed_on == 1 || meta.flow.holder_named == 1) {",
        ("t19_trods.SegmentsGoToNamedHolderV4",),
    ),
    "holder-of-trods": Removal(
        "control/second_chance.p4",
        "meta.service.plain == plain_t.TRODS",
        "meta.service.plain != plain_t.NONE",
        ("t19_trods.HolderNamesNeedTrodsV4",),
    ),
    "affinity": Removal(
        "control/half_sip_hash.p4",
        "if (meta.service.affinity == affinity_t.FLOW) {",
        "if (meta.service.hit == 1) {",
        ("t20_affinity.OneReplicaPerClientV4", "t20_affinity.AllAddressesAndPortsOfAServiceV4"),
    ),
    "affinity-off": Removal(
        "control/half_sip_hash.p4",
        "if (meta.service.affinity == affinity_t.FLOW) {",
        "if (meta.service.hit == 0) {",
        ("t20_affinity.WithoutAffinityByFlowV4",),
    ),
    "affinity-openings": Removal(
        "control/replay.p4",
        "epoch = meta.flow.client_port;",
        "epoch = 0;",
        ("t20_affinity.OpeningsAreCountedByPortV4",),
    ),
    "holder-form": Removal(
        "control/second_chance.p4",
        "(hdr.ethernet.dst & HOLDER_MAC_MASK) == HOLDER_MAC",
        "hdr.ethernet.dst != 0",
        ("t19_trods.SegmentsGoToNamedHolderV4",),
    ),
}


def compile_without(removal: Removal, folder: Path) -> Path:
    """Compiles a copy of the program without this defence and returns the folder of the outputs."""
    source = folder / "p4src"
    shutil.copytree(ROOT / "p4src", source, ignore=shutil.ignore_patterns("build", "__pycache__"))
    take_out(removal, source / CORE)
    # artifact.py would refuse the warnings about code that the removal leaves unused.
    command = [
        "p4c",
        "--target",
        "bmv2",
        "--arch",
        "v1model",
        *("-I", ".", "-I", "../core/checks_at_tor"),
        "--p4runtime-files",
        str(folder / "rivulet.p4info.txtpb"),
    ]
    subprocess.run(
        [*command, "-o", str(folder), "rivulet.p4"], check=True, cwd=source / "v1model", stderr=subprocess.DEVNULL
    )
    return folder


def failed(switch: str, build: Path, tests: tuple[str, ...]) -> list[str]:
    """Runs these tests with the program in `build` and returns the names of those that fail."""
    environment = {**os.environ, "RIVULET_P4_BUILD": str(build)}
    command = [sys.executable, str(HERE / "run.py"), "--switch", switch, "--log-dir", str(build / "log"), *tests]
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    if "Ran " not in text:
        raise SystemExit(f"the tests did not run:\n{text[-2000:]}")
    return re.findall(r"^FAIL: (\S+)", text, re.M)


def main() -> int:
    arguments = parser(__doc__ or "", REMOVALS)
    arguments.add_argument("--switch", choices=["bmv2", "embedded"], default="embedded")
    args = arguments.parse_args()

    def noticed(removal: Removal) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            return failed(args.switch, compile_without(removal, Path(folder)), removal.tests)

    def exists(test: str) -> bool:
        module, _, name = test.partition(".")
        file = HERE / "tests" / f"{module}.py"
        base = re.sub(r"V[46](Vlan)?$", "", name)
        return file.is_file() and re.search(rf"^class {base}\(", file.read_text(), re.M) is not None

    return run(REMOVALS, args, ROOT / "p4src" / CORE, noticed, exists)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes one defence of TRODS, stateless TCP, the transport or the Congestion Manager out of a copy: a test must notice.

host/removal.py [NAME...]   needs root, nft, nginx and memcached; without names all of them

The copy and what is built of it stay in target/removal, so that each removal compiles little.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import removal_moves  # noqa: E402
import removal_plain  # noqa: E402
import removal_transport  # noqa: E402
from defences import Removal, parser, run, take_out  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "removal"
TREE = TARGET / "tree"
CARGO = os.environ.get("CARGO", "cargo")
PATIENCE_S = 900
"""A test that takes longer hangs, which it would not do with the defence: that is noticed too."""

PROGRAMS = {
    "bpf": ("-p", "rivulet-bpf", "--lib"),
    "kernel": ("-p", "rivulet-bpf", "--test", "it"),
    "rules": ("-p", "rivulet-cm", "--lib"),
    "trods": ("-p", "rivulet-trods", "--lib"),
    "it": ("-p", "rivulet-trods", "--test", "it"),
    "agent": ("-p", "rivulet", "--lib"),
    "agents": ("-p", "rivulet", "--test", "it"),
    **removal_transport.PROGRAMS,
    **removal_plain.PROGRAMS,
    "calls": ("-p", "rivulet-libcm", "--test", "it"),
    "apps": ("-p", "rivulet-cm-apps", "--lib"),
    "streams": ("-p", "rivulet-cm-apps", "--test", "it"),
    "server": ("-p", "rivulet-server", "--lib"),
}
"""What a test's name has in front: the program that it is in."""


def bpf(old: str, new: str, *tests: str, file: str = "trods.c") -> Removal:
    """Of the programs on the interface."""
    return Removal(f"host/bpf/src/bpf/{file}", old, new, tuple(f"bpf:trods::tests::{test}" for test in tests))


def trods(file: str, old: str, new: str, *tests: str) -> Removal:
    return Removal(f"host/trods/src/{file}", old, new, tests)


def agent(old: str, new: str, *tests: str, file: str = "agent/trods.rs") -> Removal:
    """Of the agent, which hears from the ToR who is gone."""
    return Removal(f"host/rivulet/src/{file}", old, new, tests)


def stamps(old: str, new: str, test: str, file: str = "ts.h") -> Removal:
    """Of the programs that make handshakes and timestamps."""
    return bpf(old, new, f"stamped::{test}", file=file)


def named(old: str, new: str, test: str, file: str = "read.rs") -> Removal:
    """Of what a client's segment alone tells."""
    return trods(f"ts/{file}", old, new, f"trods:ts::{file.removesuffix('.rs')}::tests::{test}")


def field(old: str, new: str = "false") -> Removal:
    """A rule that every record keeps."""
    return trods("record/codec.rs", old, new, "it:records::what_no_flow_writes_is_refused")


def calls(file: str, old: str, new: str, *tests: str) -> Removal:
    """Of the Congestion Manager's calls."""
    return Removal(f"host/{file}", old, new, tuple(f"calls:{test}" for test in tests))


def identity(old: str, new: str) -> Removal:
    """By what an object is known again."""
    return trods("adopt/identity.rs", old, new, "trods:adopt::identity::tests::any_difference_is_another_object")


def answer(old: str, new: str = "") -> Removal:
    """By what a client's answer is known."""
    return trods("wake.rs", old, new, "it:waking::what_is_not_the_clients_tells_nothing")


FIRST = "the_end_of_a_handshake_opens_a_connection_and_what_the_client_sends_is_copied"
DEAD = "what_ends_since_a_process_dies_ends_only_where_the_server_said_that_it_would"
ORPHAN = "an_orphan_is_heard_here_alone_until_it_begins_anew"
RESET = "no_reset_leaves_a_connection_that_is_protected_or_looked_for"
LEASE = "whose_lease_is_over_is_silent"
HELD_BY_OTHERS = "what_another_holds_is_handed_on_once_and_nobody_here_speaks"
DAMAGED = "a_damaged_segment_is_the_kernels_to_drop"
LINGERS = "bpf:linger::tests::programs_outlive_a_process_that_dies_and_go_with_one_that_takes_them_off"
NAMED = "the_response_is_named_and_the_request_acknowledged_where_the_name_arrives"
UNNAMED = "what_is_not_in_the_table_goes_on_unnamed"
HELD_UNNAMED = "what_is_not_in_the_table_is_held_where_it_can_be_recorded"
BOUND = "who_is_bound_to_an_object_is_sent_that_or_nothing"
REFLECTED = "who_has_all_is_told_by_its_own_word_that_its_request_came"
NOT_THIS = "what_is_not_of_this_connection_tells_nothing"
STAMPS: dict[str, Removal] = {
    "ts-acknowledged-first": stamps(
        "return is_first ? st->client_next : limits->ack;", "return st->client_next;", NAMED
    ),
    "ts-echo-first": stamps("limits->ack = st->client_next;", "", NAMED),
    "ts-untold": stamps(
        "if (dead && st->phase == STAMPED_ASKED)",
        "if (0)",
        "no_response_begins_whose_name_nobody_would_tell",
    ),
    # That who has all, and is owed a word, hears it, and who is not does not.
    "ts-reflected": stamps("if (is_owed(s, st) && ", "if (false && is_owed(s, st) && ", REFLECTED),
    "ts-reflected-all": stamps(" && s->ack - st->isn - 1 >= st->total", "", REFLECTED, file="ts_reflect.h"),
    "ts-reflected-echoed": stamps("st->phase == STAMPED_ECHOED && ", "", REFLECTED, file="ts_reflect.h"),
    "ts-reflected-told": stamps("\t\tst->owed = 0;", "\t\t;", REFLECTED, file="trods.c"),
    "ts-reflected-whole": stamps(
        "return turn(skb) && !bpf_skb_store_bytes(skb, s->tcp, &said, sizeof(said), 0);",
        "return true;",
        REFLECTED,
        file="ts_reflect.h",
    ),
    "ts-ahead": stamps(
        "#define AHEAD (INDICES / 2 - 1)",
        "#define AHEAD (INDICES - 1)",
        "values_never_go_back_and_are_never_out_of_reach",
        file="ts_maps.h",
    ),
    "ts-nobodys": stamps("st->object = NOBODYS;", "", UNNAMED, file="ts_object.h"),
    "ts-whole": stamps("if (asked.ends != length)", "if (!asked.ends)", UNNAMED, file="ts_object.h"),
    "ts-fields": stamps("if (asked.has_fields)", "if (0)", UNNAMED, file="ts_object.h"),
    "ts-head": stamps(
        "if (sum_words(octets, length) != head->sum)", "if (0)", "another_head_is_not_named", file="ts_object.h"
    ),
    "ts-second": stamps(
        "else if (after(s->seq + s->length, st->client_next))", "else if (0)", "a_second_request_is_named_no_more"
    ),
    "ts-echoed-late": stamps(
        "if (((index - st->echo) & (INDICES - 1)) <= ((st->index - st->echo) & (INDICES - 1)))",
        "",
        "what_is_echoed_is_the_kernels_newest_of_that_index",
    ),
    "ts-agreed": agent(
        "if is_made && in_force == table {",
        "if is_made {",
        "agent:agent::trods::tests::what_is_agreed_on_is_named_under_the_keys_of_its_time",
    ),
    "ts-reach": named("(offset <= reach).then_some", "Some", NOT_THIS),
    "ts-key": named(".filter(|(_, odd)| *odd == stamp.odd)", "", NOT_THIS),
    "ts-part-of-a-head": named("if offset >= known.head.length =>", "if known.head.length > 0 =>", NOT_THIS),
    "ts-nobodys-read": named(" || stamp.object == NOBODYS", "", NOT_THIS),
    "ts-asked-again": named(
        "offset < reach && asks_for(payload, response)",
        "asks_for(payload, response)",
        "a_client_of_which_nobody_told_says_where_its_request_ends",
    ),
    "ts-request-again": named(
        '(None, _) if payload.starts_with(b"GET ")',
        "(None, _) if true",
        "with_nothing_of_a_response_the_request_comes_again",
    ),
    # With that a replica that was excluded would be handed what it had.
    "ts-held-by-dead": trods(
        "ts/others.rs",
        "named.contains(&key.service()) && alive >> (holder & 63) & 1 == 1;",
        "named.contains(&key.service()) && (holder < 64 || *alive > 0);",
        "it:stamps::a_download_goes_on_from_another_replica_that_nobody_told_what_it_is",
    ),
    "ts-early-reset": trods(
        "ts/mod.rs",
        "if is_reset && programs.stamps().get(&key)?.is_some_and(|stamped| stamped.adopted) {",
        "if is_reset && programs.stamps().get(&key)?.is_none() {",
        "it:stamps::a_reset_of_the_kernels_ends_no_connection_that_was_adopted",
    ),
    # What timestamps cannot name, where there is a store.
    "ts-held": stamps(
        "if (service->records && limits)", "if (service->records == 2 && limits)", HELD_UNNAMED, file="ts_object.h"
    ),
    "ts-recorded-nobodys": stamps("if (!limits || limits->flags & LIMITS_RECORDED)", "if (!limits)", HELD_UNNAMED),
    "ts-recorded-later": stamps(
        "if (!limits || limits->flags & LIMITS_RECORDED)",
        "if (!limits || limits->flags + 1)",
        "a_second_request_is_recorded_where_that_can_be",
    ),
    "ts-has-all": stamps(
        "st->client_next) && is_named && !has_all)",
        "st->client_next) && 0)",
        "a_second_request_is_recorded_where_that_can_be",
    ),
    "ts-request-told": stamps(
        "if (length <= REQUEST_MAX)\n\t\tbpf_ringbuf_output",
        "if (0)\n\t\tbpf_ringbuf_output",
        "a_request_whose_response_has_another_head_is_told_before_that",
        file="ts_object.h",
    ),
    "awaited-untouched": bpf(
        "if (is_recorded && limits && limits->flags & LIMITS_AWAITED)",
        "if (0)",
        "stamped::a_client_whose_socket_is_not_there_yet_is_heard_later",
        file="ts.h",
    ),
    "awaited": bpf(
        "if (limits->flags & LIMITS_AWAITED)",
        "if (0)",
        "stamped::a_client_whose_socket_is_not_there_yet_is_heard_later",
    ),
    "ts-taken-once": Removal(
        "host/bpf/src/bpf/ts.h",
        "if (__sync_val_compare_and_swap(&made->taken, 0, bpf_ktime_get_ns())) {",
        "if (0) {",
        ("it:both::a_handshake_that_ends_twice_begins_one_connection",),
    ),
    "ts-listened": named(
        "(self.listens.0 + TOLD).max(soon)", "soon", "who_has_just_come_waits_until_all_have_told", file="absences.rs"
    ),
    "ts-deaf": named(
        "if now.saturating_duration_since(last) > DEAF {",
        "if now < last {",
        "who_stood_still_has_missed_something",
        file="absences.rs",
    ),
    "ts-once-more": named(
        "if at < last {", "if last < at {", "who_has_listened_knows_soon_and_looks_once_more", file="absences.rs"
    ),
    "ts-behind-the-object": named(
        "if !blocks.iter().all(is_within) {",
        "if false {",
        "whoever_has_octets_behind_the_object_is_not_gone_on_with",
    ),
    "ts-record-stamps": trods(
        "ts/read.rs",
        "index: (stamp.index + AHEAD) % 32,\n        echo: stamp.index,\n    })",
        "index: 0,\n        echo: 0,\n    })",
        "it:both::what_timestamps_cannot_name_goes_on_by_its_record_beside_what_they_can",
    ),
    "ts-record-key": named(
        "if !with.keys.iter().any(|(of, _)| object_isn(*of, key.client(), key.service()) == stamped.isn) {",
        "if false {",
        "what_is_named_is_recorded_with_what_its_client_lacks",
    ),
    "ts-record-head": named(
        "!(known.head.length..=total).contains(&offset)",
        "!(0..=total).contains(&offset)",
        "what_is_named_is_recorded_with_what_its_client_lacks",
    ),
    "ts-base": field("handshake.stamps.is_some_and(|base| !is_base(base))"),
    "ts-hint-tag": named(
        "half_sip_hash_64(p.secret, octets) == u64::from_be_bytes(*tag)",
        "true",
        "what_is_told_is_believed_of_who_is_asked_alone",
        file="hints.rs",
    ),
    "ts-hint-generation": named(
        "*holder == sender || !known.is_after(&hint)",
        "true",
        "whoever_had_a_connection_before_hides_nobody_who_goes_on_with_it",
        file="hints.rs",
    ),
    "ts-elsewhere": trods(
        "ts/others.rs",
        " || self.lost.is_behind(&key, theirs)",
        "",
        "it:stamps::what_another_went_on_with_is_not_gone_on_with_here",
    ),
    "withheld-silently": Removal(
        "host/bpf/src/bpf/trods.c",
        "return bpf_redirect(NOWHERE, 0);",
        "return DROP;",
        ("it:stamps::what_is_withheld_halves_no_window",),
    ),
    "ts-settles": trods(
        "replica.rs",
        "if self.watch.set_services(&all)? > 0 {",
        "if self.watch.set_services(&all)? > u64::MAX - 1 {",
        "it:stamps::clients_stay_away_from_a_new_process_until_others_have_what_the_one_before_had",
    ),
    "ts-left-again": trods(
        "ts/leave.rs",
        "self.hints.tell(key, Hint { left_to: Some(to.holder), ..hint });\n        }",
        "}",
        "it:stamps::what_a_drained_replica_has_goes_on_elsewhere",
    ),
    "ts-left-to-one": trods(
        "ts/others.rs",
        "hint.left_to.is_none() || ",
        "hint.left_to.is_some() || ",
        "it:stamps::what_a_drained_replica_has_goes_on_elsewhere",
    ),
    "ts-comes-back": trods(
        "ts/leave.rs",
        "self.lost.look_for(key, Some(hint), None, now, programs)?;",
        "",
        "it:stamps::what_nobody_went_on_with_comes_back",
    ),
    "ts-handed-back": trods(
        "ts/others.rs",
        "if self.lost.is_since(&key, told) {",
        "if self.lost.is_since(&key, told) && holder > 63 {",
        "it:stamps::who_was_gone_is_handed_nothing_before_it_tells_again",
    ),
    "ts-others": trods(
        "ts/others.rs",
        "is_near(segment.header.seq, hint.client_next)",
        "segment.payload.len() > 65_535 && is_near(segment.header.seq, hint.client_next)",
        "it:stamps::what_somebody_has_who_lives_is_not_begun_anew_here",
    ),
    "ts-later-connection": named(
        "self.client_next.wrapping_sub(other.client_next) as i32 > 0",
        "self.generation.is_after(other.generation)",
        "whoever_had_a_connection_before_hides_nobody_who_goes_on_with_it",
        file="hints.rs",
    ),
    "ts-had-before": trods(
        "ts/others.rs",
        "own.is_some_and(|own| theirs.is_after(&own)) || ",
        "",
        "it:stamps::who_had_it_before_somebody_went_on_with_it_has_it_no_more",
    ),
    "ts-told-again": agent(
        "if gone != 0 || is_moved {",
        "if gone != 0 && (is_moved || gone > 0) {",
        "agent:agent::trods::tests::whenever_others_take_connections_all_that_are_gone_are_told_of_again",
    ),
    "ts-generation-wraps": Removal(
        "host/bpf/src/trods/stamped.rs",
        "(1..GENERATIONS / 2).contains(&(self.0.wrapping_sub(other.0) % GENERATIONS))",
        "self.0 > other.0",
        ("bpf:trods::stamped::tests::whoever_went_on_later_counts_however_often_that_was",),
    ),
    "dying-unaccepted": bpf(
        "if (!sk->sk_lock.owned && (after != TCP_CLOSE || sk->sk_socket))",
        "if (!sk->sk_lock.owned)",
        "the_kernel_tells_whose_process_died",
        file="dying.c",
    ),
    "dying-unread": bpf(
        "&((const struct inet_sock *)sk)->inet_sport",
        "&common->skc_dport",
        "the_kernel_tells_whose_process_died",
        file="dying.c",
    ),
    "ts-bound-asked": stamps(
        "if (is_bound(st))\n\t\treturn RETRIES;\n\tif (service", "if (service", BOUND, file="ts_object.h"
    ),
    "ts-bound-spoken": stamps("if (is_bound(st))\n\t\treturn RETRIES;\n\tset_free", "set_free", BOUND),
    "ts-bound-head": stamps("if (is_bound(st) && st->object != head->object)", "if (0)", BOUND, file="ts_object.h"),
    "ts-bound-silent": stamps("(is_bound(st) ? 0 : st->object)", "st->object", BOUND),
    "ts-bound-to-head": named(
        "to <= left && from >= behind || from as i32",
        "to <= left || from as i32",
        "with_nothing_of_a_response_the_request_comes_again",
    ),
    "ts-hint-sender": named(
        "*n == sender && address.ip() == from",
        "*n == sender",
        "what_is_told_is_believed_of_who_is_asked_alone",
        file="hints.rs",
    ),
}
NEWER = "trods:hold::rescue::tests::what_another_left_behind_hides_nothing_that_is_newer"
READ_AGAIN = "trods:hold::rescue::tests::what_is_read_again_is_probed_by_whom_it_is_for_now"
RESETS_NOBODY = "trods:lease::tests::whoever_takes_none_or_does_not_know_what_others_hold_resets_nobody"
HEARD = "trods:lease::tests::whoever_was_heard_speaks_until_it_may_be_excluded"
KNOWN = "agent:second_chance::tests::what_was_handed_on_stays_here_once_it_is_adopted"
WITHHELD = "what_was_withheld_goes_with_its_connection"
TAKES = "agent:agent::trods::tests::whenever_others_take_connections_it_is_asked_who_holds_those_that_come_here_now"
FORMER = "agent:agent::trods::tests::what_the_agent_before_had_is_looked_for_like_what_another_had"
OUTLIVES = "agents:trods::what_an_agent_had_adopted_outlives_it"
ADOPTED_ENDS = "it:leaving::an_adopted_connection_ends_when_this_process_meant_it"
ADOPTED_STAYS = "it:leaving::a_server_dies_that_an_adopted_connection_has"
OUT = "trods:lease::tests::whoever_may_have_been_excluded_is_silent_until_it_takes_plain_tcp_again"
AWAY = "trods:lease::tests::whoever_was_away_is_silent_until_it_knows_what_others_hold"

REMOVALS = removal_transport.REMOVALS | removal_plain.REMOVALS | removal_moves.REMOVALS | {
    # Kernel TCP by the Congestion Manager.
    "cm-old-loss": Removal(
        "host/cm/src/controller/aimd.rs", "self.recovering() || report.old;", "self.recovering();",
        ("rules:controller::aimd::tests::a_loss_of_what_was_sent_before_the_last_reduction_was_known_reduces_nothing",),
    ),
    "cm-old-loss-c": Removal(
        "host/bpf/src/bpf/macroflow.h", "cm_recovering(m) || report->old;", "cm_recovering(m);",
        ("kernel:macroflow::any_trace_has_the_same_numbers_in_c",),
    ),
    "cm-number-back": Removal(
        "host/bpf/src/bpf/cm.c", "give_number(e, number);\n\treturn 1;", "return 1;",
        ("kernel:kernel::a_forgotten_destination_makes_room_for_another",),
    ),
    "cm-goes-on": Removal(
        "host/bpf/src/bpf/connection.h", "goes_on && sent < 0", "0 && goes_on && sent < 0",
        ("kernel:kernel::a_forgotten_destination_makes_room_for_another",),
    ),
    "cm-weight": Removal(
        "host/bpf/src/bpf/share.h", "CM_STRIDE / (slot->weight ? slot->weight : 1)", "CM_STRIDE",
        ("kernel:share::any_trace_has_the_same_grants_in_c",),
    ),
    # What leaves: data, acknowledgements, FIN, RST.
    "data": bpf("if (s.length && after(end, limits->data)) {", "if (0) {", "data_beyond_the_limit_does_not_leave"),
    "ack": bpf(
        "if (s.flags & ACK && after(s.ack, ack)) {", "if (0) {", "no_acknowledgement_leaves_beyond_the_limit"
    ),
    "ack-withheld": bpf(
        "if (!s.length && !(s.flags & FIN)) {", "if (0) {", "no_acknowledgement_leaves_beyond_the_limit"
    ),
    "ack-clamped": bpf("if (!clamp_ack(skb, &s, ack))", "if (0)", "no_acknowledgement_leaves_beyond_the_limit"),
    "fin": bpf(
        "if (s.flags & FIN && !",
        "if (0 && !",
        "a_fin_leaves_at_its_place_alone",
    ),
    "fin-of-dead": bpf("return limits->has_fin & HAS_FIN_OF_DEAD || !of_dead(s);", "return true;", DEAD),
    "dead-over": bpf("bpf_map_delete_elem(&dying, key);", ";", DEAD),
    "dead-server": bpf(
        "if (!sk->sk_lock.owned && (after != TCP_CLOSE || sk->sk_socket))",
        "if (0)",
        "the_kernel_tells_whose_process_died",
        file="dying.c",
    ),
    "fin-stripped": bpf("if (!strip_fin(skb, &s))", "if (0)", "a_fin_leaves_at_its_place_alone"),
    "rst": bpf("if (s.flags & RST) {\n\t\tcount(COUNT_RESETS);", "if (0) {\n\t\tcount(COUNT_RESETS);", RESET),
    "rst-settling": bpf("if (now < lease->settling)", "if (0)", RESET),
    "rst-orphan": bpf("(bpf_map_lookup_elem(&orphans, &s->key) || refuses_early(s, lease))",
                      "refuses_early(s, lease)", RESET),
    "rst-unknown": bpf(
        " || refuses_early(s, lease)", "", "what_is_unknown_here_is_reset_a_second_after_it_was_asked_first"
    ),
    # Who may speak.
    "lease": bpf("if (bpf_ktime_get_ns() >= lease->until) {", "if (0) {", LEASE),
    "lease-unknown": bpf("if (bpf_ktime_get_ns() >= lease->until || ", "if (", LEASE),
    "pin-muted": bpf("lease->until || find_pin(&s->key)", "lease->until", HELD_BY_OTHERS),
    "pin-handed-on": bpf("if (pin) {\n", "if (0) {\n", HELD_BY_OTHERS),
    "pin-one-hop": bpf(
        "is_from(skb, pin->tor) ? turn_around(skb, holder) : NEXT", "turn_around(skb, holder)", HELD_BY_OTHERS
    ),
    "pin-over": bpf("bpf_map_delete_elem(&pins, key);", ";", HELD_BY_OTHERS),
    # What is heard.
    "intact": bpf("s.flags & (FIN | RST)) && !is_intact(skb, &s))", "s.flags & (FIN | RST)) && 0)", DAMAGED),
    "intact-syn": bpf("if (!(s.flags & ACK) && is_intact(skb, &s))", "if (!(s.flags & ACK))", DAMAGED),
    "intact-parked": bpf(
        "is_first_hand(skb, lease) && is_intact(skb, &s)", "is_first_hand(skb, lease)", ORPHAN
    ),
    "parked-first-hand": bpf("is_first_hand(skb, lease) && ", "", ORPHAN),
    "copied-or-lost": bpf(
        "&& !copy_data(skb, &s))\n", "&& !copy_data(skb, &s) && 0)\n", "what_cannot_be_told_does_not_reach_the_server"
    ),
    "opened-or-lost": bpf(
        "if (!open_flow(&s))\n", "if (!open_flow(&s) && 0)\n", "what_cannot_be_told_does_not_reach_the_server"
    ),
    "parked": bpf(
        "if (!hunts && !bpf_map_lookup_elem(&orphans, &s.key)) {",
        "if (s.tcp) {",
        "an_orphan_is_heard_here_alone_until_it_begins_anew",
    ),
    # With that a flood of acknowledgements of unknown connections would reach the process.
    "unknown-untold": bpf("if (!hunts && !bpf_map_lookup_elem(&orphans, &s.key)) {", "if (0) {", FIRST),
    "unsent-unacknowledged": bpf("&& !after(s.ack, limits->data", "&& !after(0, 0 & limits->data", FIRST),
    # What becomes a protected connection.
    "handshake": bpf("|| s->ack != opening->server_next || s->seq != opening->client_next)", ")", FIRST),
    "syn-data": bpf("!s->length && load_header(skb, s, opening->syn)", "load_header(skb, s, opening->syn)",
                    "a_syn_with_data_opens_nothing"),
    "other-syn": bpf("if (s.seq + 1 != limits->first) {", "if (0) {",
                     "another_connection_between_the_same_ports_is_another"),
    "fragments": bpf(" || bpf_ntohs(ip.frag_off) & MORE_FRAGMENTS_OR_OFFSET", "",
                     "what_is_not_a_segment_of_a_service_passes", file="segment.h"),
    # What timestamps name, when, and how far they go.
    **STAMPS,
    # Nobody hands on what is here, whatever was remembered of it before.
    "known-mark": Removal("host/bpf/src/bpf/trods.c", "skb->mark = KNOWN;", "", (KNOWN,)),
    "known-rule": agent(
        'ingress.insert_str(0, &format!("  meta mark {KNOWN:#x} accept\\n"));', "", KNOWN, file="second_chance.rs"
    ),
    # What one connection's kernel said last is not said on the next one between the same ends.
    "withheld-opened": bpf("bpf_map_delete_elem(&withheld, key);", ";", WITHHELD),
    "withheld-adopted": Removal(
        "host/bpf/src/trods.rs", "self.take_withheld(key)?;", "", (f"bpf:trods::tests::{WITHHELD}", ADOPTED_STAYS)
    ),
    # Whoever dies is silent for as long as it takes until nobody listens.
    "linger": Removal(
        "host/bpf/src/linger.rs",
        "let mut left = LINGER;",
        "let mut left = 0;",
        (LINGERS,),
    ),
    "linger-told": Removal(
        "host/bpf/src/linger.rs",
        "bpf_map_update_elem(dead, (&raw const first).cast(), (&raw const set).cast(), 0);",
        "let _ = (dead, first, set);",
        (LINGERS,),
    ),
    "dead-begins": bpf("if (s.flags & SYN && dead) {", "if (0) {", "nothing_begins_under_a_process_that_died"),
    # Nothing passes before what it means is stored, elsewhere.
    "strays": agent(
        'counter drop"\n    );',
        'counter"\n    );',
        "agent:second_chance::tests::a_flood_of_strays_ends_before_the_kernel_answers",
        file="second_chance.rs",
    ),
    "strays-own": Removal(
        "host/bpf/src/bpf/trods.c",
        "return NEXT;\n\t\t}\n\t\tcount(COUNT_PARKED);",
        "skb->mark = UNKNOWN;\n\t\t\treturn NEXT;\n\t\t}\n\t\tcount(COUNT_PARKED);",
        ("agent:second_chance::tests::a_flood_of_strays_ends_before_the_kernel_answers",),
    ),
    "ended-once": trods(
        "hold/watch.rs",
        "if !connection.died && connection.flow.closes()",
        "if false && connection.flow.closes()",
        "it:survive::what_its_client_ended_ends_once",
    ),
    "store-before": trods(
        "flow/watched.rs",
        "self.storing = Some(Storing {",
        "self.limit(limits, out);\n        self.storing = Some(Storing {",
        "it:cases::a_response_is_stored_when_its_head_is_there",
        "it:watch::a_download_is_stored_before_it_begins_and_forgotten_behind_its_end",
    ),
    "store-elsewhere": trods(
        "store/mod.rs",
        "others.retain(|server| !config.own.contains(&server.ip()));",
        "",
        "it:store::the_own_host_is_no_store",
    ),
    "store-unprotected": trods(
        "flow/watched.rs",
        "&& !self.is_known_to_store()",
        "",
        "it:cases::a_stored_connection_is_unprotected_only_when_that_is_stored",
    ),
    "store-closed": trods(
        "flow/watched.rs", "settings.closed {", "settings.closed && false {",
        "it:cases::a_store_that_fails_lets_pass_or_holds",
    ),
    "held-bound": trods(
        "hold/mod.rs", "if self.held + read.len > MAX_HELD {", "if false {",
        "it:hold::more_than_there_is_room_for_is_dropped",
    ),
    # Nothing is executed twice.
    "method": trods(
        "head.rs",
        "[b, ..] if b.is_ascii_alphabetic() => return Err(Reason::Method),",
        "[b, ..] if b.is_ascii_alphabetic() => Method::Get,",
        "it:cases::what_cannot_be_protected_is_let_pass_and_says_why",
        "it:watch::what_cannot_be_protected_goes_on_unprotected",
    ),
    "body": trods(
        "head.rs", "return Err(Reason::Body);", "", "it:cases::what_cannot_be_protected_is_let_pass_and_says_why"
    ),
    # Never a mixture of two objects.
    "identity-status": identity("if head.status != 206 {", "if false {"),
    "identity-weak": identity("None => Refusal::Tag,", "None => return Ok(head.length),"),
    "identity-tag": identity("got.etag != want.etag", "false"),
    "identity-coding": identity("got.encoding != want.encoding", "false"),
    "identity-length": identity(
        "(got.first, got.length, got.total) != (want.first + from, length, want.total)", "false"
    ),
    "identity-content": trods(
        "adopt/mod.rs", "if crc32c::crc32c(body) != *sum {", "if false {", "it:adoption::another_object_is_refused"
    ),
    # Who is probed, and whose answer it is.
    "answer-tuple": answer("!is_theirs || "),
    "answer-near": answer("!(is_near || is_again) || "),
    "answer-syn": answer(" || segment.has(TcpFlags::SYN)"),
    "answer-ack": answer("!segment.has(TcpFlags::ACK) || "),
    "answer-echo": answer("!is_echo || "),
    "answer-reach": answer(" || !is_in_object"),
    "going-on-counts": trods(
        "wake.rs", "(self.version | (VERSIONS - 1)).saturating_add(1)", "self.version",
        "it:waking::whoever_goes_on_counts_more_than_whoever_it_goes_on_from",
    ),
    "answer-echo-since": trods("wake.rs", "record.handshake.first_timestamp.or(record.handshake.timestamp)",
                               "record.handshake.timestamp",
                               "it:adoption::a_client_that_nothing_new_reaches_is_found_when_the_next_replica_dies_too"),
    "erased-as-found": trods(
        "store/load.rs", "{} C{}\\r\\n\", of.number, of.cas)", "{}\\r\\n\", of.number)",
        "it:store::what_was_stored_since_it_was_found_is_not_deleted",
    ),
    "probes-paced": trods(
        "hold/pace.rs", "lane.taken < AT_A_TIME", "true",
        "trods:hold::pace::tests::so_many_at_a_time_and_those_that_are_waited_for_behind_no_others",
    ),
    "waited-for-first": trods(
        "hold/rescue.rs", "found.record.is_waited_for()", "false",
        "trods:hold::rescue::tests::whose_client_waits_is_probed_before_all_others",
    ),
    "small-windows": trods(
        "wake.rs", "handshake.mss.min(halves(place.window))", "handshake.mss",
        "it:waking::whoever_takes_less_than_two_segments_gets_shorter_ones",
    ),
    "pipe-kept": trods(
        "adopt/origin.rs", "if self.filled == 0\n            && let", "if let",
        "trods:adopt::origin::tests::ends_are_lent_while_something_is_between_them",
    ),
    "answer-fresh": trods(
        "hold/rescue.rs", "!place.fresh && ", "false && ",
        "trods:hold::rescue::tests::an_answer_shows_where_a_client_is",
    ),
    "reset-near": trods(
        "wake.rs", "if !is_near {", "if false {", "it:waking::a_client_that_knows_nothing_of_it_says_so"
    ),
    "orphans-bound": trods(
        "hold/rescue.rs",
        "self.orphans.len() >= MAX_ORPHANS",
        "false",
        "trods:hold::rescue::tests::no_more_are_looked_for_than_there_is_room_for",
    ),
    "erased-late": trods(
        "hold/rescue.rs", "now < *since + STORED", "now < *since",
        "trods:hold::rescue::tests::an_answer_shows_where_a_client_is",
    ),
    # Of two that have a connection the one that knows more goes on with it, and nobody who may not speak.
    "age-version": trods(
        "record.rs", "if self.isns == other.isns && self.version != other.version {", "if false {",
        "it:records::of_one_connection_the_higher_version_counts",
    ),
    "age-connection": trods(
        "record.rs", "if self.isns == other.isns && ", "if ", "it:records::of_one_connection_the_higher_version_counts"
    ),
    "newer-here": trods(
        "hold/rescue.rs", "watch.is_ahead(&key, &age) || ", "",
        "trods:hold::rescue::tests::what_is_newer_here_stays_here",
    ),
    "newer-elsewhere": trods(
        "hold/rescue.rs", " || watch.is_elsewhere(&key, &age)", "",
        "trods:hold::rescue::tests::what_another_was_seen_to_know_better_is_not_looked_for",
    ),
    "newer-here-pinned": trods(
        "hold/watch.rs", "self.is_ahead(key, theirs) || ", "",
        "trods:hold::rescue::tests::what_is_newer_here_stays_here",
    ),
    "mute-deaf": trods(
        "hold/watch.rs", "if service.is_some_and(|service| service.speaks(leases)) {", "if service.is_some() {",
        "trods:hold::rescue::tests::whoever_may_not_speak_hears_no_client",
    ),
    "reset-place": trods(
        "hold/connection.rs",
        "What::Reset { seq } => seq == self.next || seq == self.most,",
        "What::Reset { .. } => true,",
        "trods:hold::connection::tests::a_reset_counts_in_its_place_alone",
    ),
    # Whose connections are looked for, by whom, and what is asked of those that live.
    "gone-all": agent(
        "for dead in dead().filter(|_| gone != 0) {", "for dead in (0..64).filter(|dead| gone >> dead & 1 == 1) {",
        "agent:agent::trods::tests::with_each_that_is_gone_the_records_of_all_that_are_gone_are_read",
    ),
    "gone-again": trods(
        "hold/rescue.rs", "(known.other == found.other || known.asked > found.asked)", "true", READ_AGAIN
    ),
    "gone-in-order": trods("hold/rescue.rs", " || known.asked > found.asked", "", READ_AGAIN),
    "newer-looked-for": trods(
        "hold/rescue.rs", "orphan.found.record.age().is_after(theirs)", "orphan.probes > PROBES.len()", NEWER
    ),
    "newer-held": trods("hold/watch.rs", " || self.is_elsewhere(key, theirs);", ";", NEWER),
    "gets-asked": agent("None if plain != self.plain ||", "None if", TAKES),
    "gets-late": agent(
        " || self.look_at.is_some_and(|at| at <= now)", "",
        "agent:agent::trods::tests::a_while_after_that_it_is_asked_once_more_for_what_was_stored_late",
    ),
    "gets-waits": agent("if absence.is_some() {", "if true {", TAKES),
    "gets-own": agent(".is_some_and(|owner| u16::from(owner) == own)", ".is_some()", TAKES),
    "gets-client": Removal(
        "host/server/src/service.rs", "self.key.client(client.ip())", "self.key.flow(client, service)",
        ("server:service::tests::with_client_affinity_a_client_is_one_replicas_whatever_it_opens",),
    ),
    "gets-filter": trods(
        "hold/pins.rs", " && (absence.gets)(record.tuple.client, record.tuple.service)", "",
        "it:pins::whoever_asks_learns_who_holds_what_it_may_get",
    ),
    "former": agent("looked_for.extend(self.services.iter().filter_map(former));", "", FORMER, OUTLIVES),
    "former-own": agent("(told != incarnation).then(||", "true.then(||", FORMER),
    "former-sockets": trods(
        "hold/watch.rs", "self.hold.abort_closing(*service)?;", "",
        "it:leaving::what_the_process_before_closed_is_nobodys",
    ),
    # How an adopted connection ends.
    "adopted-leaves": trods("hold/connection.rs", " || self.leaves", "", ADOPTED_ENDS),
    "adopted-fin": trods(
        "hold/connection.rs", "fin_at.filter(|_| closes || !self.adopted)", "fin_at", ADOPTED_ENDS
    ),
    "adopted-told": trods(
        "hold/watch.rs", "=> (connection.adopted, of_dead)", "=> (false, of_dead)", ADOPTED_ENDS
    ),
    "adopted-judged": trods(
        "hold/watch.rs", "if !connection.died && !connection.adopted {", "if !connection.died {", ADOPTED_STAYS
    ),
    "adopted-stopped": agent("std::mem::forget(self.replica.take());", "drop(self.replica.take());", OUTLIVES),
    # The lease.
    "term-again": trods("lease.rs", "self.taking != taking", "self.taking && !taking", AWAY),
    "term-sent": trods("lease.rs", "self.sure.max(sent.", "self.sure.max(now.", HEARD),
    "term-alive": trods("lease.rs", "        if here {", "        if true {", OUT),
    "term-late": trods("lease.rs", "self.sure.max(sent.saturating_add(", "0.max(sent.saturating_add(", HEARD),
    "term-away": trods("lease.rs", " && self.away().is_none()", "", AWAY),
    "term-absence": trods("lease.rs", "u64::from(self.taking != taking || was_here != here)", "0", AWAY),
    "term-back": trods("lease.rs", " || was_here != here", "", OUT),
    "term-out": trods("lease.rs", "if here && !self.out && ", "if here && ", OUT),
    "term-lapsed": trods("lease.rs", " || now > self.sure", "", OUT),
    "term-settling": trods(
        "lease.rs", "if gone != 0 || ", "if ",
        "trods:lease::tests::who_is_gone_is_told_once_and_its_clients_are_not_reset",
    ),
    "term-takes": trods("lease.rs", " || !taking || self.away()", " || self.away()", RESETS_NOBODY),
    "term-knows": trods("lease.rs", " || !taking || self.away().is_some()", " || !taking", RESETS_NOBODY),
    # What no flow writes.
    "record-passed": field("passed > length"),
    "record-last": field("passed < length && !last"),
    "record-empty": field("length == 0"),
    "record-count": field("if count > MAX_RESPONSES {", "if false {"),
    "record-clock": field("handshake.timestamp.is_none() && handshake.first_timestamp.is_some()"),
    "record-shift": field("theirs > MAX_SCALE || ours > MAX_SCALE"),
    "record-whole": field("octets.len() as u64 != length"),
    "record-long": field("if length > most {", "if false {"),
    "record-object": field("head.len() as u64 + object.length != length"),
    "record-check": field("u64::from(check.0) > object.length.min(MAX_WHOLE as u64)"),
    "record-request": field(".filter(|asked| asked.length == request.len())", ""),
    "record-head": field("said.length == head.len()", "true"),
    "record-sum": trods(
        "record/codec.rs",
        "if crc32c::crc32c(octets) != u32::from_be_bytes(*sum) {",
        "if u32::from_be_bytes(*sum) == 0 {",
        "it:records::a_record_is_damaged_wherever_it_is_touched",
    ),
    "record-end": trods(
        "record/codec.rs", "if !from.0.is_empty() {", "if false {", "it:records::a_record_ends_where_it_says"
    ),
    # The Congestion Manager's calls: whose flow it is, what counts as arrived, that no grant is lost, and who is woken.
    "cm-user": calls(
        "bpf/src/bpf/calls.c", "if (!flow || flow->uid != uid)", "if (!flow)",
        "calls::a_flow_is_its_users_and_so_is_the_window",
    ),
    "cm-arrived": calls(
        "bpf/src/bpf/share.h", ".resolved = cm_min(nsent, before),", ".resolved = nsent,",
        "calls::what_did_not_leave_does_not_count_as_arrived",
    ),
    "cm-room": calls(
        "bpf/src/bpf/calls.c", "if (used + (client->waiting + count) * CM_EVENT_ROOM > room)", "if (0)",
        "calls::events_that_are_not_taken_have_room",
    ),
    "cm-woken": calls(
        "bpf/src/bpf/calls_time.h", "waited_for(ring) ? 0 : BPF_RB_NO_WAKEUP", "BPF_RB_NO_WAKEUP",
        "calls::grants_that_nobody_uses_go_to_others",
    ),
    "cm-moved-user": calls(
        "bpf/src/bpf/calls_move.h", "known->of.class != moved->uid + 1 || ", "",
        "moves::a_macroflow_is_its_users_whoever_knows_its_number",
    ),
    "cm-moved-once": calls(
        "bpf/src/bpf/calls_move.h", "cm_slot(&from->s, at)->moves ? -EAGAIN : 0", "0",
        "moves::moves_and_ends_at_one_moment_leave_nothing_behind",
    ),
    "cm-moved-counted": calls(
        "bpf/src/bpf/calls.c", "\treturn there;\n", "\treturn 1;\n", "moves::what_leaves_meanwhile_is_counted"
    ),
    "cm-moved-history": calls(
        "bpf/src/bpf/calls.c", " || flow->place.key.apart", "", "moves::macroflows_that_were_split_do_not_add_up"
    ),
    "cm-headers": calls(
        "bpf/src/bpf/calls.c", "kernel->transport_header - kernel->network_header", "20",
        "calls::datagrams_behind_options_and_extension_headers_count",
    ),
    "cm-queue": calls(
        "libcm/src/udp.rs", "if self.queue.len() >= self.limit {", "if false {",
        "udp::what_is_sent_waits_for_its_grants_and_leaves_in_order",
    ),
}  # fmt: skip


def sources() -> Iterator[Path]:
    """What cargo needs of the tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    yield from (Path(os.fsdecode(name)) for name in listed.stdout.split(b"\0") if name)


def copy() -> None:
    """The tree as it is now in place of the copy; what is the same stays, and so does what was built of it."""
    wanted = {path for path in sources() if (ROOT / path).is_file()}
    there = {path.relative_to(TREE) for path in TREE.rglob("*") if path.is_file()}
    for path in there - wanted:
        (TREE / path).unlink()
    for path in wanted:
        restore(path)
    # What is taken away may leave something unused.
    build = TREE / "host/bpf/build.rs"
    text = build.read_text()
    build.write_text(text.replace(', "-Werror"]', "]"))


def restore(path: Path) -> None:
    """A file of the copy as it is in the tree."""
    ours, copied = ROOT / path, TREE / path
    if not copied.exists() or copied.read_bytes() != ours.read_bytes():
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ours, copied)


def test(program: str, names: list[str]) -> list[str]:
    """Which of these tests of a program fail."""
    command = [CARGO, "test", "--locked", "--quiet", *PROGRAMS[program]]
    # Debug information takes longer to write than the rest takes to compile.
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(TARGET),
        "CARGO_PROFILE_DEV_DEBUG": "0",
        "RUSTFLAGS": "-Awarnings",
    }
    # By itself: what takes long to build does not hang.
    subprocess.run([*command, "--no-run"], cwd=TREE, env=environment, check=True)
    command += ["--", "--exact", "--include-ignored", "--format=pretty", "--show-output", *names]
    with subprocess.Popen(
        command, cwd=TREE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            text, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return [f"{name} (it hangs)" for name in names]
    ended = dict(re.findall(r"^test (\S+) \.\.\. (ok|FAILED)", text, re.M))
    if skipped := re.findall(r"^SKIPPED: .*", text, re.M):
        raise SystemExit(skipped[0])
    if set(ended) != set(names):
        raise SystemExit(f"of {', '.join(names)} there ran {', '.join(ended) or 'none'}:\n{text[-3000:]}")
    return [name for name, how in ended.items() if how == "FAILED"]


def app(file: str, old: str, new: str, *tests: str) -> Removal:
    """Of the Congestion Manager's applications."""
    return Removal(f"host/cm-apps/src/{file}", old, new, tests)


STREAM_IS_ITS_RECEIVERS = "streams:streams::who_is_not_where_it_says_gets_no_stream_and_nobody_elses_words_count"
STREAM_ENDS = "streams:streams::a_silent_receiver_has_lost_all_and_is_given_up"
NOT_SENT = "apps:outstanding::tests::a_receiver_cannot_report_what_was_not_sent"

REMOVALS |= {
    "apps-admission": app(
        "server.rs", "if !self.admission.admits(from, &cookie) {", "if false {", STREAM_IS_ITS_RECEIVERS
    ),
    "apps-report": app("session.rs", "if report.cookie != self.cookie {", "if false {", STREAM_IS_ITS_RECEIVERS),
    "apps-bye": app("server.rs", "is_some_and(|session| session.knows(&cookie))", "is_some()", STREAM_IS_ITS_RECEIVERS),
    "apps-most": app(
        "server.rs",
        "if self.receivers.len() >= self.options.receivers {",
        "if false {",
        "streams:streams::receivers_beyond_the_most_are_not_served_until_one_ends",
    ),
    "apps-silence": app("session.rs", "client.update(self.flow, &update)?;", "let _ = update;", STREAM_ENDS),
    "apps-gone": app("session.rs", "now >= self.heard + self.gone", "false && now >= self.heard", STREAM_ENDS),
    "apps-not-sent": app("outstanding.rs", " || report.highest >= self.next()", "", NOT_SENT),
    "apps-arrived": app("outstanding.rs", "(self.counted.1).min(resolved)", "(self.counted.1)", NOT_SENT),
    "apps-parts": app(
        "outstanding.rs",
        "if lost { u64::MAX } else { 2 * u64::from(mtu) }",
        "if lost || mtu > 0 { u64::MAX } else { 0 }",
        "streams:streams::a_first_window_leaves_and_a_late_report_about_it_counts_as_if_it_had_come_for_each",
    ),
    "apps-again": app(
        "receiver.rs",
        "below >= WINDOW || self.seen >> below & 1 == 1",
        "below >= WINDOW",
        "apps:receiver::tests::each_is_counted_once_and_what_is_too_old_to_be_known_is_not",
    ),
    "apps-gives-way": app(
        "layers.rs",
        "if layer < before && !self.waiting.is_empty() {",
        "if layer > before {",
        "apps:layers::tests::what_waits_of_a_layer_that_fits_no_more_gives_way",
    ),
    "apps-policer": app(
        "audio.rs",
        "if !self.policer.passes(now, HEADER + content.len()) {",
        "if self.policer.rate == Some(0) {",
        "apps:audio::tests::the_policer_stands_before_the_buffer",
    ),
    "apps-head": app(
        "audio.rs",
        "if self.drop == Drop::Tail {",
        "if self.drop != Drop::Tail {",
        "apps:audio::tests::a_full_buffer_drops_from_its_head_or_its_tail",
    ),
}  # fmt: skip


def failed(removal: Removal) -> list[str]:
    """The tests that fail without it, with which all is well."""
    take_out(removal, TREE)
    try:
        programs: dict[str, list[str]] = {}
        for name in removal.tests:
            program, _, path = name.partition(":")
            programs.setdefault(program, []).append(path)
        return [name for program, names in programs.items() for name in test(program, names)]
    finally:
        restore(Path(removal.file))


def prepare(removals: Iterable[Removal]) -> None:
    """The copy, in which no test of these fails: one that fails anyway would notice everything."""
    copy()
    wanted = {name for removal in removals for name in removal.tests}
    for program in PROGRAMS:
        of = {name.partition(":")[2] for name in wanted if name.startswith(f"{program}:")}
        if of and (bad := test(program, sorted(of))):
            raise SystemExit(f"failing with every defence: {', '.join(bad)}")


def main() -> int:
    args = parser(__doc__ or "", REMOVALS).parse_args()
    prepared = False

    def noticed(removal: Removal) -> list[str]:
        nonlocal prepared
        if not prepared:
            prepare(REMOVALS[name] for name in args.names or REMOVALS)
            prepared = True
        return failed(removal)

    return run(REMOVALS, args, ROOT, noticed)


if __name__ == "__main__":
    sys.exit(main())

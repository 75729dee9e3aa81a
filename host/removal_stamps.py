# SPDX-License-Identifier: Apache-2.0
"""Removals of the defences of TRODS without a store (names of responses in timestamps): data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal
from removal_trods import agent, bpf, field, trods


def stamps(old: str, new: str, test: str, file: str = "ts.h") -> Removal:
    """In the BPF programs that make handshakes and timestamps."""
    return bpf(old, new, f"stamped::{test}", file=file)


def named(old: str, new: str, test: str, file: str = "read.rs") -> Removal:
    """In the code that reads the state of a connection from one segment of the client."""
    return trods(f"ts/{file}", old, new, f"trods:ts::{file.removesuffix('.rs')}::tests::{test}")


NAMED = "request_is_acknowledged_only_with_named_timestamp"
UNNAMED = "unlisted_target_continues_unnamed"
HELD_UNNAMED = "unlisted_response_is_held_for_recording"
BOUND = "client_with_hole_gets_only_its_object"
REFLECTED = "final_ack_is_reflected_as_ack_of_request"
NOT_THIS = "segment_of_other_connection_gives_nothing"
DONE = "finished_client_is_not_resumed"
NOT_ASKED = "departed_client_is_not_probed_again"
GIVEN = "state_of_dead_process_goes_to_same_user_only"
DYING = "close_by_dying_process_is_distinguished"
FORMER = "it:stamps::connections_of_dead_process_are_left_to_others"

REMOVALS: dict[str, Removal] = {
    # Bytes that a client holds behind holes, and acknowledges before the new replica has sent them.
    "ts-beyond": Removal(
        "host/bpf/src/bpf/ts.h",
        "if (!is_limited && st->flags & STAMPED_ADOPTED && !bound_ack(skb, s, &heard))",
        "if (0)",
        (
            "bpf:trods::tests::beyond::ack_of_stamped_connection_is_lowered_too",
            "it:stamps::data_behind_holes_does_not_stall_the_adopter",
        ),
    ),
    "ts-acknowledged-first": stamps("\tif (!is_first)\n\t\treturn limits->ack;\n", "", NAMED),
    "ts-echo-first": stamps("st->limits.ack = st->client_next;", "", NAMED),
    "ts-untold": stamps(
        "if (dead && st->phase == STAMPED_ASKED)",
        "if (0)",
        "no_response_begins_under_dead_process",
    ),
    # A client with the whole response gets the acknowledgement that it lacks, and no other client does.
    "ts-reflected": stamps("if (is_owed(s, st) && ", "if (false && is_owed(s, st) && ", REFLECTED),
    "ts-reflected-all": stamps(" && s->ack - st->isn - 1 >= st->total", "", REFLECTED, file="ts_reflect.h"),
    "ts-reflected-echoed": stamps("st->phase == STAMPED_ECHOED && ", "", REFLECTED, file="ts_reflect.h"),
    "ts-reflected-told": stamps("\t\tst->owed = 0;", "\t\t;", REFLECTED, file="trods.c"),
    "ts-reflected-once": stamps("if (st && !st->told)", "if (st)", REFLECTED, file="trods.c"),
    "ts-first-whole": stamps(" && skb->gso_segs <= 1", "", REFLECTED),
    # Stamps of a connection that another has replaced.
    "ts-kernels-handshake": bpf(
        "\t\tif (s.flags & SYN)\n\t\t\tbpf_map_delete_elem(&stamped, &s.key);\n",
        "",
        "stamped::recorded::kernel_handshake_removes_former_connection",
    ),
    "ts-record-echoed": Removal(
        "host/bpf/src/trods.rs",
        "is_none_or(|now| now.phase != Phase::Echoed)",
        "is_none()",
        ("bpf:trods::tests::stamped::recorded::changed_connection_is_not_recorded",),
    ),
    # Stamped connections of a process that died, and connections without limits.
    "ts-dying": bpf("st ? limits_of(&key, st) : bpf", "bpf", DYING, file="dying.c"),
    "ts-dying-free": bpf("st->phase == STAMPED_FREE ? NULL : &st->limits", "&st->limits", DYING, file="flows.h"),
    "ts-reflected-whole": stamps(
        "return turn(skb) && !bpf_skb_store_bytes(skb, s->tcp, &said, sizeof(said), 0);",
        "return true;",
        REFLECTED,
        file="ts_reflect.h",
    ),
    "ts-ahead": stamps(
        "#define AHEAD (INDICES / 2 - 1)",
        "#define AHEAD (INDICES - 1)",
        "timestamps_increase_within_reach_of_echo",
        file="ts_maps.h",
    ),
    "ts-nobodys": stamps("st->object = NOBODYS;", "", UNNAMED, file="ts_object.h"),
    "ts-whole": stamps("if (p.ends != length)", "if (!p.ends)", UNNAMED, file="ts_object.h"),
    "ts-fields": stamps("if (p.has_fields || ", "if (", UNNAMED, file="ts_object.h"),
    "ts-host": stamps("\t\thost->target = add_octet(host->target, octet);\n", "", UNNAMED, file="ts_object.h"),
    "ts-long-host": stamps("!host.ended || ", "", "overlong_host_matches_no_other_site", file="ts_object.h"),
    "ts-no-host": stamps("!p.host || !host.begun || ", "", UNNAMED, file="ts_object.h"),
    "ts-two-hosts": stamps("\t\tif (p->host)\n\t\t\tp->has_fields = true;\n", "", UNNAMED, file="ts_object.h"),
    "ts-head": stamps(
        "if (sum_words(octets, length) != head->sum)",
        "if (0)",
        "unknown_response_head_is_not_named",
        file="ts_object.h",
    ),
    "ts-second": stamps(
        "else if (after(s->seq + s->length, st->client_next))", "else if (0)", "second_request_is_not_named"
    ),
    "ts-echoed-late": stamps(
        "if (((index - st->echo) & (INDICES - 1)) <= ((st->index - st->echo) & (INDICES - 1)))",
        "",
        "echo_becomes_kernels_newest_timestamp_of_index",
    ),
    "ts-agreed": agent(
        "if is_made && in_force == table {",
        "if is_made {",
        "agent:agent::trods::tests::content_in_force_is_named_under_its_epochs_key",
    ),
    "ts-reach": named("(offset <= reach).then_some", "Some", NOT_THIS),
    "ts-key": named(".filter(|(_, odd)| *odd == stamp.odd)", "", NOT_THIS),
    "ts-part-of-a-head": named("if offset >= known.head.length =>", "if known.head.length > 0 =>", NOT_THIS),
    "ts-nobodys-read": named(" || stamp.object == NOBODYS", "", NOT_THIS),
    "ts-asked-again": named(
        "(Some(response), None) if offset < reach =>",
        "(Some(response), None) =>",
        "unannounced_client_shows_end_of_its_request",
    ),
    "ts-request-again": named(
        '(None, _) if payload.starts_with(b"GET ")',
        "(None, _) if true",
        "client_without_response_bytes_repeats_its_request",
    ),
    # Without it, an excluded replica would be handed the connections that it held.
    "ts-held-by-dead": trods(
        "ts/others.rs",
        "named.contains(&key.service()) && alive >> (holder & 63) & 1 == 1;",
        "named.contains(&key.service()) && (holder < 64 || *alive > 0);",
        "it:stamps::unannounced_download_resumes_at_another_replica",
    ),
    "ts-early-reset": trods(
        "ts/mod.rs",
        "if is_reset && programs.stamps().get(&key)?.is_some_and(|stamped| stamped.adopted) {",
        "if is_reset && programs.stamps().get(&key)?.is_none() {",
        "it:stamps::kernel_rst_does_not_end_adopted_connection",
    ),
    # Objects that timestamps cannot name, in a service with a store.
    "ts-held": stamps(
        "service->records ? hand_over(", "service->records == 2 ? hand_over(", HELD_UNNAMED, file="ts_object.h"
    ),
    "ts-recorded-nobodys": stamps("if (!limits || limits->flags & LIMITS_RECORDED)", "if (!limits)", HELD_UNNAMED),
    "ts-recorded-later": stamps(
        "if (!limits || limits->flags & LIMITS_RECORDED)",
        "if (!limits || limits->flags + 1)",
        "second_request_is_recorded_if_possible",
    ),
    "ts-has-all": stamps(
        "st->client_next) && is_named && !has_all)",
        "st->client_next) && 0)",
        "second_request_is_recorded_if_possible",
    ),
    "ts-request-told": stamps(
        "if (length <= REQUEST_MAX)\n\t\tbpf_ringbuf_output",
        "if (0)\n\t\tbpf_ringbuf_output",
        "request_with_unknown_response_head_makes_event_first",
        file="ts_object.h",
    ),
    "awaited-untouched": bpf(
        "if (limits && limits->flags & LIMITS_AWAITED)",
        "if (0)",
        "stamped::recorded::segment_before_socket_exists_is_replayed",
        file="ts.h",
    ),
    "awaited": bpf(
        "if (limits->flags & LIMITS_AWAITED)",
        "if (0)",
        "stamped::recorded::segment_before_socket_exists_is_replayed",
    ),
    "ts-taken-once": Removal(
        "host/bpf/src/bpf/ts.h",
        "if (__sync_val_compare_and_swap(&made->taken, 0, bpf_ktime_get_ns())) {",
        "if (0) {",
        ("it:both::duplicated_handshake_ack_opens_one_connection",),
    ),
    "ts-listened": named(
        "(self.listens.0 + TOLD).max(soon)", "soon", "new_replica_waits_for_all_announcements", file="absences.rs"
    ),
    "ts-deaf": named(
        "if now.saturating_duration_since(last) > DEAF {",
        "if now < last {",
        "paused_replica_waits_for_all_announcements",
        file="absences.rs",
    ),
    "ts-once-more": named(
        "if at < last {", "if last < at {", "listening_replica_completes_pins_early_and_rechecks", file="absences.rs"
    ),
    "ts-behind-the-object": named(
        "if !blocks.iter().all(is_within) {",
        "if false {",
        "client_with_bytes_after_the_object_is_not_resumed",
    ),
    "ts-record-stamps": trods(
        "ts/read.rs",
        "index: (stamp.index + AHEAD) % 32,\n        echo: stamp.index,\n        limits: Limits::default(),\n    })",
        "index: 0,\n        echo: 0,\n        limits: Limits::default(),\n    })",
        "it:both::unnamed_connections_resume_by_records_beside_named_ones",
    ),
    "ts-record-key": named(
        "if !with.keys.iter().any(|(of, _)| object_isn(*of, key.client(), key.service()) == stamped.isn) {",
        "if false {",
        "named_response_is_recorded_with_missing_bytes",
    ),
    "ts-record-head": named(
        "!(known.head.length..=total).contains(&offset)",
        "!(0..=total).contains(&offset)",
        "named_response_is_recorded_with_missing_bytes",
    ),
    "ts-base": field("handshake.stamps.is_some_and(|base| !is_base(base))"),
    "ts-hint-tag": named(
        "half_sip_hash_64(p.secret, octets) == u64::from_be_bytes(*tag)",
        "true",
        "hints_of_unknown_peers_are_ignored",
        file="hints.rs",
    ),
    "ts-hint-generation": named(
        "*holder == sender || !known.is_after(&hint)",
        "true",
        "former_holder_does_not_hide_the_adopter",
        file="hints.rs",
    ),
    "ts-elsewhere": trods(
        "ts/others.rs",
        " || self.lost.is_behind(&key, theirs)",
        "",
        "it:stamps::connection_adopted_elsewhere_is_not_adopted_here",
    ),
    "withheld-silently": Removal(
        "host/bpf/src/bpf/refusals.h",
        "return bpf_redirect(NOWHERE, 0);",
        "return DROP;",
        ("it:stamps::withheld_segments_do_not_halve_the_window",),
    ),
    # Connections of a process that has just died: this replica ends them silently, and others continue them.
    "ts-former": trods("hold/watch/mod.rs", "if are_formers && follows {", "if false {", FORMER),
    "ts-former-silent": trods(
        "hold/mod.rs", "        self.programs.park(key)?;\n        let result", "        let result", FORMER
    ),
    "ts-former-died": trods("hold/watch/mod.rs", " && std::mem::take(&mut self.follows);", ";", FORMER),
    # Sequence numbers wrap: of two connections with the same key the one with the later segment is current.
    "ts-quiet": named(
        "if self.quiet != other.quiet {",
        "if false {",
        "former_holder_does_not_hide_the_adopter",
        "hints.rs",
    ),
    # Connections that the client has ended are not searched for, and replicas are queried once.
    "ts-ended-half": named("if is_over && header.seq", "if false && header.seq", DONE),
    "ts-gone": trods("ts/lost.rs", "            self.gone.push(*key);\n", "", f"it:stamps::{NOT_ASKED}"),
    "ts-gone-number": named("if is_its { Told::Gone }", "if true { Told::Gone }", DONE),
    "ts-begun-anew": trods(
        "ts/lost.rs", "if programs.stamps().get(&key)?.is_some() {", "if false {", f"it:stamps::{NOT_ASKED}"
    ),
    "ts-heard-again": trods(
        "replica/body.rs",
        "self.watch.hear_again(&key, &packet);",
        "let _ = &packet;",
        "it:stamps::clients_request_reaches_the_adopter",
    ),
    # A new process inherits the names that the one before it knew, if it has the same user.
    "ts-former-told": trods(
        "replica/body.rs",
        "names.leave_formers(formers.ended, Instant::now());",
        "let _ = (names, formers.ended);",
        FORMER,
    ),
    "ts-former-given": Removal(
        "host/bpf/src/linger.rs",
        "Some(legacy) => bequeath(legacy, until - milliseconds()),",
        "Some(_) => _ = libc::usleep(10_000),",
        (f"bpf:trods::presence::tests::{GIVEN}", FORMER),
    ),
    "ts-former-user": Removal(
        "host/bpf/src/linger.rs",
        "if known == 0 && who.uid == libc::geteuid() {",
        "if known == 0 {",
        (f"bpf:trods::presence::tests::{GIVEN}",),
    ),
    # A process that accepts no connection from its successor delays nothing.
    "ts-former-waits": Removal(
        "host/bpf/src/trods/presence.rs",
        "    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;\n    let from",
        "    let flags = SocketFlags::CLOEXEC;\n    let from",
        ("bpf:trods::presence::tests::listener_that_accepts_nothing_is_not_waited_for",),
    ),
    # A process that unloads the programs and loads new ones inherits nothing from a dead one.
    "ts-former-own": Removal(
        "host/bpf/src/linger.rs",
        "        let _ = self.0.read_exact(&mut [0]);\n",
        "",
        ("bpf:linger::tests::resources_are_free_after_programs_are_removed",),
    ),
    "ts-settles": trods(
        "replica/body.rs",
        "if formers.any {",
        "if false {",
        "it:stamps::new_process_gets_no_clients_before_others_adopted",
    ),
    "ts-left-again": trods(
        "ts/leave.rs",
        "self.hints.tell(key, Hint { left_to: Some(to.holder), ..hint });\n        }",
        "}",
        "it:stamps::connections_of_drained_replica_resume_elsewhere",
    ),
    "ts-left-to-one": trods(
        "ts/others.rs",
        "hint.left_to.is_none() || ",
        "hint.left_to.is_some() || ",
        "it:stamps::connections_of_drained_replica_resume_elsewhere",
    ),
    "ts-comes-back": trods(
        "ts/leave.rs",
        "self.lost.look_for(key, Some(hint), None, now, programs)?;",
        "",
        "it:stamps::connection_without_adopter_returns",
    ),
    "ts-handed-back": trods(
        "ts/others.rs",
        "if self.lost.is_since(&key, told) {",
        "if self.lost.is_since(&key, told) && holder > 63 {",
        "it:stamps::returning_replica_gets_no_segments_before_announcing",
    ),
    "ts-others": trods(
        "ts/others.rs",
        "is_near(segment.header.seq, hint.client_next)",
        "segment.payload.len() > 65_535 && is_near(segment.header.seq, hint.client_next)",
        "it:stamps::connection_of_live_holder_is_not_adopted",
    ),
    "ts-later-connection": named(
        "self.client_next.wrapping_sub(other.client_next) as i32 > 0",
        "self.generation.is_after(other.generation)",
        "former_holder_does_not_hide_the_adopter",
        file="hints.rs",
    ),
    "ts-had-before": trods(
        "ts/others.rs",
        "own.is_some_and(|own| theirs.is_after(&own)) || ",
        "",
        "it:stamps::former_holder_drops_an_adopted_connection",
    ),
    "ts-told-again": agent(
        "if gone != 0 || is_moved {",
        "if gone != 0 && (is_moved || gone > 0) {",
        "agent:agent::trods::tests::changed_takers_report_all_dead_members_again",
    ),
    "ts-generation-wraps": Removal(
        "host/bpf/src/trods/stamped.rs",
        "(1..GENERATIONS / 2).contains(&(self.0.wrapping_sub(other.0) % GENERATIONS))",
        "self.0 > other.0",
        ("bpf:trods::stamped::tests::later_adoption_wins_across_wraparound",),
    ),
    "dying-unaccepted": bpf(
        "if (!sk->sk_lock.owned && (after != TCP_CLOSE || sk->sk_socket))",
        "if (!sk->sk_lock.owned)",
        "close_by_dying_process_is_distinguished",
        file="dying.c",
    ),
    "dying-unread": bpf(
        "&((const struct inet_sock *)sk)->inet_sport",
        "&common->skc_dport",
        "close_by_dying_process_is_distinguished",
        file="dying.c",
    ),
    "ts-bound-asked": stamps(
        "if (is_bound(st))\n\t\treturn RETRIES;\n\tenum next_words", "enum next_words", BOUND, file="ts_object.h"
    ),
    "ts-bound-spoken": stamps("if (is_bound(st))\n\t\treturn RETRIES;\n\tset_free", "set_free", BOUND),
    "ts-bound-head": stamps("if (is_bound(st) && st->object != head->object)", "if (0)", BOUND, file="ts_object.h"),
    "ts-bound-silent": stamps("(is_bound(st) ? 0 : st->object)", "st->object", BOUND),
    "ts-bound-to-head": named(
        "to <= left && from >= behind || from as i32",
        "to <= left || from as i32",
        "client_without_response_bytes_repeats_its_request",
    ),
    "ts-hint-sender": named(
        "*n == sender && address.ip() == from",
        "*n == sender",
        "hints_of_unknown_peers_are_ignored",
        file="hints.rs",
    ),
}

# SPDX-License-Identifier: Apache-2.0
"""Removals of the Congestion Manager's defences: data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal


def calls(file: str, old: str, new: str, *tests: str) -> Removal:
    """In the calls of the Congestion Manager."""
    return Removal(f"host/{file}", old, new, tuple(f"calls:{test}" for test in tests))


def app(file: str, old: str, new: str, *tests: str) -> Removal:
    """In the applications of the Congestion Manager."""
    return Removal(f"host/cm-apps/src/{file}", old, new, tests)


STREAM_IS_ITS_RECEIVERS = "streams:streams::forged_addresses_get_no_stream_and_foreign_messages_are_ignored"
STREAM_ENDS = "streams:streams::receiver_without_feedback_times_out"
NOT_SENT = "apps:outstanding::tests::reports_of_unsent_packets_are_ignored"

REMOVALS: dict[str, Removal] = {
    # Kernel TCP under the Congestion Manager.
    "cm-old-loss": Removal(
        "host/cm/src/controller/aimd.rs", "self.recovering() || report.old;", "self.recovering();",
        ("rules:controller::aimd::tests::loss_from_before_a_known_reduction_reduces_nothing",),
    ),
    "cm-old-loss-c": Removal(
        "host/bpf/src/bpf/macroflow.h", "cm_recovering(m) || report->old;", "cm_recovering(m);",
        ("kernel:macroflow::any_trace_has_the_same_numbers_in_c",),
    ),
    "cm-number-back": Removal(
        "host/bpf/src/bpf/cm.c", "give_number(e, number);\n\treturn 1;", "return 1;",
        ("kernel:kernel::deleted_macroflow_makes_room_for_another",),
    ),
    "cm-goes-on": Removal(
        "host/bpf/src/bpf/connection.h", "goes_on && sent < 0", "0 && goes_on && sent < 0",
        ("kernel:kernel::deleted_macroflow_makes_room_for_another",),
    ),
    "cm-weight": Removal(
        "host/bpf/src/bpf/share.h", "CM_STRIDE / (slot->weight ? slot->weight : 1)", "CM_STRIDE",
        ("kernel:share::any_trace_has_the_same_grants_in_c",),
    ),
    # The calls: owner of a flow, arrived bytes, grants that must not be lost, processes to wake.
    "cm-user": calls(
        "bpf/src/bpf/calls.c", "if (!flow || flow->uid != uid)", "if (!flow)",
        "calls::a_flow_is_its_users_and_so_is_the_window",
    ),
    "cm-account": calls(
        "bpf/src/bpf/calls.c", "flow.place.account = account;", "flow.place.account = uid;",
        "calls::user_ids_of_one_account_share_its_flows",
    ),
    "cm-arrived": calls(
        "bpf/src/bpf/share.h", ".resolved = cm_min(nsent, before),", ".resolved = nsent,",
        "calls::unsent_bytes_do_not_count_as_arrived",
    ),
    "cm-room": calls(
        "bpf/src/bpf/calls.c", "if (used + (client->waiting + count) * CM_EVENT_ROOM > room)", "if (0)",
        "calls::unread_events_never_overflow_the_ring",
    ),
    "cm-woken": calls(
        "bpf/src/bpf/calls_time.h", "waited_for(ring) ? 0 : BPF_RB_NO_WAKEUP", "BPF_RB_NO_WAKEUP",
        "calls::unused_grants_go_to_other_flows",
    ),
    "cm-moved-user": calls(
        "bpf/src/bpf/calls_move.h", "known->of.class != moved->uid + 1 || ", "",
        "moves::macroflow_of_another_user_is_refused",
    ),
    "cm-moved-once": calls(
        "bpf/src/bpf/calls_move.h", "cm_slot(&from->s, at)->moves ? -EAGAIN : 0", "0",
        "moves::concurrent_moves_and_closes_leave_no_state",
    ),
    "cm-moved-counted": calls(
        "bpf/src/bpf/calls.c", "\treturn there;\n", "\treturn 1;\n", "moves::packets_sent_during_moves_count_once"
    ),
    "cm-moved-history": calls(
        "bpf/src/bpf/calls.c", " || flow->place.key.apart", "", "moves::split_macroflows_end_with_their_flows"
    ),
    "cm-headers": calls(
        "bpf/src/bpf/calls.c", "kernel->transport_header - kernel->network_header", "20",
        "calls::datagrams_behind_options_and_extension_headers_count",
    ),
    "cm-queue": calls(
        "libcm/src/udp.rs", "if self.queue.len() >= self.limit {", "if false {",
        "udp::datagrams_leave_in_order_as_granted",
    ),
    # The applications.
    "apps-admission": app(
        "server.rs", "if !self.admission.admits(from, &cookie) {", "if false {", STREAM_IS_ITS_RECEIVERS
    ),
    "apps-report": app("session.rs", "if report.cookie != self.cookie {", "if false {", STREAM_IS_ITS_RECEIVERS),
    "apps-bye": app(
        "server.rs", "is_some_and(|session| session.has_cookie(&cookie))", "is_some()", STREAM_IS_ITS_RECEIVERS
    ),
    "apps-most": app(
        "server.rs",
        "if self.receivers.len() >= self.options.receivers {",
        "if false {",
        "streams:streams::receivers_beyond_the_most_are_not_served_until_one_ends",
    ),
    "apps-silence": app("session.rs", "client.update(self.flow, &update)?;", "let _ = update;", STREAM_ENDS),
    "apps-gone": app(
        "session.rs", "now >= self.last_message + self.timeout", "false && now >= self.last_message", STREAM_ENDS
    ),
    "apps-not-sent": app("outstanding.rs", " || report.highest >= self.next()", "", NOT_SENT),
    "apps-arrived": app("outstanding.rs", "(self.counted.1).min(resolved)", "(self.counted.1)", NOT_SENT),
    "apps-parts": app(
        "outstanding.rs",
        "if lost { u64::MAX } else { 2 * u64::from(mtu) }",
        "if lost || mtu > 0 { u64::MAX } else { 0 }",
        "streams:streams::late_report_about_a_window_counts_like_one_per_packet",
    ),
    "apps-again": app(
        "receiver.rs",
        "below >= WINDOW || self.seen >> below & 1 == 1",
        "below >= WINDOW",
        "apps:receiver::tests::duplicates_and_too_old_packets_are_not_counted",
    ),
    "apps-gives-way": app(
        "layers.rs",
        "if layer < before && !self.waiting.is_empty() {",
        "if layer > before {",
        "apps:layers::tests::waiting_datagrams_shrink_when_the_layer_falls",
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

# SPDX-License-Identifier: Apache-2.0
"""Removals of the defences of large answers and of changes of mode and content: data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal

PROGRAMS = {
    "plain": ("-p", "rivulet-plain", "--lib"),
    "plains": ("-p", "rivulet-plain", "--test", "it"),
}


def large(file: str, old: str, new: str, *tests: str) -> Removal:
    """Tests without a program's prefix are those of tests/it/large.rs."""
    named = tuple(test if ":" in test else f"plains:large::{test}" for test in tests)
    return Removal(f"host/plain/src/large/{file}", old, new, named)


def server(file: str, old: str, new: str, test: str) -> Removal:
    """In the server; the test runs the whole program."""
    return Removal(f"host/server/src/server/{file}", old, new, (f"agents:{test}",))


BLOCKS = "changes_of_replica_cost_no_rate"
BACK = "segments::segment_unknown_to_both_returns_to_the_tor_once"
NO_CONTENT = "segments::replica_without_content_forwards_segments_once"
LARGE = "segments::kernel_keeps_segments_that_resemble_large_answers"
LATE = "segments::valid_cookie_with_wrong_timestamp_is_not_reset"
HOPS = "segments::hop_count_shows_a_forwarded_segment"

REMOVALS = {
    # Another replica continues an answer.
    "large-stale": large("sender.rs", "if !self.has_sent(at) {", "if false {", BLOCKS),
    "large-back": large(
        "sender/transmit.rs",
        "let repair = repair || from / CELL <= self.repaired / CELL && self.repaired > 0;",
        "",
        BLOCKS,
    ),
    "large-window": large(
        "sender.rs",
        "Window::from_stamp(class.segment(), told)",
        "Window::from_stamp(class.segment(), 0)",
        BLOCKS,
    ),
    "large-under-way": large(
        "sender.rs", "let under_way = (cwnd - cwnd / 8).min(heard.window);", "let under_way = 0;", BLOCKS
    ),
    "large-ranges": large(
        "board.rs", "RANGES: usize = 512;", "RANGES: usize = 128;", "overflow_of_a_long_queue_is_repaired"
    ),
    # No replica owns a retransmission timer.
    "large-asks": large(
        "sender.rs",
        "over: None });\n        self.urgent = true;",
        "over: None });",
        "plains:others::clients_of_dead_replica_are_probed",
    ),
    "large-still": large(
        "sender.rs",
        "let over = Some(now + self.clock.reordering(4));",
        "let over = Some(now);",
        "pause_of_the_machine_is_no_loss",
    ),
    "large-delivered": large(
        "sender.rs",
        "self.window.grow(delivered);",
        "self.window.grow(acked);",
        "plain:large::sender::tests::sacked_data_is_not_counted_twice",
    ),
    "large-whole-segments": large(
        "window.rs",
        "(segments * self.full)",
        "(flight.min(self.octets) / 2 + 0 * segments)",
        "plain:large::sender::tests::half_of_a_window_is_whole_segments",
    ),
    "large-kept": large(
        "entry.rs",
        "left.saturating_sub(KEPT)",
        "left",
        "plain:large::entry::tests::probe_leaves_unacknowledged_data",
    ),
    "large-asks-on": large(
        "entry.rs",
        "const PATIENCE: u32 = 19;",
        "const PATIENCE: u32 = 9;",
        "plains:others::replicas_probe_after_a_death_on_slow_paths",
    ),
    "large-asks-at-once": large(
        "sender.rs",
        "if !self.is_silent() ||",
        "if true ||",
        "plains:others::replicas_probe_after_a_death_on_slow_paths",
    ),
    "large-asks-told": large(
        "mod.rs",
        "if self.others.know(since, died) {",
        "if self.others.know(since, died) && false {",
        "plains:others::replicas_probe_after_a_death_on_slow_paths",
    ),
    # The client retransmits, and other replicas probe.
    "large-user-timeout": large(
        "mod.rs",
        "\n            || self.others.remember(self.places.group(flow), flow, shared, now);",
        ";",
        "plains:others::user_timeout_does_not_end_a_download",
    ),
    "large-others": large(
        "others.rs",
        "!may_be_own && since <= shared &&",
        "!may_be_own &&",
        "plain:large::others::tests::dead_replicas_do_not_count_as_remembering",
    ),
    "large-others-steady": large(
        "others.rs",
        "const STEADY: Time = 10_000_000;",
        "const STEADY: Time = 0;",
        "plains:others::recent_deaths_leave_data_unacknowledged",
    ),
    "large-others-alone": large(
        "mod.rs",
        "(!speaks).then_some(now)",
        "Some(now)",
        "plains:others::last_replica_does_not_count_dead_ones",
    ),
    "large-others-less": large(
        "mod.rs", "\n            || stamp.all\n", "\n", "plains:others::returned_replica_acknowledges_no_less"
    ),
    "large-others-crowded": large(
        "mod.rs",
        "self.others.evict(self.places.group(flow), &entry.flow, now);",
        "let _ = (entry, now);",
        "plains:others::replica_without_state_does_not_count_itself",
    ),
    "large-others-network": large(
        "others.rs",
        "evicted.network.is_none_or(|network| network == flow.network())",
        "(evicted.network.is_none() || flow.network().len() == 4)",
        "plains:others::chosen_ports_end_the_rule_for_their_network_only",
    ),
    "large-others-set": large(
        "others.rs",
        "self.evictions[set] = Some(",
        "self.evictions[set & 0] = Some(",
        "plain:large::others::tests::evictions_count_for_their_set_and_network",
    ),
    "large-acknowledges": large(
        "entry.rs", "if self.unanswered > 0 &&", "if false &&", "plains:stacks::smoltcp_gets_large_answers"
    ),
    "large-beyond-the-window": large(
        "sender.rs",
        "(cwnd - cwnd / 8).min(heard.window);",
        "cwnd - cwnd / 8;",
        "large_answer_survives_any_loss_in_small_windows",
        "random_transfers",
    ),
    # Lost segments, and segments that are only late.
    "large-overtaken": large(
        "sender.rs",
        "if heard.twice.is_some_and(|(from, to)| self.window.came_twice(to - from)) {",
        "if false {",
        "plains:rates::overtaken_segments_do_not_count_as_lost",
    ),
    "large-time": large(
        "sender.rs",
        "if self.overtakes > 0 { 0 } else { self.board.lost_below(enough) }",
        "self.board.lost_below(enough)",
        "plains:rates::overtaken_segments_do_not_count_as_lost",
    ),
    "large-another-loss": large(
        "sender.rs",
        "if self.board.missing(self.una, self.lost) > 0 {",
        "if false {",
        "plains:rates::bottleneck_is_shared_fairly_for_long",
    ),
    "large-first": large(
        "recognition.rs",
        "!segment.has_data_or_fin() && !segment.header.options.sack.blocks().is_empty()",
        "false",
        "plains:rates::lost_first_segment_is_repaired_like_any_other",
    ),
    # Clients that send false acknowledgements.
    "large-allowance": large(
        "mod.rs",
        "if !self.allowance.has(entry.account, entry.path, now) {",
        "if false {",
        "plains:liars::replayed_acknowledgements_draw_at_most_an_allowance",
        "plains:liars::invented_holes_draw_at_most_an_allowance",
    ),
    "large-proof": large(
        "acknowledgement.rs",
        "pub(crate) const PROOF_CELLS: u8 = 5;",
        "pub(crate) const PROOF_CELLS: u8 = 0;",
        "plain:large::sender::tests::right_checks_of_five_cells_release_a_window",
    ),
    "large-doubt": large(
        "mod.rs",
        "entry.refuse(header.ack, stamps.echo);",
        "let _ = entry;",
        "plains:liars::forger_with_a_right_guess_draws_at_most_an_allowance",
    ),
    "large-doubt-elsewhere": large(
        "sender/trust.rs",
        "if at > self.nxt || at.saturating_add(CELL) < self.una {",
        "if at > self.end {",
        "plain:large::sender::tests::wrong_check_cancels_right_checks",
    ),
    "large-stretch": large(
        "sender/trust.rs",
        "acked.min(MAX_STRETCH_BYTES) + 2 * full",
        "2 * acked",
        "plain:large::sender::tests::ten_segments_are_sent_before_own_data_is_acknowledged",
    ),
    "large-own-first": large(
        "sender/trust.rs",
        "self.confirmed |= heard.at >= self.first_end || self.board.top() > self.own;",
        "self.confirmed = true;",
        "plain:large::sender::tests::ten_segments_are_sent_before_own_data_is_acknowledged",
        "plains:liars::ten_segments_leave_before_own_ones_are_acknowledged",
    ),
    "large-own-probed": large(
        "sender/trust.rs",
        "if first || is_answer {",
        "if first {",
        "plain:large::sender::tests::answered_probe_releases_ten_segments",
    ),
    "large-own-sacked": large(
        "sender/trust.rs",
        " || self.board.top() > self.own;",
        ";",
        "plain:large::sender::tests::sack_of_own_data_releases_repairs",
    ),
    "large-earned": large(
        "mod.rs",
        "self.allowance.earn(entry.account, earned, now);",
        "let _ = earned;",
        "plains:liars::honest_clients_are_never_refused",
    ),
    # Which flow a segment belongs to, and its position.
    "large-check": large(
        "stamp.rs",
        "(stamp.value(flow, seal) == value).then_some(stamp)",
        "Some(stamp)",
        "plain:large::stamp::tests::forged_acknowledgement_draws_less_than_it_costs",
    ),
    "large-check-of-all": large(
        "stamp.rs",
        "[DOMAIN ^ bare, self.version]",
        "[DOMAIN ^ bare & 0x7fff, self.version]",
        "plain:large::stamp::tests::stamp_check_covers_all_other_bits",
    ),
    "large-near": large(
        "stamp.rs",
        "near: ahead <= NEAR",
        "near: true",
        "plains:liars::acknowledgements_far_from_their_stamp_draw_only_probes",
    ),
    "large-far": large(
        "acknowledgement.rs",
        "(false, _) => 0,",
        "(false, _) => UNPROVEN_SEGMENTS,",
        "plains:liars::acknowledgements_far_from_their_stamp_draw_only_probes",
    ),
    "large-far-asked": large(
        "sender.rs",
        "if !heard.near {\n            // After",
        "if false {\n            // Behind",
        "plain:large::sender::tests::client_far_from_its_stamp_answers_a_probe",
    ),
    "large-pad": large(
        "stamp.rs",
        "flow.seal(key, [PAD_DOMAIN, version]) & OBJECT",
        "0",
        "plain:large::stamp::tests::forger_has_to_guess_an_object",
    ),
    "large-unproven": large(
        "acknowledgement.rs",
        "(true, true) => UNPROVEN_SEGMENTS,",
        "(true, true) => 1000,",
        "plain:large::sender::tests::ten_segments_are_sent_before_own_data_is_acknowledged",
    ),
    "large-reset": large(
        "entry.rs",
        "header.seq.wrapping_sub(self.header.ack) <= self.asked.wrapping_sub(self.header.ack)",
        "false",
        "plains:liars::a_reset_with_the_expected_number_ends_a_download",
    ),
    "large-grid": large(
        "stamp.rs",
        "at < length && (full || at.is_multiple_of(TINY))",
        "at < length",
        "plain:large::stamp::tests::acknowledgement_gives_its_offset",
    ),
    "large-never-back": large(
        "entry.rs",
        "if (value.wrapping_sub(self.echoed) as i32) < 0 { self.echoed } else { value }",
        "value",
        "random_transfers",
    ),
    # Large segments that are cut, and clients that send nothing.
    "large-alike": large("packet.rs", "if !alike || ", "if ", "plains:cut::divided_packets_equal_single_segments"),
    "large-put-back": large(
        "mod.rs",
        "            entry.keep(due, value);\n            self.places.activate(n);",
        "            self.places.activate(n);",
        "plains:cut::divided_packets_equal_single_segments",
    ),
    "large-heard-first": large(
        "mod.rs",
        "        if let Some((header, way)) = self.say.pop_front() {",
        "        if let Some(n) = self.deadlines.iter().position(|deadline| *deadline <= now) {\n"
        "            if let Some(entry) = &mut self.places[n] {\n"
        "                entry.sender.late(now);\n"
        "            }\n"
        "            self.activate(n);\n"
        "        }\n"
        "        if let Some((header, way)) = self.say.pop_front() {",
        "plains:cut::no_probe_before_received_segments_are_handled",
    ),
    # Connections of plain TCP during changes of mode and of content.
    "hands-kernels": server("downloads.rs", "if kernel.has(segment) {", "if false {", LARGE),
    "hands-elsewhere": server("downloads.rs", "if !forwarded {", "if false {", LARGE),
    "hands-asked": server("return_path.rs", "if !self.alone && !kernel.lacks(segment, now) {", "if false {", BACK),
    "hands-held": server("kernel.rs", "let held = self.held(segment);", "let held = Some(Held::Nothing);", BACK),
    "hands-again": server("kernel.rs", "if place.0 != flow || age > REMEMBERED =>", "if false =>", BACK),
    "hands-strays": server("plain.rs", "stamps.is_none() || !way.alone) =>", "stamps.is_none()) =>", BACK),
    "hands-stamps": server("downloads.rs", "Some(Reason::Cookie | Reason::Stamp)", "Some(Reason::Cookie)", BACK),
    "hands-first": server(
        "downloads.rs",
        "if lacks_the_beginning && !downloads.has_state_for(segment) {",
        "if false {",
        "segments::lost_first_segment_of_small_answer_is_resent",
    ),
    "hands-left": server("return_path.rs", "is_under_way(segment) && hops", "false && hops", NO_CONTENT),
    "hands-left-once": server("return_path.rs", "is_some_and(|left| left > 1)", "is_some()", NO_CONTENT),
    "hands-left-to-it": server("return_path.rs", "&& !kernel.has(segment)", "", NO_CONTENT),
    "hands-left-strays": server(
        "return_path.rs", "false => kernel.lacks(segment, now),", "false => false,", NO_CONTENT
    ),
    "hands-resets": server(
        "return_path.rs", "if self.shared {\n            // Segments", "if false {\n            // Segments", BACK
    ),
    "hands-late": server("plain.rs", "&& !(way.forwarded && kernel.lacks(&segment, now)) =>", "=>", LATE),
    "hands-by-chance": server("plain.rs", "Verdict::Drop(Reason::Stamp)\n", "Verdict::Drop(Reason::Changed)\n", LATE),
    "hands-hops": server(
        "return_path.rs", "left.saturating_sub(1).min(FORWARDED_HOPS)", "left.saturating_sub(1)", HOPS
    ),
    "hands-hops-seen": server(
        "return_path.rs", "is_none_or(|left| left <= FORWARDED_HOPS)", "is_none_or(|left| left <= 1)", HOPS
    ),
    "content-large": server(
        "plain.rs",
        "true => flow.reaches(keys, header.ack),",
        "true => false,",
        "content::connections_end_when_their_content_loses_force",
    ),
}

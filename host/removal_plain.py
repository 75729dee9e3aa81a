# SPDX-License-Identifier: Apache-2.0
"""The defences of stateless TCP's large answers, for removal.py."""

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
    """A test without a program in front is of tests/it/large.rs."""
    named = tuple(test if ":" in test else f"plains:large::{test}" for test in tests)
    return Removal(f"host/plain/src/large/{file}", old, new, named)


BLOCKS = "blocks_cost_nothing"

REMOVALS = {
    # A change of replica.
    "large-stale": large("sender.rs", "if at > self.nxt {", "if false {", BLOCKS),
    "large-back": large(
        "sender.rs",
        "let repair = repair || from / CELL <= self.repaired / CELL && self.repaired > 0;",
        "",
        BLOCKS,
    ),
    "large-window": large(
        "sender.rs",
        "Sender::new(class, length, heard.told.max(2 * full))",
        "Sender::new(class, length, 2 * full)",
        BLOCKS,
    ),
    "large-under-way": large(
        "sender.rs", "let under_way = (sender.cwnd - sender.cwnd / 8).min(heard.window);", "let under_way = 0;", BLOCKS
    ),
    "large-ranges": large(
        "board.rs", "RANGES: usize = 512;", "RANGES: usize = 128;", "a_long_queue_that_overflows_is_mended"
    ),
    # Nobody's timer.
    "large-asks": large(
        "sender.rs",
        "        self.probed = Some(self.nxt);\n        self.urgent = true;",
        "        self.probed = Some(self.nxt);",
        "others_ask_for_who_died",
    ),
    "large-asks-on": large(
        "mod.rs", "const PATIENCE: u32 = 19;", "const PATIENCE: u32 = 9;", "others_ask_on_a_slow_path"
    ),
    "large-acknowledges": large(
        "mod.rs", "if self.unanswered > 0 &&", "if false &&", "plains:stacks::smoltcp_gets_large_answers"
    ),
    "large-beyond-the-window": large(
        "sender.rs",
        "(sender.cwnd - sender.cwnd / 8).min(heard.window);",
        "sender.cwnd - sender.cwnd / 8;",
        "every_loss_of_a_small_window",
        "random_transfers",
    ),
    # Whose packet it is, and where it stands.
    "large-check": large(
        "stamp.rs", "there && sealed()", "there", "plain:large::stamp::tests::a_forged_one_passes_seldom"
    ),
    "large-grid": large(
        "stamp.rs",
        "at < length && is_boundary(class, at)",
        "at < length",
        "plain:large::stamp::tests::an_acknowledgement_says_where_it_stands",
    ),
    "large-never-back": large(
        "mod.rs",
        "if (value.wrapping_sub(self.echoed) as i32) < 0 { self.echoed } else { value }",
        "value",
        "random_transfers",
    ),
    # Several segments in one piece, and who is silent.
    "large-alike": large("packet.rs", "if !alike || ", "if ", "plains:cut::pieces_are_the_same_octets"),
    "large-put-back": large(
        "mod.rs",
        "            entry.keep(due, value);\n            self.activate(n);",
        "            self.activate(n);",
        "plains:cut::pieces_are_the_same_octets",
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
        "plains:cut::nobody_is_asked_before_what_came_is_heard",
    ),
}

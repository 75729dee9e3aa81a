# SPDX-License-Identifier: Apache-2.0
"""Removals of checks on sequence and acknowledgement numbers in TRODS: data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal
from removal_trods import bpf, trods

BEYOND_GOES_ON = "it:survive::data_behind_holes_does_not_stall_the_adopter"
BEYOND_ENDED = "beyond::fin_acked_early_does_not_end_connection"
BEYOND_FREED = "beyond::ack_is_lowered_without_limits_too"
BEYOND = "beyond::ack_beyond_sent_data_is_lowered_to_it"

REMOVALS: dict[str, Removal] = {
    # Bytes that a client holds behind holes, and acknowledges before the new replica has sent them.
    "beyond": bpf("if (limits->flags & LIMITS_ADOPTED && !bound_ack(skb, &s, &heard))", "if (0)", BEYOND),
    "beyond-ended": bpf("heard == limits->fin + 1", "s.ack == limits->fin + 1", BEYOND_ENDED),
    "beyond-freed": bpf("bound_freed(skb, &s) ? NEXT : DROP", "NEXT", BEYOND_FREED),
    "beyond-adopted": bpf("if (limits->flags & LIMITS_ADOPTED && ", "if (", BEYOND),
    "beyond-most": bpf("if (!beyond || beyond > BEYOND_MOST)", "if (!beyond)", BEYOND, file="beyond.h"),
    "beyond-told": trods(
        "hold/connection.rs",
        "awaited, adopted, .. } = *self",
        "awaited, .. } = *self; let adopted = false",
        BEYOND_GOES_ON,
    ),
    # Segments outside of the window, sent by an attacker without the sequence numbers.
    "outside": bpf(
        "if (!is_acceptable(&s, heard, limits, 1)) {",
        "if (0) {",
        "segments_outside_window_change_no_state",
    ),
    "outside-number": bpf(
        "if (s->seq - limits->ack + CLIENT_BEHIND >= CLIENT_BEHIND + CLIENT_AHEAD)",
        "if (0)",
        "segments_outside_window_change_no_state",
        file="window.h",
    ),
    "outside-acknowledgement": bpf(
        "return ack - limits->acked + ACK_BEHIND <= reach + beyond;",
        "return reach | beyond | 1;",
        "segments_outside_window_change_no_state",
        file="window.h",
    ),
    "outside-stamped": bpf(
        "if (held && !is_acceptable(",
        "if (0 && !is_acceptable(",
        "stamped::segments_outside_window_change_no_stamped_connection",
        file="ts.h",
    ),
}

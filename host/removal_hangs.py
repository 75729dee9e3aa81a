# SPDX-License-Identifier: Apache-2.0
"""Removals of what keeps clients from waiting for good when replicas die (docs/trods.md): data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal
from removal_trods import LEASE, bpf, trods

REMOVALS: dict[str, Removal] = {
    # Segments of connections that no process holds: the search for a holder, then a reset.
    "refused-at-last": bpf(
        "if (since >= REFUSED_AT_LAST)",
        "if (0)",
        "unknown::client_of_no_connection_is_reset_in_the_end",
        file="refusals.h",
    ),
    "refused-told": bpf(
        "\tif (!is_pinned)\n\t\ttell_refusal(s, now);\n\treturn true;",
        "\treturn true;",
        "unknown::unknown_connection_is_reset_one_second_after_first_segment",
        file="refusals.h",
    ),
    "refused-muted": bpf("if (s->flags & RST && !is_known)", "if (0 && !is_known)", LEASE, file="refusals.h"),
    "refused-asked": trods(
        "replica/doubts.rs",
        "            rescue.ask(&key, seq);\n",
        "",
        "it:unknown::client_of_unknown_connection_is_probed",
    ),
    "closing-reset": trods(
        "hold/watch/mod.rs",
        "if !self.succeeds && issuer == 0 {",
        "if false {",
        "it:unknown::client_of_dead_server_and_agent_is_reset",
    ),
    "closing-probed": trods(
        "hold/watch/parting.rs",
        "            self.refused.push((key, closing.acked));\n",
        "",
        "it:leaving::former_process_sockets_are_reset",
    ),
    "pins-read-again": trods(
        "hold/pins.rs",
        "(false, _) => (unread, true, RETRY),",
        "(false, _) => return,",
        "it:pins::pins_are_read_again_when_store_returns",
    ),
}

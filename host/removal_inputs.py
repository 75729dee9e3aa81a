# SPDX-License-Identifier: Apache-2.0
"""Removals of what keeps the field X-TRODS between server and replicas (docs/trods.md): data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal
from removal_trods import bpf, trods

REMOVALS: dict[str, Removal] = {
    "inputs-renamed": bpf(
        "if (scan->last != INPUTS_NAME)",
        "if (1)",
        "inputs::clients_field_is_renamed_at_any_segment_boundary",
        file="inputs.h",
    ),
    "inputs-cut": bpf(
        "bool follows = before && before->next == s->seq;",
        "bool follows = 0 && before;",
        "inputs::clients_field_is_renamed_at_any_segment_boundary",
        file="inputs.h",
    ),
    "inputs-overwritten": bpf(
        "else if (s.length && verdict == NEXT && !blank_fields(skb, &s))",
        "else if (0 && !blank_fields(skb, &s))",
        "inputs::servers_field_is_overwritten_in_every_segment",
    ),
    "inputs-of-former": bpf(
        "bpf_map_delete_elem(&blanks, &s.key);\n\t\telse",
        "(void)0;\n\t\telse",
        "inputs::servers_field_is_overwritten_in_every_segment",
    ),
    "inputs-numbers-again": bpf(
        "if (after(s->seq, b.to + BLANK_BEHIND)) {",
        "if (0) {",
        "inputs::servers_field_is_overwritten_in_every_segment",
        file="inputs.h",
    ),
    "inputs-resumed": trods(
        "flow/watched.rs",
        "watched.blanks.extend(blanks(at, head));",
        "let _ = blanks(at, head);",
        "it:generated::stored_head_has_no_inputs_at_another_replica",
    ),
    "inputs-out-of-order": trods(
        "flow/watched/read.rs",
        "if head.inputs {",
        "if false {",
        "it:generated::client_is_reset_that_sends_inputs_out_of_order",
    ),
    "inputs-answered": trods(
        "hold/watch/mod.rs",
        "if reason == Reason::Inputs {",
        "if false {",
        "it:generated::client_is_reset_that_sends_inputs_out_of_order",
    ),
}

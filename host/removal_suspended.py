# SPDX-License-Identifier: Apache-2.0
"""Removals of the checks of suspended downloads (docs/hosts.md): data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal


def suspended(old: str, new: str, test: str) -> Removal:
    return Removal("host/rivulet/src/get/suspended.rs", old, new, (f"agent:get::suspended::tests::{test}",))


FILES = "changed_cut_or_other_files_are_refused"
POSITIONS = "impossible_positions_of_a_suspended_connection_are_refused"
PART = "part_with_other_content_is_refused"

REMOVALS = {
    "suspended-digest": suspended("if blake3::hash(rest) != *digest {", "if false {", FILES),
    "suspended-version": suspended("if magic != MAGIC {", "if false {", FILES),
    "suspended-part": suspended(
        "if digest_of(&there, *received).with_context(context)? != *digest {", "if false {", PART
    ),
    "suspended-short-part": suspended("if length < *received {", "if false {", PART),
    "suspended-private": suspended(
        "rivulet_private_file::create(&new, &file)",
        "std::fs::write(&new, &file)",
        "suspended_download_is_private_and_read_back",
    ),
    "suspended-stream": Removal(
        "host/transport/src/client/suspend.rs",
        "r.u16().ok().filter(|id| *id < u16::MAX).ok_or(ResumeError)?",
        "r.u16()?",
        (f"transports:transfer::{POSITIONS}",),
    ),
    "suspended-input": Removal(
        "host/transport/src/client/suspend.rs",
        "end.filter(|end| *end <= 1 << REGION_BITS).ok_or(ResumeError)?;",
        "end.ok_or(ResumeError)?;",
        (f"transports:transfer::{POSITIONS}",),
    ),
}

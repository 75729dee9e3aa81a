# SPDX-License-Identifier: Apache-2.0
"""Removals of what keeps a request from being executed twice (docs/trods.md): data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal
from removal_trods import trods

REMOVALS: dict[str, Removal] = {
    "earlier-data": trods(
        "adopt/earlier.rs",
        "let left = to.map_or(u64::MAX, |to| (to.wrapping_sub(from) as i32).max(0) as u64);",
        "let _ = (from, to);\n        let left = 0;",
        "it:repeated::request_after_stored_record_is_executed_once",
        "it:repeated::request_beside_get_is_executed_once_without_records",
        "it:repeated::request_after_announced_response_is_executed_once",
    ),
    "earlier-unknown": trods(
        "adopt/earlier.rs",
        "to.map_or(u64::MAX,",
        "to.map_or(0,",
        "it:repeated::request_beside_get_is_executed_once_without_records",
    ),
    "earlier-shown": trods(
        "wake.rs",
        "segment.payload.is_empty().then_some(segment.header.seq)",
        "Some(segment.header.seq)",
        "trods:ts::read::tests::unannounced_client_shows_end_of_its_request",
    ),
    "earlier-part": trods(
        "adopt/earlier.rs",
        "None => return Ok(self.ready),",
        "None => self.left = 0,",
        "trods:adopt::earlier::tests::only_complete_get_and_head_are_repeated",
    ),
    "request-joined": trods(
        "ts/read.rs",
        "Some(length) => header.seq.wrapping_add(length as u32),",
        "Some(_) => header.seq.wrapping_add(payload.len() as u32),",
        "trods:ts::read::tests::unannounced_client_shows_end_of_its_request",
    ),
}

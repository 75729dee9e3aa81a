# SPDX-License-Identifier: Apache-2.0
"""Removals of the defences of stored TLS connections: data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal

PROGRAMS = {"tls": ("-p", "rivulet-tls", "--test", "it")}


def state(old: str, new: str, test: str) -> Removal:
    return Removal("host/tls/src/state.rs", old, new, (f"tls:state::{test}",))


def impossible(old: str, new: str = "false") -> Removal:
    """A rule that every stored state obeys."""
    return state(old, new, "impossible_state_is_refused")


REMOVALS = {
    # A store that others can write to.
    "tls-other-flow": state("state.tuple() != *tuple", "false", "sealed_state_opens_for_its_flow_alone"),
    "tls-secrets-debug": state(
        '.field("responses", &self.http.responses.len())',
        '.field("responses", &self.http.responses)',
        "debug_output_has_no_secrets",
    ),
    "tls-long-state": state(
        "bytes.len() > MAX_STATE_BYTES", "false", "cut_or_changed_bytes_are_refused_or_another_state"
    ),
    # States that no replica stores.
    "tls-fin-early": impossible("state.client_fin && !state.http.client_fin"),
    "tls-spent-key": impossible("state.write.record >= MAX_RECORDS"),
    "tls-stray-update": impossible("u32::from(key_updates) >> (state.http.responses.len() + 1) != 0"),
    "tls-flags": impossible("flags & !CLIENT_FIN != 0"),
    # The rest of the stream, for a client that has a part of it.
    "tls-had": Removal(
        "host/tls/src/writer.rs",
        "out.drain(start..start + std::mem::take(&mut self.skip));",
        "",
        ("tls:plan::stream_resumes_at_every_acknowledged_number",),
    ),
    "tls-unprotected": Removal(
        "host/tls/src/plan.rs",
        "state.http.unprotected",
        "false",
        ("tls:plan::acknowledgement_lies_in_the_sent_part_of_a_response",),
    ),
    "tls-other-body": Removal(
        "host/tls/src/source.rs",
        "crc32c::crc32c(body) != sum",
        "false",
        ("tls:plan::rest_is_requested_from_the_server_and_compared",),
    ),
    "tls-behind-response": Removal(
        "host/tls/src/writer.rs",
        "let Some((response, record)) = self.response.clone() else { return Err(Error::NoResponse) };",
        "let Some((response, record)) = self.response.clone() else { return Ok(()) };",
        ("tls:plan::stream_resumes_at_every_acknowledged_number",),
    ),
    "tls-acknowledged-unsent": Removal(
        "host/tls/src/response.rs",
        "sent.checked_sub(before_end.into())",
        "Some(sent.wrapping_sub(before_end.into()))",
        (
            "tls:state::acknowledged_responses_are_dropped",
            "tls:plan::acknowledgement_that_no_replica_sent_is_refused",
        ),
    ),
}

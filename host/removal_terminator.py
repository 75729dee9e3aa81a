# SPDX-License-Identifier: Apache-2.0
"""Removals of the defences of the TLS terminator: data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal

PROGRAMS = {
    "terminator": ("-p", "rivulet-terminator", "--lib"),
    "https": ("-p", "rivulet-terminator", "--test", "it"),
    "chunks": ("-p", "rivulet-http", "--lib"),
    "agentlib": ("-p", "rivulet-agent", "--lib"),
}


def terminator(file: str, old: str, new: str, test: str) -> Removal:
    """In the terminator."""
    return Removal(f"host/terminator/src/{file}", old, new, (test,))


HTTP, HOSTILE, HEADS = "https:http::", "https:hostile::", "terminator:head::tests::"
FIELDS = HEADS + "clients_own_forwarding_fields_are_removed"
AMBIGUOUS = HEADS + "ambiguous_requests_are_refused"
TICKET = "terminator:tickets::tests::"
IN_TIME = HOSTILE + "half_handshakes_and_idle_connections_end_in_time"

REMOVALS: dict[str, Removal] = {
    "tls-client-ca": terminator(
        "files.rs",
        "Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),",
        "Some(_) => builder.with_no_client_auth(),",
        "https:authorities::client_needs_certificate_of_configured_authority",
    ),
    "tls-client-ca-tickets": terminator(
        "files.rs",
        "if self.client_ca.is_none() {\n            config.ticketer",
        "{\n            config.ticketer",
        "https:authorities::client_needs_certificate_of_configured_authority",
    ),
    "tls-files-problem": terminator(
        "reload.rs",
        "        wanted.problem = problem;",
        "        wanted.problem = None;",
        "https:files::given_files_are_used_unless_bad",
    ),
    "tls-part": Removal(
        "host/agent/src/terminator.rs",
        "        tls: service.tls.clone(),\n        ..Service::default()",
        "        tls: service.tls.clone(),\n        ..service.clone()",
        ("agentlib:terminator::tests::terminators_get_no_keys_but_those_of_tickets",),
    ),
    "tls-inputs-of-client": terminator("head.rs", "\n        || is_name(name, INPUTS)", "", FIELDS),
    "tls-inputs-of-server": terminator(
        "exchange.rs",
        "let head = without_inputs(&server.data()[..length]);",
        "let head = std::borrow::Cow::Borrowed(&server.data()[..length]);",
        HTTP + "inputs_reach_neither_server_nor_client",
    ),
    "tls-other-host": terminator(
        "head.rs",
        "&& without_default_port(scheme, authority) != without_default_port(scheme, host)",
        "&& scheme.is_empty() && authority == host",
        HEADS + "target_of_another_host_is_refused",
    ),
    "tls-half-closed": terminator(
        "connection.rs",
        "let is_ended = count == 0 && *is_shut;",
        "let is_ended = count == 0;",
        HTTP + "slow_reader_gets_all_bytes_after_its_fin",
    ),
    "tls-output-bound": terminator(
        "buffer.rs",
        "if 2 * self.written >= self.bytes.len() {",
        "if self.is_empty() {",
        "terminator:buffer::tests::output_that_is_never_empty_stays_small",
    ),
    # TLS terminators of the host.
    "door-other-user": Removal(
        "host/trods/src/terminator/door.rs",
        "if uid != 0 && uid != ours && Some(uid) != self.owner {",
        "if false {",
        ("trods:terminator::door::tests::process_of_another_user_is_refused",),
    ),
    "door-other-ports": Removal(
        "host/trods/src/terminator/door.rs",
        "self.ports.contains(&message.port())",
        "true",
        ("trods:terminator::door::tests::terminator_is_let_in_and_owns_its_ports_alone",),
    ),
    "tls-state-debug": Removal(
        "host/trods/src/record.rs",
        'write!(f, "TlsState({} bytes)", self.0.len())',
        'write!(f, "{:?}", self.0)',
        ("trods:terminator::message::tests::secrets_are_not_shown",),
    ),
    "tls-unstored-response": terminator(
        "connection.rs",
        "released.saturating_sub(self.written)",
        "u64::MAX",
        "https:protect::state_of_each_response_is_stored_before_it_leaves",
    ),
    "tls-post-twice": terminator(
        "connection.rs",
        "may_take = !protection.holds_requests();",
        "",
        "https:protect::unsafe_request_waits_until_protection_end_is_stored",
    ),
    "tls-server-away": terminator(
        "relay.rs",
        "if !round.is_protected || waited > PATIENCE",
        "if waited >= Duration::ZERO || waited > PATIENCE",
        "https:protect::request_waits_for_a_server_that_ends_before_its_response",
    ),
    "tls-server-storm": terminator(
        "relay.rs",
        "RETRY.max(waited / 4)",
        "Duration::ZERO",
        "https:protect::request_waits_for_a_server_that_ends_before_its_response",
    ),
    "tls-registration": terminator(
        "worker.rs",
        "                slot.connection.register();\n",
        "",
        "https:protect::restarted_agent_gets_state_and_handshake_of_each_connection",
    ),
    "tls-agent-absence": terminator(
        "protect.rs",
        "self.link.holds() || self.link.awaits_agent()",
        "self.link.holds()",
        "https:protect::restarted_agent_gets_state_and_handshake_of_each_connection",
    ),
    "tls-one-record": terminator(
        "handshake.rs",
        "let mut rest = record;",
        "let mut rest = input.data();",
        "https:records::other_replica_makes_same_ciphertext_from_any_offset",
    ),
    "tls-ticket-record": terminator(
        "handshake.rs",
        "next_record: self.ticket_records,",
        "next_record: 0,",
        "https:records::other_replica_makes_same_ciphertext_from_any_offset",
    ),
    "tls-handshake-bytes": terminator(
        "handshake.rs",
        "if self.received_bytes > MAX_HANDSHAKE_BYTES {",
        "if false {",
        HOSTILE + "handshake_without_end_is_refused",
    ),
    "tls-not-tls": terminator(
        "handshake.rs",
        "_ => Err(Failure::NotTls),",
        "_ => Ok(()),",
        HOSTILE + "only_plain_http_gets_an_answer",
    ),
    "tls-empty-records": terminator(
        "channel.rs",
        "if self.empty_records > MAX_EMPTY_RECORDS {",
        "if false {",
        HOSTILE + "flood_of_empty_records_ends_connection",
    ),
    "tls-cut": terminator(
        "exchange.rs",
        "self.events.bad_responses += 1;\n                Progress::Abort",
        "self.events.bad_responses += 1;\n                Progress::Close",
        HTTP + "cut_response_has_no_close_notify",
    ),
    "tls-twice": terminator(
        "exchange.rs",
        "if request.is_repeatable {",
        "if true {",
        HTTP + "post_is_never_sent_twice",
    ),
    "tls-unrequested": terminator(
        "exchange.rs",
        "return if server.is_empty() { Progress::Open } else { Progress::Abort };",
        "return Progress::Open;",
        HTTP + "unrequested_response_ends_the_connection",
    ),
    "tls-upgrade": terminator(
        "exchange.rs",
        "(reply.status != 101 || upgrade)",
        "true",
        HTTP + "response_101_without_an_upgrade_is_refused",
    ),
    "tls-read-ahead": terminator(
        "exchange.rs",
        "RequestPhase::Complete => waiting == 0,",
        "RequestPhase::Complete => true,",
        HOSTILE + "pipelined_requests_are_buffered_within_limit",
    ),
    "tls-forwarded": terminator("head.rs", "is_forwarded\n        ||", "false\n        ||", FIELDS),
    "tls-underscore": terminator("head.rs", " || lower == b'-' && !a.is_ascii_alphanumeric()", "", FIELDS),
    "tls-other-hyphens": terminator(
        "head.rs", "lower == b'-' && !a.is_ascii_alphanumeric()", "lower == b'-' && a == b'_'", FIELDS
    ),
    "tls-http2": terminator("head.rs", " && !names_http2(p)", "", FIELDS),
    "tls-two-lengths": terminator("head.rs", "framing.coded && framing.length.is_some() || ", "", AMBIGUOUS),
    "tls-connect": terminator("head.rs", 'if first.starts_with(b"CONNECT ") {', "if false {", AMBIGUOUS),
    "tls-ticket-age": terminator(
        "tickets.rs", " && now.saturating_sub(issued) <= LIFETIME_S", "", TICKET + "old_ticket_is_refused"
    ),
    "tls-late-handshake": terminator(
        "connection.rs", "if !waits(self.since, limits.handshake) {", "if true {", IN_TIME
    ),
    "tls-slow": terminator(
        "connection.rs",
        "(!is_slow || open.exchange.is_tunnel())",
        "true",
        HOSTILE + "reader_below_minimum_rate_is_closed",
    ),
    "tls-connections": terminator(
        "worker.rs",
        "if counters.open.load(Ordering::Relaxed) >= self.shared.max_connections {",
        "if false {",
        HOSTILE + "connection_limit_closes_new_and_idle_ones",
    ),
    "tls-chunk-line": Removal(
        "host/http/src/chunks.rs",
        'self.line.strip_suffix(b"\\r\\n").ok_or(BAD_REQUEST)?',
        "self.line.trim_ascii_end()",
        ("chunks:chunks::tests::ambiguous_chunks_are_refused",),
    ),
}

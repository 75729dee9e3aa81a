# SPDX-License-Identifier: Apache-2.0
"""Removals of the defences of moved windows, stored tokens, streams, tunnels and uploads: data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal

PROGRAMS = {
    "transport": ("-p", "rivulet-transport", "--lib"),
    "transports": ("-p", "rivulet-transport", "--test", "it"),
    "client": ("-p", "rivulet-client", "--lib"),
}


def window(file: str, old: str, new: str, *tests: str) -> Removal:
    """In the transport; tests without a program's prefix are those of tests/it/retirement.rs."""
    named = tuple(test if ":" in test else f"transports:retirement::{test}" for test in tests)
    return Removal(f"host/transport/src/{file}", old, new, named)


def sealed(old: str, new: str, *tests: str) -> Removal:
    """In the token that holds the window."""
    return window("retired.rs", old, new, *tests)


def stream(file: str, old: str, new: str, *tests: str) -> Removal:
    return window(f"client/{file}", old, new, *(f"transports:streams::{test}" for test in tests))


def pauses(file: str, old: str, new: str, test: str) -> Removal:
    return window(f"client/{file}", old, new, f"transports:pauses::{test}")


def disk(old: str, new: str, test: str) -> Removal:
    return Removal("host/client/src/tokens.rs", old, new, (f"client:tokens::tests::{test}",))


AGEING = "transport:retired::tests::window_halves_each_second_and_ends_after_the_horizon"
SIZES = "transport:retired::tests::larger_packets_are_fewer_and_smaller_ones_are_not_more"
BYTES = "transport:retired::tests::no_byte_of_a_token_can_be_another"
CLOCK = "transport:server::clock::tests::client_with_delayed_first_request_is_refused"
KEPT = "transport:server::clock::tests::measured_clock_is_kept"
OVER = "generation_ends_when_its_window_is_returned"
USED = "used_window_is_not_returned"
LIES = "client_with_a_false_proof_gets_no_window"
OTHERS = "file_open_to_other_users_is_refused"
NOT_OURS = "foreign_file_is_reported_and_left_unchanged"
BOUNDED = "the_file_is_bounded_and_the_newest_stay"
AT_ONCE = "concurrent_takes_neither_duplicate_nor_lose_tokens"
PATIENCE = "pause_longer_than_give_up_after_ends_no_connection"
TRANSLATED = "translator_that_changes_the_port_ends_no_connection"
NOBODY_WAITS = "store_works_after_an_interrupted_process"

REMOVALS = {
    # Pauses of the client, and translators that change its address.
    "pause-noticed": pauses("timers.rs", "        self.notice_pause(now);\n", "", PATIENCE),
    "pause-silence": pauses(
        "timers.rs", "        self.last_received = now;\n        let awaits", "        let awaits", PATIENCE
    ),
    "address-told": pauses("receive.rs", "self.sealed_for = seen;", "let _ = seen;", TRANSLATED),
    # The clock of Cubic.
    "clock-refusal": window("server/clock.rs", "return Err(Refusal::Clock);", "return Ok(true);", CLOCK),
    "clock-rekey": window("server/clock.rs", "Ok(is_slow || clock * of > srtt * times)", "Ok(is_slow)", CLOCK),
    "clock-shortest": window("server/clock.rs", ".max(cubic::SHORTEST_US)", "", KEPT),
    # The token.
    "window-mac": sealed("equal_in_constant_time(&right, token).then_some(retired)", "Some(retired)", BYTES),
    "window-address": sealed(
        "&[&fields, &ip_bytes(ip)]",
        "&[&fields]",
        "window_token_is_bound_to_address_and_service",
    ),
    "window-horizon": sealed("if age > horizon {", "if false {", AGEING),
    "window-ageing": sealed("scaled(self.window) >> steps", "scaled(self.window)", AGEING),
    "window-threshold": sealed("(scaled(found) << steps)", "scaled(found)", AGEING),
    "window-sizes": sealed("mss.max(self.mss).max(1)", "self.mss.max(1)", SIZES),
    "window-cap": sealed(".min(2 + u32::from(MAX_GAIN))", "", AGEING),
    "window-lifetime": window(
        "opening.rs",
        "return fresh(now, retired.time, TOKEN_LIFETIME);",
        "return true;",
        "transport:opening::tests::token_proves_one_address_until_it_expires",
    ),
    "window-last-used": window(
        "server/step.rs",
        "time: c.time, tag: c.tag, window",
        "time: context.now, tag: c.tag, window",
        "window_kept_idle_is_smaller",
    ),
    "window-least": window(
        "server/step.rs",
        "known.remembers && window >= retired::LEAST",
        "known.remembers",
        "small_window_is_not_returned",
    ),
    # A window exists once, wherever it is.
    "window-numbers": window(
        "opening.rs",
        "&[&ip_bytes(client.ip()), &to, &[3]",
        "&[&from, &to, &client_isn, &[3]",
        "window_opened_at_many_replicas_exists_once",
    ),
    "window-once": window(
        "server/server.rs",
        "return [Some(ReplayKey { class: RequestClass::Syn, attempt: 1, tag: retired.tag, number: 0 }), None];",
        "return [None, None];",
        "window_is_restored_once",
    ),
    "window-split": window(
        "server/server.rs",
        "attempt: 1, tag: retired.tag, number: 0",
        "attempt: 1, tag: digest(plan.spent().unwrap_or_default()) as u32, number: 0",
        "a_window_cannot_be_split_into_tokens",
    ),
    "window-young": window(
        "server/server.rs",
        "self.replay.as_mut().is_some_and(|memory| memory.is_whole(now))",
        "self.replay.is_some()",
        "a_replica_that_has_just_started_moves_no_window",
    ),
    "window-room": window(
        "server/server.rs",
        "Use::Forgotten if plan.moves_window() => known.remembers = false,",
        "",
        "full_replay_memory_moves_no_window",
    ),
    "window-room-left": window(
        "server/server.rs",
        "!memory.leave(tag, by, now) && plan.moves_window()",
        "!memory.leave(tag, by, now) && false",
        "full_replay_memory_moves_no_window",
    ),
    "window-over": window(
        "server/server.rs", "if plan.retires() { LeftBy::Retirement }", "if false { LeftBy::Rekey }", OVER
    ),
    "window-over-timeout": window(
        "server/server.rs",
        "RequestClass::Restart => left.is_some_and(|by| by != LeftBy::Timeout),",
        "RequestClass::Restart => left == Some(LeftBy::Rekey),",
        OVER,
    ),
    "window-left": window(
        "server/server.rs",
        "if retires => left.is_some_and(|by| by != LeftBy::Retirement),",
        "if retires => false,",
        USED,
    ),
    "window-used": window(
        "server/server.rs", "is_some_and(|c| is_begun(memory, c, now))", "is_some_and(|_| false)", USED
    ),
    "window-losses": window(
        "verdict.rs", "if history.first_event().is_some() || c.number != top {", "if c.number != top {", LIES
    ),
    "window-last": window(
        "verdict.rs",
        "if history.first_event().is_some() || c.number != top {",
        "if history.first_event().is_some() {",
        LIES,
    ),
    "window-nonce": window(
        "server/build.rs",
        "HeadKind::Challenge | HeadKind::Farewell) {",
        "HeadKind::Challenge) {",
        "a_window_cannot_be_split_into_tokens",
    ),
    # The trickle that begins with the window.
    "window-retreat": window(
        "cwnd.rs",
        "_ => halved(window.min(acked.max(u32::from(self.start_cwnd)))),",
        "_ => halved(window),",
        "transport:cwnd::tests::loss_discards_the_unacknowledged_part_of_a_window",
    ),
    "window-delayed": window(
        "verdict.rs",
        " || (delayed > 0 && piece.is_jumping(j))",
        "",
        "transport:verdict::tests::ten_numbers_bring_a_window_back",
    ),
    # The client.
    "window-offered": window(
        "client/close.rs",
        "if self.is_drained(index) {",
        "if false {",
        "fetch_starts_with_the_previous_window",
    ),
    "window-tail": window(
        "client/close.rs",
        "if kept && awaiting { now + self.rtt.probe_timeout() }",
        "if false { now }",
        "transports:retirement::close_awaits_the_last_responses",
    ),
    # Tokens on disk.
    "disk-folder-mode": disk(" || of.st_mode & 0o022 != 0", "", OTHERS),
    "disk-folder-link": disk(
        "OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW", "OFlags::DIRECTORY | OFlags::RDONLY", OTHERS
    ),
    "disk-file-mode": disk(" && of.st_mode & 0o077 == 0", "", OTHERS),
    "disk-file-link": disk(
        "OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK", "OFlags::RDONLY | OFlags::NONBLOCK", OTHERS
    ),
    "disk-pipe": disk(" || FileType::from_raw_mode(of.st_mode) != FileType::RegularFile", "", OTHERS),
    "disk-version": disk(
        "text.strip_prefix(HEADER)?",
        "text.split_once('\\n').map(|(_, rest)| &text[text.len() - rest.len() - 1..])?",
        NOT_OURS,
    ),
    "disk-entries": disk("(entries.len() <= MAX).then_some(entries)", "Some(entries)", NOT_OURS),
    "disk-size": disk(".filter(|text| text.len() as u64 <= MAX_FILE)", "", NOT_OURS),
    "disk-length": disk("(1..=MAX_TOKEN).contains(&bytes.len()).then_some((remote", "Some((remote", NOT_OURS),
    "disk-bound": disk("entries.truncate(MAX);", "", BOUNDED),
    "disk-newest": disk("entries.sort_by_key(|(_, token)| std::cmp::Reverse(token.earned));", "", BOUNDED),
    "disk-age": disk("now().checked_sub(self.earned).is_some_and(|age| age < LIFETIME)", "true", BOUNDED),
    "disk-source": disk("self.source == source && now()", "now()", "the_next_process_finds_a_token_once"),
    "disk-once": disk(
        "entries.swap_remove(place).1.bytes", "entries[place].1.octets.clone()", "the_next_process_finds_a_token_once"
    ),
    "disk-lock": disk("FlockOperation::NonBlockingLockExclusive).is_ok()", "FlockOperation::Unlock).is_ok()", AT_ONCE),
    "disk-lock-waits": disk("const TRIES: u32 = 20;", "const TRIES: u32 = 20_000;", NOBODY_WAITS),
    "disk-rights": disk("rustix::fs::fchmod(&new, Mode::RUSR | Mode::WUSR)?;", "", NOBODY_WAITS),
    # Streams of one connection.
    "stream-turns": stream(
        "request.rs",
        "later.chain(self.streams.range(..=last)).find(|(_, s)| holds(s))",
        "{ let _ = later; self.streams.iter().find(|(_, s)| holds(s)) }",
        "active_streams_get_equal_shares_beside_idle_ones",
    ),
    "stream-input-turns": stream(
        "request.rs",
        "self.turn_after(self.last_input_stream, ",
        "self.turn_after(u16::MAX, ",
        "an_upload_keeps_no_other_input_waiting",
    ),
    "stream-fails-alone": stream(
        "connection.rs", "if self.streams.len() == 1 {", "if true {", "a_stream_that_fails_ends_no_other"
    ),
    "stream-last-fails": stream(
        "connection.rs", "if self.streams.len() == 1 {", "if false {", "the_last_stream_that_fails_ends_the_connection"
    ),
    "stream-paced": stream(
        "send.rs",
        "at_once: INITIAL_WINDOW.into() }",
        "at_once: usize::MAX }",
        "the_first_window_after_a_pause_takes_a_round_trip",
    ),
    "stream-idle": stream(
        "send.rs",
        "self.unused_for(slot.received_at, now) > self.rtt.idle() || ",
        "",
        "window_unused_for_over_a_second_restarts",
    ),
    "stream-handshake": stream(
        "receive.rs",
        "handshake.stream = self.syn_input.as_ref().map_or(0, |(stream, ..)| *stream);",
        "",
        "plain_tcp_handshake_belongs_to_the_stream_in_the_syn",
    ),
    # Frames from a tunnel, and uploads.
    "tunnel-exact": Removal(
        "host/pktio/src/filter.rs",
        "self.exact.as_ref().unwrap_or(&self.program)",
        "&self.program",
        (
            "pktio:filter::tests::packet_socket_takes_more_where_rules_are_too_many",
            "server:tunnel::tests::inner_frame_keeps_its_ethernet_header",
        ),
    ),
    "upload-totals": Removal(
        "host/rivulet/src/http/upload/totals.rs",
        "Totals::read(file).map_or_else(|| self.count(), Ok)",
        "self.count()",
        ("agent:http::upload::totals::tests::new_upload_opens_no_file_of_other_uploads",),
    ),
}

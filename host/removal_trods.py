# SPDX-License-Identifier: Apache-2.0
"""Removals of the defences of TRODS: data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal


def bpf(old: str, new: str, *tests: str, file: str = "trods.c") -> Removal:
    """In the BPF programs of the interface."""
    return Removal(f"host/bpf/src/bpf/{file}", old, new, tuple(f"bpf:trods::tests::{test}" for test in tests))


def trods(file: str, old: str, new: str, *tests: str) -> Removal:
    return Removal(f"host/trods/src/{file}", old, new, tests)


def agent(old: str, new: str, *tests: str, file: str = "agent/trods.rs") -> Removal:
    """In the agent, which learns from the ToR which replicas are dead."""
    return Removal(f"host/rivulet/src/{file}", old, new, tests)


def field(old: str, new: str = "false") -> Removal:
    """A rule that every stored record obeys."""
    return trods("record/codec.rs", old, new, "it:records::inconsistent_record_is_refused")


def identity(old: str, new: str) -> Removal:
    """A field by which an object is recognised as the same."""
    return trods("adopt/identity.rs", old, new, "trods:adopt::identity::tests::answer_with_any_difference_is_refused")


def answer(old: str, new: str = "") -> Removal:
    """A field by which a client's answer to a probe is recognised."""
    return trods("wake.rs", old, new, "it:waking::foreign_segment_gives_no_state")


OTHER_BYTES = "it:digests::other_bytes_under_the_same_tag_are_never_mixed"
NOT_COMPARED = "it:digests::object_of_unknown_digest_is_reset_or_trusted"
FIRST_FLIGHT = "it:digests::first_flight_is_compared_without_digests"
FIRST = "completed_handshake_opens_connection_and_copies_client_data"
DEAD = "fin_of_dying_process_leaves_only_at_announced_end"
ORPHAN = "unknown::segments_of_orphan_are_parked_until_new_handshake"
RESET = "unknown::protected_and_parked_connections_are_not_reset"
LEASE = "nothing_leaves_after_lease_ends"
HELD_BY_OTHERS = "unknown::pinned_connection_is_handed_on_once_and_kernel_is_muted"
DAMAGED = "damaged_segment_is_left_to_the_kernel"
LINGERS = "bpf:linger::tests::programs_outlive_killed_process_but_not_detaching_one"
NEWER = "trods:hold::rescue::tests::stale_record_does_not_hide_newer_record"
READ_AGAIN = "trods:hold::rescue::tests::record_read_again_is_probed_by_current_adopter"
RESETS_NOBODY = "trods:lease::tests::no_rst_without_plain_tcp_or_pins"
HEARD = "trods:lease::tests::lease_lasts_until_replica_may_be_excluded"
KNOWN = "agent:second_chance::tests::adopted_connection_is_no_longer_forwarded"
WITHHELD = "withheld_segment_is_removed_with_its_connection"
TAKES = "agent:agent::trods::tests::changed_takers_start_a_query_for_holders"
FORMER = "agent:agent::trods::tests::records_of_the_previous_incarnation_are_read"
NUMBER = "agent:agent::incarnation::tests::incarnation_exceeds_all_earlier_ones"
OUTLIVES = "agents:trods::adopted_connection_outlives_its_agent"
ADOPTED_ENDS = "it:leaving::adopted_connection_ends_only_by_announced_end"
ADOPTED_STAYS = "it:leaving::adopted_connection_survives_death_of_its_server"
PART = "it:watch::segment_of_two_responses_is_released_in_part"
PART_AGAIN = "trods:hold::connection::tests::retransmission_leaves_up_to_the_limit"
PART_CUT = "trods:hold::frame::tests::cut_frame_gives_two_valid_segments"
PART_MORE = "trods:hold::connection::tests::held_frames_are_read_before_new_frame"
OUT = "trods:lease::tests::possibly_excluded_replica_is_mute_until_readmitted"
AWAY = "trods:lease::tests::returning_replica_sends_nothing_before_it_has_the_pins"

REMOVALS: dict[str, Removal] = {
    # A connection is stored soon after its handshake.
    "handshake-stored": trods(
        "flow/watched.rs",
        "else { HANDSHAKE_PATIENCE };",
        "else { REQUEST_PATIENCE };",
        "it:cases::request_is_stored_alone_when_answer_is_slow",
        "it:survive::first_request_after_a_death_is_answered",
    ),
    "muted-lost": bpf("now - lease->until >= MUTED_LONG &&", "0 && now - lease->until &&", LEASE, file="refusals.h"),
    "muted-unsent": Removal(
        "host/bpf/src/bpf/refusals.h",
        "MUTED_LONG && awaits_ack(skb))",
        "MUTED_LONG)",
        ("it:hold::connection_survives_long_mute_before_first_answer",),
    ),
    # Records that other programs write into the store.
    "sealed": trods(
        "store/load.rs",
        "let value = keys.open(&super::place(prefix, stored.number), &value);",
        "let value = keys.open(&super::place(prefix, stored.number), &value).or(Some(value));",
        "it:forged::forged_record_adopts_no_connection",
    ),
    "sealed-incarnations": trods(
        "store/load.rs",
        "let value = reader.value()?.and_then(|(_, sealed)| open(keys, &key, &sealed));",
        "let value = reader.value()?.map(|(_, sealed)| open(keys, &key, &sealed).unwrap_or(sealed));",
        "it:store::forged_incarnations_are_not_read",
    ),
    "sealed-count": trods(
        "store/load.rs",
        "number(&open(keys, prefix, &sealed)?)",
        "number(&open(keys, prefix, &sealed).unwrap_or(sealed))",
        "it:store::forged_bound_hides_no_record_and_costs_nothing",
    ),
    "living-incarnations": trods(
        "hold/rescue.rs",
        "Reads::LivingFormers => n < told,",
        "Reads::LivingFormers => n <= told,",
        "it:forged::forged_incarnation_list_adopts_no_live_connection",
    ),
    "sealed-place": trods(
        "store/sealed.rs",
        "    place.as_bytes()\n",
        "    &place.as_bytes()[..0]\n",
        "trods:store::sealed::tests::sealed_value_opens_only_under_its_key",
    ),
    # Programs of a process that died, which another user cannot imitate.
    "presence-folder": Removal(
        "host/bpf/src/trods/presence.rs",
        "if found.uid() != geteuid().as_raw() && found.uid() != 0 || found.mode() & 0o022 != 0 {",
        "if false {",
        ("bpf:trods::presence::tests::folder_writable_by_others_is_refused",),
    ),
    # Frames of the server's kernel: data, acknowledgements, FIN, RST.
    "data": bpf("if (s.length && after(end, limits->data)) {", "if (0) {", "data_beyond_limit_goes_to_tap"),
    "ack": bpf(
        "if (s.flags & ACK && after(s.ack, ack)) {", "if (0) {", "acknowledgement_beyond_limit_is_lowered_or_withheld"
    ),
    "ack-withheld": bpf(
        "if (!s.length && !(s.flags & FIN)) {", "if (0) {", "acknowledgement_beyond_limit_is_lowered_or_withheld"
    ),
    "ack-clamped": bpf(
        "if (!clamp_ack(skb, &s, ack))", "if (0)", "acknowledgement_beyond_limit_is_lowered_or_withheld"
    ),
    "fin": bpf(
        "if (s.flags & FIN && !",
        "if (0 && !",
        "fin_leaves_only_at_allowed_number",
    ),
    "fin-of-dead": bpf("return limits->has_fin & HAS_FIN_OF_DEAD || !of_dead(s);", "return true;", DEAD),
    "dead-over": bpf("bpf_map_delete_elem(&dying, key);", ";", DEAD),
    "dead-server": bpf(
        "if (!sk->sk_lock.owned && (after != TCP_CLOSE || sk->sk_socket))",
        "if (0)",
        "close_by_dying_process_is_distinguished",
        file="dying.c",
    ),
    "fin-stripped": bpf("if (!strip_fin(skb, &s))", "if (0)", "fin_leaves_only_at_allowed_number"),
    "rst": bpf("if (s.flags & RST) {\n\t\tcount(COUNT_RESETS);", "if (0) {\n\t\tcount(COUNT_RESETS);", RESET),
    "rst-settling": bpf(
        "is_pinned || now < lease->settling || since",
        "is_pinned || (0 && lease) || since",
        RESET,
        file="refusals.h",
    ),
    "rst-orphan": bpf(
        "(is_parked || refuses_early(s, lease, now, is_pinned))", "refuses_early(s, lease, now, is_pinned)", RESET
    ),
    "rst-pause": bpf(
        "now - before->last < REFUSED_PAUSE", "1", "unknown::reset_waits_again_after_a_pause", file="refusals.h"
    ),
    "rst-unknown": bpf(
        " || refuses_early(s, lease, now, is_pinned)",
        "",
        "unknown::unknown_connection_is_reset_one_second_after_first_segment",
    ),
    # Which replica may send on a connection.
    "lease": bpf("return mute(skb, &s, lease, now, true);", ";", LEASE),
    "lease-unknown": bpf("return mute(skb, s, lease, now, is_pinned);", ";", LEASE),
    "pin-muted": bpf("bool is_pinned = find_pin(&s->key);", "bool is_pinned = false;", HELD_BY_OTHERS),
    "pin-handed-on": bpf("if (pin) {\n", "if (0) {\n", HELD_BY_OTHERS),
    "pin-one-hop": bpf(
        "is_from(skb, pin->tor) ? turn_around(skb, holder) : NEXT", "turn_around(skb, holder)", HELD_BY_OTHERS,
        file="members.h",
    ),
    "pin-over": bpf("bpf_map_delete_elem(&pins, key);", ";", HELD_BY_OTHERS),
    # Which segments reach the process.
    "intact": bpf("s.flags & (FIN | RST)) && !is_intact(skb, &s))", "s.flags & (FIN | RST)) && 0)", DAMAGED),
    "intact-syn": bpf("if (!(s.flags & ACK) && is_intact(skb, &s))", "if (!(s.flags & ACK))", DAMAGED),
    "intact-parked": bpf(
        "is_first_hand(skb, lease) && is_intact(skb, &s)", "is_first_hand(skb, lease)", ORPHAN
    ),
    "parked-first-hand": bpf("is_first_hand(skb, lease) && ", "", ORPHAN),
    "copied-or-lost": bpf(
        "&& !copy_data(skb, &s))\n", "&& !copy_data(skb, &s) && 0)\n", "segment_without_room_for_event_is_dropped"
    ),
    "opened-or-lost": bpf(
        "if (!open_flow(&s))\n", "if (!open_flow(&s) && 0)\n", "segment_without_room_for_event_is_dropped"
    ),
    "parked": bpf(
        "if (!hunts && !bpf_map_lookup_elem(&orphans, &s.key)) {",
        "if (s.tcp) {",
        "unknown::segments_of_orphan_are_parked_until_new_handshake",
    ),
    # Without it, a flood of acknowledgements of unknown connections would reach the process.
    "unknown-untold": bpf("if (!hunts && !bpf_map_lookup_elem(&orphans, &s.key)) {", "if (0) {", FIRST),
    "unsent-unacknowledged": bpf("&& !after(s.ack, limits->data", "&& !after(0, 0 & limits->data", FIRST),
    # Which handshakes open a protected connection.
    "handshake": bpf("|| s->ack != opening->server_next || s->seq != opening->client_next)", ")", FIRST),
    "syn-data": bpf("!s->length && load_header(skb, s, opening->syn)", "load_header(skb, s, opening->syn)",
                    "syn_with_data_opens_no_connection"),
    "other-syn": bpf("if (s.seq + 1 != limits->first) {", "if (0) {",
                     "new_connection_between_same_ports_replaces_former"),
    "fragments": bpf(" || bpf_ntohs(ip.frag_off) & MORE_FRAGMENTS_OR_OFFSET", "",
                     "segments_of_other_services_pass", file="segment.h"),
    # Segments of a connection that is here are not passed on, whatever was recorded about it before.
    "known-mark": Removal("host/bpf/src/bpf/trods.c", "skb->mark = KNOWN;", "", (KNOWN,)),
    "known-rule": agent(
        'ingress.insert_str(0, &format!("  meta mark {KNOWN:#x} accept\\n"));', "", KNOWN, file="second_chance.rs"
    ),
    # A segment withheld for one connection is not sent on the next one between the same ports.
    "withheld-opened": bpf("bpf_map_delete_elem(&withheld, key);", ";", WITHHELD),
    "withheld-adopted": Removal(
        "host/bpf/src/trods.rs", "self.take_withheld(key)?;", "", (f"bpf:trods::tests::{WITHHELD}", ADOPTED_STAYS)
    ),
    # After a process has died its host sends nothing until the replica is excluded.
    "linger": Removal(
        "host/bpf/src/linger.rs",
        "1000 * i64::from(LINGER)",
        "0",
        (LINGERS,),
    ),
    "linger-told": Removal(
        "host/bpf/src/linger.rs",
        "bpf_map_update_elem(dead, (&raw const first).cast(), (&raw const set).cast(), 0);",
        "let _ = (dead, first, set);",
        (LINGERS,),
    ),
    "dead-begins": bpf("if (s.flags & SYN && dead) {", "if (0) {", "dead_process_gets_no_new_connections"),
    # A segment passes only after its record is stored at another replica.
    "strays": agent(
        'counter drop"\n    );',
        'counter"\n    );',
        "agent:second_chance::tests::flood_of_stray_segments_is_dropped_before_kernel",
        file="second_chance.rs",
    ),
    "strays-own": Removal(
        "host/bpf/src/bpf/trods.c",
        "return NEXT;\n\t\t}\n\t\tcount(COUNT_PARKED);",
        "skb->mark = UNKNOWN;\n\t\t\treturn NEXT;\n\t\t}\n\t\tcount(COUNT_PARKED);",
        ("agent:second_chance::tests::flood_of_stray_segments_is_dropped_before_kernel",),
    ),
    "ended-once": trods(
        "hold/watch/parting.rs",
        "if !connection.died && connection.flow.closes()",
        "if false && connection.flow.closes()",
        "it:survive::connection_closed_by_client_ends_once",
    ),
    "store-before": trods(
        "flow/watched.rs",
        "self.storing = Some(Storing {",
        "self.limit(limits, out);\n        self.storing = Some(Storing {",
        "it:cases::response_is_stored_once_its_head_is_complete",
        "it:watch::download_is_stored_first_and_deleted_after_its_end",
    ),
    "store-elsewhere": trods(
        "store/mod.rs",
        "others.retain(|server| !config.own.contains(&server.ip()));",
        "",
        "it:store::servers_on_this_host_are_not_used",
    ),
    "store-unprotected": trods(
        "flow/watched.rs",
        "&& !self.is_known_to_store()",
        "",
        "it:cases::limits_lift_after_unprotected_record_is_stored",
    ),
    "store-closed": trods(
        "flow/watched.rs", "settings.closed {", "settings.closed && false {",
        "it:cases::failed_store_passes_or_holds_as_configured",
    ),
    "held-bound": trods(
        "hold/mod.rs", "if self.room.has(client, length) {", "if true {",
        "it:hold::held_frames_of_one_client_are_limited",
    ),
    # No request is executed twice.
    "method": trods(
        "head.rs",
        "[b, ..] if b.is_ascii_alphabetic() => return Err(Reason::Method),",
        "[b, ..] if b.is_ascii_alphabetic() => Method::Get,",
        "it:cases::unprotectable_connection_passes_with_reason",
        "it:watch::unprotectable_connection_continues_unprotected",
    ),
    "body": trods(
        "head.rs", "return Err(Reason::Body);", "", "it:cases::unprotectable_connection_passes_with_reason"
    ),
    # No response mixes two objects.
    "identity-status": identity("if !is_whole && head.status != 206 {", "if false {"),
    "identity-weak": identity(
        "None => Refusal::Tag,", "None => return Ok(Answer { head: head.length, before: 0, is_whole }),"
    ),
    "identity-tag": identity("got.etag != want.etag", "false"),
    "identity-coding": identity("got.encoding != want.encoding", "false"),
    "identity-length": identity("(got.first, got.length) != (first, length)", "false"),
    "identity-total": identity("got.total != want.total", "false"),
    "identity-digest": trods(
        "adopt/object.rs", "if own != theirs =>", "if false =>", OTHER_BYTES
    ),
    "identity-unknown": trods(
        "adopt/object.rs",
        "_ if config.unknown == Unknown::Trust",
        "_ if config.unknown != Unknown::Trust",
        NOT_COMPARED,
    ),
    "identity-flight": trods(
        "flow/watched/read.rs",
        "if octets.len() < wanted && !is_late {",
        "if false {",
        FIRST_FLIGHT,
    ),
    "identity-stale": trods(
        "digest/mod.rs",
        "Some(Known { content: Some(content), .. }) if !is_urgent =>",
        "Some(Known { content: Some(content), .. }) =>",
        "trods:digest::tests::stale_digest_is_recomputed_for_waiting_client",
    ),
    "digest-slow": trods(
        "digest/ask.rs",
        "if self.waited >= PATIENCE { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }",
        "Ok(())",
        "trods:digest::tests::slow_object_does_not_block_other_digests",
    ),
    "digest-share": trods(
        "digest/queue.rs",
        "client.is_some_and(|client| !self.room.has(client, 1))",
        "false",
        "trods:digest::tests::client_fills_at_most_a_quarter_of_the_queue",
    ),
    "digest-turn": trods(
        "digest/queue.rs",
        ".position(|(_, client)| *client != self.last)",
        ".position(|_| true)",
        "trods:digest::tests::client_fills_at_most_a_quarter_of_the_queue",
    ),
    "digest-urgent": trods(
        "digest/mod.rs",
        "self.ask(wanted, true, Some(client))",
        "self.ask(wanted, true, None)",
        "trods:digest::tests::urgent_queue_is_shared_in_turns",
    ),
    "digest-secret": trods(
        "digest/mod.rs",
        "head::fields(&self.request).skip(1).all(|(field, _)| is_common(field))",
        "head::fields(&self.request).skip(1).all(|(field, _)| is_common(field) || !is_credential(field))",
        "trods:digest::share::tests::objects_with_credentials_and_malformed_requests_are_skipped",
    ),
    "orphan-forged": trods(
        "hold/rescue.rs",
        "self.unknown.push((*key, packet.to_vec()));",
        "self.unknown.push((*key, packet.to_vec()));\n                    self.orphans.remove(key);",
        "trods:hold::rescue::tests::forged_segments_do_not_end_a_search",
    ),
    "answer-cut": trods(
        "adopt/relay.rs",
        "if e.kind() == io::ErrorKind::UnexpectedEof { self.say_all() } else { self.cut() }",
        "if e.kind() == io::ErrorKind::UnexpectedEof { self.say_all() } else { self.say_all() }",
        "it:adoption::server_reset_in_answer_resets_the_client",
    ),
    "answer-idle": trods(
        "adopt/mod.rs",
        "_ if self.is_answering() => self.refuse(Refusal::Idle),",
        "_ if false => self.refuse(Refusal::Idle),",
        "it:adoption::idle_connection_is_reset_in_an_answer_and_closed_otherwise",
    ),
    "client-address": trods(
        "adopt/mod.rs",
        "AdoptAs::Client => Some(self.record.tuple.client.ip()),",
        "AdoptAs::Client => None,",
        "it:client_address::denied_and_limited_client_stays_so_after_adoption_and_drain",
    ),
    "client-ports": Removal(
        "host/pktio/src/transparent.rs",
        "for n in 0..ATTEMPTS {",
        "for n in 0..PORTS.len() {",
        ("pktio:transparent::tests::client_that_uses_all_ports_costs_few_attempts",),
    ),
    "message-once": trods(
        "adopt/relay.rs",
        "let is_repeatable = !is_cut && is_repeatable(&sent);",
        "let is_repeatable = !is_cut;",
        "trods:adopt::relay::tests::only_complete_requests_without_body_are_repeated",
    ),
    "identity-content": trods(
        "adopt/object.rs",
        "if crc32c::crc32c(body) != *sum {",
        "if false {",
        "it:adoption::changed_object_resets_the_client",
    ),
    # Probes, and the client's answers to them.
    "answer-tuple": answer("!is_theirs || "),
    "answer-near": answer("!(is_near || is_again) || "),
    "answer-syn": answer(" || segment.has(TcpFlags::SYN)"),
    "answer-ack": answer("!segment.has(TcpFlags::ACK) || "),
    "answer-echo": answer("!is_echo || "),
    "answer-reach": answer(" || !is_in_object"),
    "going-on-counts": trods(
        "wake.rs", "(self.version | (VERSIONS - 1)).saturating_add(1)", "self.version",
        "it:waking::adopters_record_takes_precedence",
    ),
    "answer-echo-since": trods("wake.rs", "record.handshake.first_timestamp.or(record.handshake.timestamp)",
                               "record.handshake.timestamp",
                               "it:adoption::idle_client_is_adopted_after_second_death"),
    "erased-as-found": trods(
        "store/load.rs", "{} C{}\\r\\n\", of.number, of.cas)", "{}\\r\\n\", of.number)",
        "it:store::newer_record_is_not_deleted",
    ),
    "probes-paced": trods(
        "hold/pace.rs", "lane.taken < AT_A_TIME", "true",
        "trods:hold::pace::tests::waiting_clients_are_paced_apart_from_idle_ones",
    ),
    "waited-for-first": trods(
        "hold/rescue.rs", "found.record.is_waited_for()", "false",
        "trods:hold::rescue::tests::waiting_clients_are_probed_first",
    ),
    "small-windows": trods(
        "wake.rs", "handshake.mss.min(halves(place.window))", "handshake.mss",
        "it:waking::small_window_gets_shorter_segments",
    ),
    "pipe-kept": trods(
        "adopt/origin.rs", "if self.filled == 0\n            && let", "if let",
        "trods:adopt::origin::tests::pipe_keeps_its_ends_while_it_holds_data",
    ),
    "answer-fresh": trods(
        "hold/rescue.rs", "!place.fresh && ", "false && ",
        "trods:hold::rescue::tests::probe_answer_ends_the_search",
    ),
    "reset-near": trods(
        "wake.rs", "if !is_near {", "if false {", "it:waking::client_without_connection_answers_with_rst"
    ),
    "orphans-bound": trods(
        "hold/rescue.rs",
        "self.orphans.len() >= MAX_ORPHANS",
        "false",
        "trods:hold::rescue::tests::number_of_searches_is_limited",
    ),
    "erased-late": trods(
        "hold/rescue.rs", "now < *since + STORED", "now < *since",
        "trods:hold::rescue::tests::probe_answer_ends_the_search",
    ),
    # Of two replicas with records of a connection the one with the newer record adopts it, if it may send.
    "age-version": trods(
        "record.rs", "if self.isns == other.isns && self.version != other.version {", "if false {",
        "it:records::higher_version_of_a_connection_wins",
    ),
    "age-connection": trods(
        "record.rs", "if self.isns == other.isns && ", "if ", "it:records::higher_version_of_a_connection_wins"
    ),
    "newer-here": trods(
        "hold/rescue.rs", "watch.is_ahead(&key, &age) || ", "",
        "trods:hold::rescue::tests::older_record_does_not_replace_live_connection",
    ),
    "newer-elsewhere": trods(
        "hold/rescue.rs", " || watch.is_elsewhere(&key, &age)", "",
        "trods:hold::rescue::tests::connection_with_newer_state_elsewhere_is_not_searched",
    ),
    "newer-here-pinned": trods(
        "hold/watch/parting.rs", "self.is_ahead(key, theirs) || ", "",
        "trods:hold::rescue::tests::older_record_does_not_replace_live_connection",
    ),
    "mute-deaf": trods(
        "hold/watch/hear.rs", "if service.is_some_and(|service| service.may_send(leases)) {", "if service.is_some() {",
        "trods:hold::rescue::tests::muted_replica_adopts_no_connection",
    ),
    "reset-place": trods(
        "hold/connection.rs",
        "What::Reset { seq } => seq == self.next || seq == self.most,",
        "What::Reset { .. } => true,",
        "trods:hold::connection::tests::rst_counts_only_at_exact_sequence_number",
    ),
    # Which dead replicas' connections a survivor adopts, and its queries to live replicas.
    "gone-all": agent(
        "for dead in dead().filter(|_| gone != 0) {", "for dead in (0..64).filter(|dead| gone >> dead & 1 == 1) {",
        "agent:agent::trods::tests::each_death_reads_the_records_of_all_dead_members",
    ),
    "gone-again": trods(
        "hold/rescue.rs", "(known.other == found.other || known.asked > found.asked)", "true", READ_AGAIN
    ),
    "gone-in-order": trods("hold/rescue.rs", " || known.asked > found.asked", "", READ_AGAIN),
    "newer-looked-for": trods(
        "hold/rescue.rs", "orphan.found.record.age().is_after(theirs)", "orphan.probes > PROBES.len()", NEWER
    ),
    "newer-held": trods("hold/watch/parting.rs", " || self.is_elsewhere(key, theirs);", ";", NEWER),
    "gets-asked": agent("None if plain != self.plain ||", "None if", TAKES),
    "gets-late": agent(
        " || self.look_at.is_some_and(|at| at <= now)", "",
        "agent:agent::trods::tests::holders_are_queried_again_for_late_records",
    ),
    "gets-waits": agent("if absence.is_some() {", "if true {", TAKES),
    "gets-own": agent(".is_some_and(|owner| u16::from(owner) == own)", ".is_some()", TAKES),
    "gets-client": Removal(
        "host/server/src/service.rs", "self.key.client(client.ip())", "self.key.flow(client, service)",
        ("server:service::tests::affinity_keeps_all_flows_of_a_client_on_one_replica",),
    ),
    "gets-filter": trods(
        "hold/pins.rs", " && (absence.gets)(record.tuple.client, record.tuple.service)", "",
        "it:pins::query_returns_pins_of_possible_connections",
    ),
    "incarnation-last": agent(
        "second.max(last.saturating_add(1))", "second.max(last)", NUMBER, file="agent/incarnation.rs"
    ),
    "incarnation-kept": agent(
        "if let Err(e) = keep(&path, &next) {",
        "if let Err(e) = keep(&path, &0.into()) {",
        NUMBER,
        file="agent/incarnation.rs",
    ),
    "incarnation-own": agent(
        "incarnation::next(&args.socket, rivulet_server::incarnation())",
        "{ let _ = incarnation::next; incarnation::Incarnation::from(rivulet_server::incarnation()) }",
        OUTLIVES,
        file="agent/command.rs",
    ),
    "former": agent("looked_for.extend(self.services.iter().filter_map(former));", "", FORMER, OUTLIVES),
    "former-own": agent("(told != incarnation).then(||", "true.then(||", FORMER),
    "former-sockets": trods(
        "hold/watch/mod.rs", "self.keep_closing(*service)?;", "",
        "it:leaving::former_process_sockets_are_reset",
    ),
    # The end of an adopted connection.
    "adopted-leaves": trods("hold/connection.rs", " || self.leaves", "", ADOPTED_ENDS),
    "adopted-fin": trods(
        "hold/connection.rs", "fin_at.filter(|_| closes || !self.adopted)", "fin_at", ADOPTED_ENDS
    ),
    "adopted-told": trods(
        "hold/watch/hear.rs", "=> (connection.is_relayed(), of_dead)", "=> (false, of_dead)", ADOPTED_ENDS
    ),
    "adopted-judged": trods(
        "hold/watch/parting.rs", "if !died && !relayed {", "if !died {", ADOPTED_STAYS
    ),
    "adopted-terminated": trods(
        "hold/connection.rs", "self.adopted && !self.flow.is_terminated()", "self.adopted",
        "trods:hold::connection::tests::terminator_ends_connections_that_it_adopted",
    ),
    "adopted-stopped": agent("std::mem::forget(self.replica.take());", "drop(self.replica.take());", OUTLIVES),
    # The lease.
    "term-again": trods("lease.rs", "self.taking != taking", "self.taking && !taking", AWAY),
    "term-sent": trods("lease.rs", "self.sure.max(sent.", "self.sure.max(now.", HEARD),
    "term-alive": trods("lease.rs", "        if here {", "        if true {", OUT),
    "term-late": trods("lease.rs", "self.sure.max(sent.saturating_add(", "0.max(sent.saturating_add(", HEARD),
    "term-away": trods("lease.rs", " && self.away().is_none()", "", AWAY),
    "term-absence": trods("lease.rs", "u64::from(self.taking != taking || was_here != here)", "0", AWAY),
    "term-back": trods("lease.rs", " || was_here != here", "", OUT),
    "term-out": trods("lease.rs", "if here && !self.out && ", "if here && ", OUT),
    "term-lapsed": trods("lease.rs", " || now > self.sure", "", OUT),
    "term-settling": trods(
        "lease.rs", "if gone != 0 || ", "if ",
        "trods:lease::tests::departure_is_reported_once_and_sends_no_rst",
    ),
    "term-takes": trods("lease.rs", " || !taking || self.away()", " || self.away()", RESETS_NOBODY),
    "term-knows": trods("lease.rs", " || !taking || self.away().is_some()", " || !taking", RESETS_NOBODY),
    # Frames of which a part may leave.
    "part-leaves": trods(
        "hold/connection.rs",
        "                    self.send_part(&mut frame, hold);\n                    self.held",
        "                    self.held",
        PART_AGAIN,
        PART,
    ),
    "part-again": trods(
        "hold/connection.rs",
        "        self.send_part(&mut frame, hold);\n        if",
        "        let _ = &mut frame;\n        if",
        PART_AGAIN,
    ),
    "part-fin": trods("hold/frame.rs", "front.seal(TcpFlags::FIN);", "front.seal(0);", PART_CUT),
    "part-cwr": trods("hold/frame.rs", "self.seal(CWR);", "self.seal(0);", PART_CUT),
    "part-more": trods(
        "hold/connection.rs", "self.read_held(Some(frame), out);", "self.read_held(None, out);", PART_MORE
    ),
    "part-sum": trods("hold/frame.rs", "let _ = sum(&mut self.octets, self.checksum);", "", PART_CUT),
    "part-patience": trods(
        "flow/watched.rs",
        "if is_late && !self.is_full {",
        "if is_late {",
        "it:cases::full_record_waits_even_after_late_server",
        "it:model::a_death_at_any_step_loses_nothing",
    ),
    "part-count": trods(
        "flow/watched/read.rs",
        "        if self.record.responses.len() >= MAX_RESPONSES {\n            self.is_full = true;\n",
        "        if self.record.responses.len() >= MAX_RESPONSES {\n",
        "it:cases::full_record_holds_the_next_response",
    ),
    "part-read": trods("hold/connection.rs", "while self.read != self.flow.reads() {", "while false {", PART),
    # Records that no connection writes.
    "record-passed": field("passed > length"),
    "record-last": field("passed < length && !last"),
    "record-empty": field("length == 0"),
    "record-count": field("if count > MAX_RESPONSES {", "if false {"),
    "record-clock": field("handshake.timestamp.is_none() && handshake.first_timestamp.is_some()"),
    "record-shift": field("theirs > MAX_SCALE || ours > MAX_SCALE"),
    "record-whole": field("octets.len() as u64 != length"),
    "record-long": field("if length > most {", "if false {"),
    "record-object": field("head.len() as u64 + object.length != length"),
    "record-check": field("u64::from(check.0) > object.length.min(MAX_CHECK as u64)"),
    "record-request": field(".filter(|asked| asked.length == request.len())", ""),
    "record-head": field("said.length == head.len()", "true"),
    "record-sum": trods(
        "record/codec.rs",
        "if crc32c::crc32c(octets) != u32::from_be_bytes(*sum) {",
        "if u32::from_be_bytes(*sum) == 0 {",
        "it:records::any_changed_byte_damages_a_record",
    ),
    "record-end": trods(
        "record/codec.rs", "if !from.0.is_empty() {", "if false {", "it:records::record_with_trailing_bytes_is_refused"
    ),
}  # fmt: skip

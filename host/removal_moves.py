# SPDX-License-Identifier: Apache-2.0
"""Removals of the defences of planned moves: data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal


def moves(file: str, old: str, new: str, *tests: str) -> Removal:
    """Tests without a program's prefix are those of host/trods/tests/it/moves.rs."""
    return Removal(f"host/{file}", old, new, tuple(test if ":" in test else f"it:moves::{test}" for test in tests))


LEAVE, FOLLOW = "trods/src/hold/moves/leave.rs", "trods/src/hold/moves/follow.rs"
STAYS = "connection_for_another_member_is_not_adopted"
IDLE = "idle_connections_move_to_a_reading_member"
MEMBERS = "bpf/src/bpf/members.h"
TURNED = "bpf:trods::tests::unknown::unknown_segment_is_returned_to_tor_at_once"
COPIES, KEPT = "trods/src/hold/copies.rs", "trods:hold::copies::tests::copies_are_kept_for_one_second"
HEARD_AGAIN = "parked_data_reaches_the_adopter"
HEARD = "agents:upgrade::drained_replica_serves_through_an_agent_restart"

REMOVALS = {
    # The leaving replica: when it stops sending on a connection, and which replicas it informs.
    "moves-mute": moves(
        "trods/src/hold/watch/parting.rs",
        "        self.hold.programs.pin(key, to)?;\n        self.drop_socket(key)",
        "        let _ = to;\n        self.drop_socket(key)",
        "a_download_moves_in_the_middle",
    ),
    "moves-nobody": moves(LEAVE, ".is_none_or(is_behind)", ".is_some_and(|_| false)", IDLE),
    "moves-ahead": moves(LEAVE, ".is_none_or(is_behind)", ".is_none()", IDLE),
    "moves-whole": moves(
        "trods/src/flow/watched.rs",
        "self.arrived() == self.covered && self.is_known_to_store()",
        "self.is_known_to_store()",
        "unstored_request_prevents_a_move",
    ),
    "moves-just-said": moves(
        "trods/src/hold/watch/parting.rs",
        "        self.catch_up()?;\n",
        "",
        "it:leaving::unread_client_data_keeps_connection_here",
    ),
    "moves-ends": moves(
        "trods/src/flow/watched.rs",
        "self.settled().filter(|_| is_whole && !ends)",
        "self.settled().filter(|_| is_whole || ends)",
        "unstored_request_prevents_a_move",
    ),
    # The following replica: which connections it adopts, and from which state.
    "moves-age": moves(FOLLOW, "left.age == age && ", "", STAYS),
    "moves-before": moves(
        FOLLOW,
        "let Some(read) = self.read.replace(list.end()) else { return };",
        "let read = self.read.replace(list.end()).unwrap_or(0);",
        STAYS,
    ),
    "moves-copied": moves(
        "bpf/src/bpf/trods.c",
        "\t\t\t\tpark(skb, &s);\n\t\t\treturn hand_on",
        "\t\t\t\t(void)0;\n\t\t\treturn hand_on",
        HEARD_AGAIN,
    ),
    "moves-kept": moves(
        "trods/src/hold/rescue.rs", "self.copies.keep(key, packet, &segment, Instant::now());", "", HEARD_AGAIN
    ),
    "moves-again": moves(
        "trods/src/replica/body.rs", "self.watch.hear_again(key, &packet);", "drop(packet);", HEARD_AGAIN
    ),
    "moves-copies-old": moves(COPIES, "now >= *at + KEPT", "*at > now + KEPT", KEPT),
    "moves-copies-most": moves(COPIES, " || self.order.len() >= MOST", "", KEPT),
    # Members that the controller drains.
    "moves-drained": moves(
        "rivulet/src/agent/moves.rs",
        "slots.pairs.iter().all(|slot| slot.first != member)",
        "slots.pairs.iter().all(|slot| slot.second != member)",
        "agent:agent::moves::tests::member_first_in_no_slot_is_drained",
    ),
    # Serving while the agent restarts.
    "moves-heard": moves("rivulet/src/agent/command.rs", "if plain.is_left_alone() {", "if false {", HEARD),
    "moves-over": moves(
        "rivulet/src/agent/stand_in.rs", "Some(Ok(1)) => said == [OVER],", "Some(Ok(1)) => false,", HEARD
    ),
    "moves-silent": moves(
        "rivulet/src/agent/plain.rs", "if !ready && self.predecessor.is_some() {", "if false {", HEARD
    ),
    "moves-waits": moves(
        "rivulet/src/agent/trods.rs",
        "self.waits || replica.is_settling()",
        "replica.is_settling()",
        "agent:agent::moves::tests::agent_is_not_ready_while_another_process_answers",
    ),
    # No kernel resets a connection of another replica.
    "moves-rules": moves(
        "rivulet/src/agent/stand_in.rs",
        "rules.map(|rules| Table::leave(pid, None, &rules))",
        "None::<Result<(), String>>",
        HEARD,
    ),
    "moves-straight": moves(
        "rivulet/src/second_chance.rs",
        'writeln!(ingress, "  {here} delete @handed{family} {{ {from} }}");',
        "writeln!(ingress);",
        "agent:second_chance::tests::segment_forwarded_here_once_is_forwarded_when_direct",
    ),
    "moves-turned": moves(MEMBERS, "\t\t\treturn turn_around(skb, lease->tor);\n", "", TURNED),
    "moves-turned-once": moves(MEMBERS, "!dead && is_from(skb, lease->tor) && ", "!dead && ", TURNED),
    "moves-turned-dead": moves(MEMBERS, "at && !dead && ", "at && ", TURNED),
    "moves-turned-syn": moves(
        MEMBERS, " && !bpf_map_lookup_elem(&openings, &s->key)) {\n\t\tif (now", ") {\n\t\tif (now", TURNED
    ),
    "moves-turned-most": moves(
        MEMBERS,
        "if (at->turned.count < TURNED) {",
        "if (1) {",
        "bpf:trods::tests::unknown::flood_of_unknown_segments_is_mostly_not_returned",
    ),
}

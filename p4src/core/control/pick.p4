// SPDX-License-Identifier: Apache-2.0
// The slot of a packet, and the member that gets it.
#ifndef RIVULET_PICK_P4
#define RIVULET_PICK_P4

#include "../metadata.p4"
#include <state.p4>
#include <slot_hash.p4>
#include "rank.p4"

const bit<32> SLOT_TABLE_SIZE = 65536;
// log2 of the bytes of a block of a large answer: 1 MB. With smaller blocks answers change replica
// more often, and each change begins with a congestion window that is out of date.
const bit<8> BLOCK_SHIFT = 20;

// The policy's number and the two candidates of its slot, in one lookup.
control Slots(in headers_t hdr, inout metadata_t meta) {
    BlockHash() block_hash;
    RandomNumber() random_number;
    Turn() turn;
    slot_set_t slot_set;
    slot_t     slot;

    @id(0x0100001d)
    action set_slot(replica_id_t first, replica_id_t second) {
        meta.choice.first = first;
        meta.choice.second = second;
    }

    @id(0x0100001e)
    action no_slot(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // The candidates of a slot.
    @id(0x0200000f)
    table slots {
        key = {
            slot_set : exact @name("slot_set");
            slot     : exact @name("slot");
        }
        actions = { set_slot; @defaultonly no_slot; }
        const default_action = no_slot(drop_reason_t.SERVICE_UNCONFIGURED);
        size = SLOT_TABLE_SIZE;
    }

    apply {
        // A resubmitted packet keeps its number.
        if (meta.carried.resubmits == 0) {
            if (meta.flow.by_flow == 1) {
                meta.carried.pick = meta.flow.hash;
            } else if (meta.flow.by_block == 1) {
                // An odd factor maps consecutive blocks to different slots. Block 0 stays at the
                // flow's replica, which began the answer.
                meta.carried.pick = meta.flow.hash ^ ((meta.cookie.distance >> BLOCK_SHIFT) * 0x9e3779b1);
            } else if (meta.service.policy == policy_t.BLOCK && !hdr.continuation.isValid()) {
                // A segment of stateless TCP: any replica can answer, and the one that sent the
                // answer's beginning answers sooner.
                meta.carried.pick = meta.flow.hash;
            } else if (meta.service.policy == policy_t.BLOCK) {
                block_hash.apply(meta, hdr.continuation.tag, hdr.continuation.number, hdr.proof.attempt);
                meta.carried.pick = meta.hash.result;
            } else if (meta.service.policy == policy_t.ROUND_ROBIN) {
                turn.apply(meta.service.id, meta.carried.pick);
            } else {
                random_number.apply(meta.carried.pick);
            }
        }
        if (meta.flow.by_flow == 1) {
            slot_set = meta.service.flow_set;
            slot = meta.carried.pick[15:0] & meta.service.flow_mask;
        } else {
            slot_set = meta.service.spray_set;
            slot = meta.carried.pick[15:0] & meta.service.spray_mask;
        }
        slots.apply();
    }
}

// First, else second, else any candidate, with equal probability for any set of dead members.
// Tables apply once, so there is no probing of slot after slot; it would give one neighbour the
// whole share of a dead replica anyway.
control PickMember(inout metadata_t meta) {
    MemberAt() member_at;
    replica_id_t third;

    apply {
        meta.choice.chosen = 1;
        if (((meta.choice.candidates >> (bit<8>)meta.choice.first) & 1) == 1) {
            meta.bridged.replica = meta.choice.first;
        } else if (((meta.choice.candidates >> (bit<8>)meta.choice.second) & 1) == 1) {
            meta.bridged.replica = meta.choice.second;
        } else if (meta.choice.candidates != 0) {
            // The low bits chose the slot and round robin's high bits stand still: the product's
            // high bits are even over the packets of one slot (Knuth, The Art of Computer
            // Programming, 6.4: Fibonacci hashing).
            member_at.apply(meta, meta.choice.candidates, (meta.carried.pick * 0x9e3779b9)[31:16], third);
            meta.bridged.replica = third;
        } else {
            meta.choice.chosen = 0;
        }
    }
}

#endif

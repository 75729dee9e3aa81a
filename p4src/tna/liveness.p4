// SPDX-License-Identifier: Apache-2.0
// Live members and the choice of one, for Tofino: the rules of core/control/liveness.p4 with
// registers of 32 bits. A stateful ALU cannot shift by a variable, so tables give a member's bit.
//
// A packet reads the pool's excluded set, takes the first or second candidate of its slot, and then
// reads when that member's last heartbeat came. If that is overdue, the packet is resubmitted; the
// second pass excludes the member. A heartbeat writes its time in its first pass. If it is the third
// within the bound, it is resubmitted too, because the set stands before the times in the pipeline.
#ifndef RIVULET_TNA_LIVENESS_P4
#define RIVULET_TNA_LIVENESS_P4

#include "../core/metadata.p4"
#include <state.p4>

const bit<7> RESUBMITS_MAX = 64;

// The bit of a member within its set, in two halves. The control plane fills the 64 rows once.
control MemberBit(in replica_id_t replica, out bit<32> low, out bit<32> high) {
    action member_bit(bit<32> of_low, bit<32> of_high) {
        low = of_low;
        high = of_high;
    }

    // Row r: bit r of the two halves.
    table member_bits {
        key = { replica : exact @name("replica"); }
        actions = { member_bit; }
        const default_action = member_bit(0, 0);
        size = 64;
    }

    apply {
        member_bits.apply();
    }
}

// The two candidates of a packet's slot: core/control/pick.p4 has the same table.
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
        size = 65536;
    }

    apply {
        if (meta.carried.resubmits == 0) {
            if (meta.flow.by_flow == 1 || !hdr.continuation.isValid()) {
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

// The lowest live member: the third choice, where both candidates of a slot are dead. The other
// program spreads these packets over all live members (rank.p4), which takes shifts.
control LowestMember(in bit<32> low, in bit<32> high, out replica_id_t replica, out bit<1> found) {
    action lowest(replica_id_t member) {
        replica = member;
        found = 1;
    }

    // Row r, in order: bit r and no lower one. The control plane fills the 64 rows once.
    table lowest_members {
        key = {
            low  : ternary @name("low");
            high : ternary @name("high");
        }
        actions = { lowest; @defaultonly NoAction; }
        const default_action = NoAction;
        size = 64;
    }

    apply {
        replica = 0;
        found = 0;
        lowest_members.apply();
    }
}

// The pool's members and bound: core/control/liveness.p4 has the same table, with a set of 64 bits.
control Pools(inout metadata_t meta, out bit<32> low, out bit<32> high, out ticks_t bound) {
    action set_pool(bit<32> members_low, bit<32> members_high, ticks_t pool_bound, bit<16> copies_group) {
        low = members_low;
        high = members_high;
        bound = pool_bound;
        meta.pool.copies_group = copies_group;
    }

    action no_pool(drop_reason_t reason) {
        low = 0;
        high = 0;
        bound = 0;
        meta.decided.drop_reason = reason;
    }

    // Members of a pool, and the bound on time without a heartbeat, in clock ticks.
    table pools {
        key = { meta.bridged.pool : exact @name("pool"); }
        actions = { set_pool; @defaultonly no_pool; }
        const default_action = no_pool(drop_reason_t.SERVICE_UNCONFIGURED);
        size = 1024;
    }

    apply {
        pools.apply();
    }
}

control Liveness(in headers_t hdr, inout metadata_t meta) {
    Pools() pools;
    MemberBit() subject_bit;
    MemberBit() first_bit;
    MemberBit() second_bit;
    MemberBit() source_bit;
    HalfSet() excluded_low;
    HalfSet() excluded_high;
    Slots() slots;
    LowestMember() lowest_member;
    Heard() heard;
    ReplicaExclusionCounter() exclusion_counter;
    bit<32> members_low;
    bit<32> members_high;
    bit<32> subject_low;
    bit<32> subject_high;
    bit<32> add_low;
    bit<32> add_high;
    bit<32> remove_low;
    bit<32> remove_high;
    bit<32> before_low;
    bit<32> before_high;
    bit<32> first_low;
    bit<32> first_high;
    bit<32> second_low;
    bit<32> second_high;
    bit<1>  found;
    bit<1>  in_time;
    ticks_t bound;
    ticks_t earliest;

    apply {
        pools.apply(meta, members_low, members_high, bound);
        earliest = meta.carried.ticks - bound;

        // A second pass changes the excluded set: a packet adds the silent member, a heartbeat
        // removes its own.
        subject_bit.apply(meta.carried.silent_replica, subject_low, subject_high);
        add_low = 0;
        add_high = 0;
        remove_low = 0;
        remove_high = 0;
        if (meta.carried.silent == 1 && meta.carried.silent_pool == meta.bridged.pool) {
            add_low = subject_low;
            add_high = subject_high;
        } else if (meta.heartbeat.ours == 1 && meta.carried.resubmits != 0) {
            remove_low = subject_low;
            remove_high = subject_high;
        }
        excluded_low.apply(meta.bridged.pool, add_low, remove_low, before_low);
        excluded_high.apply(meta.bridged.pool, add_high, remove_high, before_high);
        if (((add_low & ~before_low) | (add_high & ~before_high)) != 0) {
            exclusion_counter.apply(meta.bridged.pool ++ meta.carried.silent_replica);
        }
        members_low = members_low & ~((before_low | add_low) & ~remove_low);
        members_high = members_high & ~((before_high | add_high) & ~remove_high);
        meta.bridged.alive = members_high ++ members_low;

        if (meta.heartbeat.ours == 0 && meta.address.of_member == 0 && meta.bridged.to_copies == 0
            && meta.decided.drop_reason == drop_reason_t.NONE) {
            slots.apply(hdr, meta);
            first_bit.apply(meta.choice.first, first_low, first_high);
            second_bit.apply(meta.choice.second, second_low, second_high);
            // A second chance goes to the other candidate of the slot.
            if (meta.bridged.handed_on == 1 && meta.choice.first == meta.flow.handed_on_by) {
                first_low = 0;
                first_high = 0;
            }
            if (((members_low & first_low) | (members_high & first_high)) != 0) {
                meta.bridged.replica = meta.choice.first;
                found = 1;
            } else if (((members_low & second_low) | (members_high & second_high)) != 0) {
                meta.bridged.replica = meta.choice.second;
                found = 1;
            } else {
                lowest_member.apply(members_low, members_high, meta.bridged.replica, found);
            }
            if (found == 0) {
                meta.decided.drop_reason = drop_reason_t.NO_REPLICA;
            }
        } else if (meta.address.of_member == 1) {
            source_bit.apply(meta.bridged.replica, first_low, first_high);
            if (((members_low & first_low) | (members_high & first_high)) == 0) {
                meta.decided.drop_reason = drop_reason_t.SOURCE_EXCLUDED;
            }
        }

        if (meta.decided.drop_reason == drop_reason_t.NONE && meta.address.of_member == 0
            && meta.bridged.to_copies == 0
            && (meta.heartbeat.ours == 0 || (meta.heartbeat.ready == 1 && meta.carried.resubmits == 0))) {
            heard.apply(meta.bridged.pool ++ meta.bridged.replica, meta.carried.ticks, earliest,
                        meta.heartbeat.ours, in_time);
            // A heartbeat that is the third in time returns its member; a packet excludes a member
            // that is overdue.
            if (in_time == meta.heartbeat.ours) {
                if (meta.carried.resubmits == RESUBMITS_MAX) {
                    meta.decided.drop_reason = drop_reason_t.NO_REPLICA;
                } else {
                    meta.decided.resubmit = 1;
                    meta.carried.silent = ~meta.heartbeat.ours;
                    meta.carried.silent_pool = meta.bridged.pool;
                    meta.carried.silent_replica = meta.bridged.replica;
                }
            }
        }
    }
}

#endif

// SPDX-License-Identifier: Apache-2.0
// The set of live members, and the choice of one of them. A packet reads the pool's set of excluded
// members once and takes the slot's first candidate, else its second, else another member. Then it
// reads when that member's last heartbeat arrived. If that is too long ago, the packet is
// resubmitted with the member's index; the second pass excludes the member and chooses again. No
// controller takes part.
//
// A heartbeat checks the next member of the ring (judge.p4), and its answer has the resulting sets.
// Segments that a member sends from the address of a service with TRODS are forwarded unless the
// member is excluded.
//
// Hardware: a heartbeat writes last_heard before it clears the bit; a packet reads the bits before
// it knows which last_heard to read. In one pipeline the heartbeat takes one pass more; BMv2 needs
// none for that.
#ifndef RIVULET_LIVENESS_P4
#define RIVULET_LIVENESS_P4

#include "../metadata.p4"
#include "choose.p4"
#include "exclude.p4"
#include "heartbeats.p4"
#include "judge.p4"
#include "note.p4"

control Liveness(in headers_t hdr, inout metadata_t meta) {
    KnownSince() known_since;
    Note() note;
    Judge() judge;
    Exclude() exclude;
    NextOfRing() next_of_ring;
    AnswerHeartbeat() answer_heartbeat;
    Choose() choose;
    microseconds_t since;

    // members: bit r for replica r. bound: silence in microseconds after which a replica is
    // excluded. settle: microseconds after a ToR first sees the pool, in which it excludes no
    // member. copies_group: multicast group with one copy a member, its instance the replica index.
    @id(0x0100001b)
    action set_pool(member_set_t members, bit<32> bound, bit<32> settle,
                    @refers_to(builtin::multicast_group_table, multicast_group_id) bit<16> copies_group) {
        meta.pool.members = members;
        meta.pool.bound = bound;
        meta.pool.settle = settle;
        meta.pool.copies_group = copies_group;
    }

    @id(0x0100001c)
    action no_pool(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // Members of a pool, and the bound on time without a heartbeat.
    @id(0x0200000e)
    table pools {
        key = { meta.bridged.pool : exact @name("pool"); }
        actions = { set_pool; @defaultonly no_pool; }
        const default_action = no_pool(drop_reason_t.SERVICE_UNCONFIGURED);
        size = POOL_COUNT;
    }

    apply {
        pools.apply();
        if (meta.decided.drop_reason == drop_reason_t.NONE) {
            if (meta.address.of_member == 0) {
                known_since.apply(meta.bridged.pool, meta.carried.now, since);
                if (meta.carried.now - since >= (bit<48>)meta.pool.settle) {
                    meta.pool.settled = 1;
                }
            }
            if (meta.heartbeat.ours == 1) {
                // Between the passes the controller may have changed the members of the pool, never
                // the pool of a replica.
                if (meta.heartbeat.judging == 1) {
                    judge.apply(meta);
                } else {
                    note.apply(hdr, meta);
                }
            }
            exclude.apply(meta);
            if (meta.heartbeat.ours == 1) {
                next_of_ring.apply(meta);
                if (meta.decided.resubmit == 0) {
                    answer_heartbeat.apply(hdr, meta);
                }
            } else if (meta.address.of_member == 1) {
                if (((meta.bridged.alive >> (bit<8>)meta.bridged.replica) & 1) == 0) {
                    meta.decided.drop_reason = drop_reason_t.SOURCE_EXCLUDED;
                }
            } else {
                choose.apply(hdr, meta);
            }
        }
    }
}

#endif

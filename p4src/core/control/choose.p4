// SPDX-License-Identifier: Apache-2.0
// The replica of a packet, and whether its heartbeats still arrive. Where they do not, the packet
// is resubmitted: the second pass excludes that replica and chooses another, so the packet that
// detects a death is not lost.
#ifndef RIVULET_CHOOSE_P4
#define RIVULET_CHOOSE_P4

#include "../metadata.p4"
#include <state.p4>
#include "judge.p4"
#include "pick.p4"

control Choose(in headers_t hdr, inout metadata_t meta) {
    Slots() slots;
    Loads() loads;
    PickMember() pick_member;
    Silence() silence;

    replica_id_t   less_loaded;
    bit<16>        first_load;
    bit<16>        second_load;
    member_set_t   others;
    member_set_t   holder;
    bit<1>         silent;

    apply {
        meta.choice.candidates = meta.bridged.alive;
        if (meta.flow.by_flow == 1 && (meta.bridged.alive & ~meta.choice.not_readmitted) != 0) {
            meta.choice.candidates = meta.bridged.alive & ~meta.choice.not_readmitted;
        }
        // A second chance: any replica but the one that had no socket. The other candidate gets the
        // segment even before its readmission, because it may still have old connections. A replica
        // without an alternative gets the segment back, and its kernel resets the connection.
        if (meta.bridged.handed_on == 1) {
            meta.choice.candidates = meta.bridged.alive;
            others = meta.bridged.alive & ~(64w1 << (bit<8>)meta.flow.handed_on_by);
            holder = others & (64w1 << (bit<8>)meta.flow.holder);
            if (meta.flow.holder_named == 1 && holder != 0) {
                others = holder;
            }
            if (others != 0) {
                meta.choice.candidates = others;
            }
        }

        if (meta.bridged.to_copies == 0) {
            slots.apply(hdr, meta);
            if (meta.service.policy == policy_t.LEAST_LOADED && meta.flow.by_flow == 0) {
                loads.apply(meta.bridged.pool ++ meta.choice.first, meta.bridged.pool ++ meta.choice.second,
                            first_load, second_load);
                if (second_load < first_load) {
                    less_loaded = meta.choice.second;
                    meta.choice.second = meta.choice.first;
                    meta.choice.first = less_loaded;
                }
            }
            pick_member.apply(meta);
            if (meta.choice.chosen == 1) {
                silence.apply(meta, meta.bridged.replica, silent);
                meta.decided.resubmit = silent;
            }
        }
        if (meta.decided.drop_reason != drop_reason_t.NONE) {
            meta.decided.resubmit = 0;
        } else if (meta.bridged.alive == 0) {
            meta.decided.drop_reason = drop_reason_t.NO_REPLICA;
            meta.decided.resubmit = 0;
        } else if (meta.decided.resubmit == 1) {
            // Each pass excludes one more of 64 members, so this is reached only if members return
            // between passes.
            if (meta.carried.resubmits == RESUBMITS_MAX) {
                meta.decided.drop_reason = drop_reason_t.NO_REPLICA;
                meta.decided.resubmit = 0;
            } else {
                meta.carried.resubmits = meta.carried.resubmits + 1;
                meta.carried.silent = 1;
                meta.carried.silent_pool = meta.bridged.pool;
                meta.carried.silent_replica = meta.bridged.replica;
            }
        }
    }
}

#endif

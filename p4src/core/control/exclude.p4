// SPDX-License-Identifier: Apache-2.0
// Two sets of members: those that get no packet, and those that get no plain TCP. A packet or
// heartbeat that finds the heartbeats of a replica overdue excludes it, so each exclusion is one
// event; its third ready heartbeat ends the exclusion. Each set is read once a pass.
#ifndef RIVULET_EXCLUDE_P4
#define RIVULET_EXCLUDE_P4

#include "../metadata.p4"
#include <state.p4>

control Exclude(inout metadata_t meta) {
    PoolSet() excluded;          // no packet goes there
    PoolSet() not_readmitted;    // no plain TCP goes there
    ExclusionCount() exclusion_count;
    ReplicaExclusionCounter() exclusion_counter;
    ReplicaReturnCounter() return_counter;

    replica_id_t   subject;      // the replica whose bit this pass may change
    member_id_t    member;
    member_set_t   subject_bit;
    member_set_t   silent;       // its bit if it is to be excluded
    member_set_t   back;         // its bit if its exclusion is to end
    member_set_t   readmit;      // its bit if it may take plain TCP again
    member_set_t   was_excluded;
    member_set_t   now_excluded;
    member_set_t   was_not_readmitted;
    bit<1>         returned;
    bit<1>         fell;
    bit<16>        count;        // of its exclusions

    apply {
        silent = 0;
        back = 0;
        readmit = 0;
        returned = 0;
        fell = 0;
        count = 0;
        subject = meta.carried.silent_replica;
        if (meta.heartbeat.ours == 1 && meta.heartbeat.judging == 0) {
            subject = meta.bridged.replica;
        }
        member = meta.bridged.pool ++ subject;
        subject_bit = 64w1 << (bit<8>)subject;

        if (meta.heartbeat.third == 1) {
            back = subject_bit;
        }
        // The controller may have given the service another pool between the passes.
        if (meta.carried.silent == 1 && meta.carried.silent_pool == meta.bridged.pool) {
            silent = subject_bit;
        }
        excluded.apply(meta.bridged.pool, silent, back, was_excluded, now_excluded);
        if ((was_excluded & back) != 0) {
            returned = 1;
            return_counter.apply(member);
        }
        if ((silent & ~was_excluded) != 0) {
            fell = 1;
            exclusion_counter.apply(member);
        }

        if (meta.heartbeat.ours == 1 || fell == 1) {
            exclusion_count.apply(member, fell, count);
        }

        // Plain TCP ends with the exclusion, and resumes only when the controller has acknowledged
        // as many exclusions as were counted.
        if (meta.heartbeat.ready == 1 && returned == 0 && (now_excluded & subject_bit) == 0
            && count == meta.heartbeat.readmitted) {
            readmit = subject_bit;
        }
        was_not_readmitted = 0;
        if (meta.heartbeat.ours == 1 || meta.flow.by_flow == 1 || fell == 1) {
            not_readmitted.apply(meta.bridged.pool, silent & ~was_excluded, readmit, was_not_readmitted,
                                 meta.choice.not_readmitted);
        }
        meta.bridged.alive = meta.pool.members & ~now_excluded;

        if (returned == 1) {
            meta.decided.event_kind = event_kind_t.RETURNED;
        } else if (fell == 1) {
            meta.decided.event_kind = event_kind_t.EXCLUDED;
        } else if ((was_not_readmitted & readmit) != 0) {
            meta.decided.event_kind = event_kind_t.READMITTED;
        }
        if (returned == 1 || fell == 1 || (was_not_readmitted & readmit) != 0) {
            meta.event.pool = 6w0 ++ meta.bridged.pool;
            meta.event.replica = 2w0 ++ subject;
        }
    }
}

#endif

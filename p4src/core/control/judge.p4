// SPDX-License-Identifier: Apache-2.0
// Whether a member's heartbeats are overdue, and the ring of checks: each heartbeat also checks the
// next member that is not excluded, so a death is detected without traffic. A heartbeat writes
// last_heard of its own member in its first pass, so it is resubmitted to read another's. A member
// that is overdue is excluded in that pass, and the member after it is checked next.
#ifndef RIVULET_JUDGE_P4
#define RIVULET_JUDGE_P4

#include "../metadata.p4"
#include <state.p4>
#include "rank.p4"

// Most passes of a packet after its first: each excludes one more of 64 members.
const bit<7> RESUBMITS_MAX = 64;

// Sets `silent` where the heartbeats are overdue; never before this ToR has known the pool for
// `settle`.
control Silence(inout metadata_t meta, in replica_id_t replica, out bit<1> silent) {
    LastHeard() last_heard_of;
    microseconds_t last;
    microseconds_t silence;

    apply {
        last_heard_of.apply(meta.bridged.pool ++ replica, last);
        // A heartbeat may have come between the passes: then the difference is negative, not large.
        silence = meta.carried.now - last;
        silent = 0;
        if (meta.pool.settled == 1 && (last == 0 || (silence[47:47] == 0 && silence > (bit<48>)meta.pool.bound))) {
            silent = 1;
        }
    }
}

// Before the sets are read, in a later pass of a heartbeat: sets carried.silent if the checked
// member is overdue.
control Judge(inout metadata_t meta) {
    Silence() silence;
    bit<1> silent;

    apply {
        silence.apply(meta, meta.carried.silent_replica, silent);
        meta.carried.silent = silent;
    }
}

// After the sets are read: another pass, if there is a further member to check.
control NextOfRing(inout metadata_t meta) {
    MemberAt() member_at;
    replica_id_t before;  // the ring position after which the search starts
    member_set_t before_bit;
    member_set_t others;
    member_set_t after;
    replica_id_t next;

    apply {
        if (meta.pool.settled == 1 && meta.carried.resubmits != RESUBMITS_MAX
            && (meta.heartbeat.judging == 0 || meta.carried.silent == 1)) {
            before = meta.bridged.replica;
            if (meta.heartbeat.judging == 1) {
                before = meta.carried.silent_replica;
            }
            others = meta.bridged.alive & ~(64w1 << (bit<8>)meta.bridged.replica);
            before_bit = 64w1 << (bit<8>)before;
            after = others & ~(before_bit | (before_bit - 1));
            if (after != 0) {
                others = after;
            }
            if (others != 0) {
                // The lowest.
                member_at.apply(meta, others, 0, next);
                meta.carried.resubmits = meta.carried.resubmits + 1;
                meta.carried.judging = 1;
                meta.carried.silent_pool = meta.bridged.pool;
                meta.carried.silent_replica = next;
                meta.decided.resubmit = 1;
            }
        }
    }
}

#endif

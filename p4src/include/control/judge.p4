// SPDX-License-Identifier: Apache-2.0
// Whether a member is silent, and the ring in which members judge each other: each heartbeat the next member that is not yet
// excluded, so that a death is found without traffic. The heartbeat has written last_heard for its own member, so it comes
// again to read another's; one that is found silent is excluded in that pass, and the one after it is judged next.
#ifndef RIVULET_JUDGE_P4
#define RIVULET_JUDGE_P4

#include "../metadata.p4"
#include "../v1model/state.p4"
#include "rank.p4"

// Most passes of a packet beyond its first: each finds one more of 64 silent.
const bit<7> RESUBMITS_MAX = 64;

// Sets `silent`; never before this ToR has known the pool for as long as it takes to tell.
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

// Before the sets are read, in a later pass of a heartbeat: carried.silent says whether the one to be judged is silent.
control Judge(inout metadata_t meta) {
    Silence() silence;
    bit<1> silent;

    apply {
        silence.apply(meta, meta.carried.silent_replica, silent);
        meta.carried.silent = silent;
    }
}

// After the sets are read: another pass, if there is somebody to judge.
control NextOfRing(inout metadata_t meta) {
    MemberAt() member_at;
    replica_id_t before;  // the place in the ring after which the next is looked for
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

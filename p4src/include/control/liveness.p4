// SPDX-License-Identifier: Apache-2.0
// Who is alive, and the choice of one who is. A packet reads the pool's set of excluded members once and takes the
// slot's first, else its second, else another. Then it reads when the chosen one was last heard. If that is too long
// ago the packet is not forwarded: it is resubmitted with the index, and the second pass sets the bit and chooses
// again. So the packet that finds a death is not lost, the event is edge-triggered, and no controller takes part.
//
// Hardware: a heartbeat reads last_heard before it clears the bit, a packet reads the bits before it knows
// whose last_heard to read. In one pipeline the heartbeat takes a second pass; BMv2 needs none.
#ifndef RIVULET_LIVENESS_P4
#define RIVULET_LIVENESS_P4

#include "../metadata.p4"
#include "../v1model/state.p4"
#include "pick.p4"

control Liveness(in headers_t hdr, inout metadata_t meta) {
    Slots() slots;
    PickMember() pick_member;
    PoolSet() excluded;          // no packet goes there
    PoolSet() not_readmitted;    // no plain TCP goes there
    HeardHear() heard;
    UpSince() up_since;
    ExclusionCount() exclusion_count;
    PoolExclusions() pool_exclusions;
    Load() load;
    ReplicaExclusionCounter() exclusion_counter;
    ReplicaReturnCounter() return_counter;

    replica_id_t   subject;      // whom this pass brings news of
    member_set_t   bit_of;
    member_set_t   add;
    member_set_t   remove;
    member_set_t   before;
    member_set_t   after;
    microseconds_t last;
    microseconds_t before_last;
    microseconds_t since;
    bit<1>         returned;
    bit<1>         fell;
    bit<1>         counted;
    bit<1>         start;
    bit<16>        count;
    bit<16>        first_load;
    bit<16>        second_load;

    // members: bit r for replica r. bound: silence in microseconds after which a replica is excluded. copies_group:
    // multicast group with one copy a member, its instance the replica index.
    action set_pool(member_set_t members, bit<32> bound, bit<16> copies_group) {
        meta.members = members;
        meta.bound = bound;
        meta.copies_group = copies_group;
    }

    action no_pool() {
        meta.drop_reason = drop_reason_t.SERVICE_UNCONFIGURED;
    }

    table pools {
        key = { meta.pool : exact @name("pool"); }
        actions = { set_pool; no_pool; }
        const default_action = no_pool;
        size = POOL_COUNT;
    }

    apply {
        pools.apply();
        if (meta.drop_reason == drop_reason_t.NONE) {
            add = 0;
            remove = 0;
            returned = 0;
            fell = 0;
            start = 0;
            counted = 0;
            count = 0;
            since = 0;
            subject = meta.found_dead;
            if (meta.is_heartbeat == 1) {
                subject = meta.replica;
            }
            bit_of = 64w1 << (bit<8>)subject;

            // Back after three ready heartbeats within the bound.
            if (meta.is_heartbeat == 1) {
                heard.apply(meta.pool ++ subject, meta.now, meta.heartbeat_ready, last, before_last);
                load.apply(meta.pool ++ subject, 1, hdr.heartbeat.load, meta.pool ++ subject, first_load, second_load);
                if (meta.heartbeat_ready == 1) {
                    if (before_last != 0 && meta.now - before_last <= (bit<48>)meta.bound) {
                        remove = bit_of;
                    }
                    if (last == 0) {
                        start = 1;
                    }
                }
            } else if (meta.resubmits != 0) {
                add = bit_of;
            }
            excluded.apply(meta.pool, add, remove, before, after);
            if ((before & remove) != 0) {
                returned = 1;
                start = 1;
                return_counter.apply(meta.pool ++ subject);
            }
            if ((add & ~before) != 0) {
                fell = 1;
                exclusion_counter.apply(meta.pool ++ subject);
            }

            if (meta.is_heartbeat == 1 || fell == 1) {
                up_since.apply(meta.pool ++ subject, start, meta.now, since);
                if (fell == 1 && meta.now - since >= EXCLUSION_UP_TIME) {
                    counted = 1;
                }
                exclusion_count.apply(meta.pool ++ subject, fell, count);
            }
            pool_exclusions.apply(meta.pool, counted, meta.now, meta.exclusions);

            // Plain TCP: out with the exclusion, back only when the controller has seen that many exclusions.
            remove = 0;
            if (meta.is_heartbeat == 1 && meta.heartbeat_ready == 1 && returned == 0 && (after & bit_of) == 0
                && count == meta.readmitted) {
                remove = bit_of;
            }
            meta.alive = meta.members & ~after;
            add = add & ~before;
            before = 0;
            after = 0;
            if (meta.is_heartbeat == 1 || meta.by_flow == 1 || fell == 1) {
                not_readmitted.apply(meta.pool, add, remove, before, after);
            }

            if (returned == 1) {
                meta.event_kind = event_kind_t.RETURNED;
            } else if (fell == 1) {
                meta.event_kind = event_kind_t.EXCLUDED;
            } else if ((before & remove) != 0) {
                meta.event_kind = event_kind_t.READMITTED;
            }
            if (returned == 1 || fell == 1 || (before & remove) != 0) {
                meta.event.pool = 6w0 ++ meta.pool;
                meta.event.replica = 2w0 ++ subject;
            }

            if (meta.is_heartbeat == 0) {
                meta.candidates = meta.alive;
                if (meta.by_flow == 1 && (meta.alive & ~after) != 0) {
                    meta.candidates = meta.alive & ~after;
                }
                // A second chance: not to the one that had no socket. Whether the other was readmitted does not matter,
                // its old connections may live. Alone, it gets the segment back, so that its kernel may refuse it.
                if (meta.handed_on == 1) {
                    meta.candidates = meta.alive;
                    bit_of = 64w1 << (bit<8>)meta.handed_on_by;
                    if ((meta.alive & ~bit_of) != 0) {
                        meta.candidates = meta.alive & ~bit_of;
                    }
                }
                if (meta.to_copies == 0) {
                    slots.apply(hdr, meta);
                    if (meta.policy == policy_t.LEAST_LOADED && meta.by_flow == 0) {
                        load.apply(meta.pool ++ meta.first, 0, 0, meta.pool ++ meta.second, first_load, second_load);
                        if (second_load < first_load) {
                            replica_id_t swap = meta.first;
                            meta.first = meta.second;
                            meta.second = swap;
                        }
                    }
                    pick_member.apply(meta);
                    if (meta.chosen == 1) {
                        heard.apply(meta.pool ++ meta.replica, meta.now, 0, last, before_last);
                        // A heartbeat may have come between the passes: then the difference is negative, not large.
                        since = meta.now - last;
                        if (last == 0 || (since[47:47] == 0 && since > (bit<48>)meta.bound)) {
                            meta.found_dead = meta.replica;
                            meta.chosen = 0;
                            meta.resubmit = 1;
                        }
                    }
                }
                if (meta.drop_reason != drop_reason_t.NONE) {
                    meta.resubmit = 0;
                } else if (meta.alive == 0) {
                    meta.drop_reason = drop_reason_t.NO_REPLICA;
                    meta.resubmit = 0;
                } else if (meta.resubmit == 1) {
                    // Each pass excludes one more of 64, so here only if others return meanwhile.
                    if (meta.resubmits == 64) {
                        meta.drop_reason = drop_reason_t.NO_REPLICA;
                        meta.resubmit = 0;
                    } else {
                        meta.resubmits = meta.resubmits + 1;
                    }
                }
            }
        }
    }
}

#endif

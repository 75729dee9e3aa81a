// SPDX-License-Identifier: Apache-2.0
// Who is alive, and the choice of one who is. A packet reads the pool's set of excluded members once and takes the
// slot's first, else its second, else another. Then it reads when the chosen one was last heard. If that is too long
// ago the packet is not forwarded: it is resubmitted with the index, and the second pass sets the bit and chooses
// again. No controller takes part.
//
// Hardware: a heartbeat writes last_heard before it clears the bit, a packet reads the bits before it knows
// whose last_heard to read. In one pipeline the heartbeat takes a second pass; BMv2 needs none.
#ifndef RIVULET_LIVENESS_P4
#define RIVULET_LIVENESS_P4

#include "../metadata.p4"
#include "choose.p4"
#include "exclude.p4"
#include "note.p4"

control Liveness(in headers_t hdr, inout metadata_t meta) {
    Note() note;
    Exclude() exclude;
    Choose() choose;

    // members: bit r for replica r. bound: silence in microseconds after which a replica is excluded. copies_group:
    // multicast group with one copy a member, its instance the replica index.
    @id(0x0100001b)
    action set_pool(member_set_t members, bit<32> bound,
                    @refers_to(builtin::multicast_group_table, multicast_group_id) bit<16> copies_group) {
        meta.pool.members = members;
        meta.pool.bound = bound;
        meta.pool.copies_group = copies_group;
    }

    @id(0x0100001c)
    action no_pool(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // Who is in a pool, and how long a member may be silent.
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
            if (meta.heartbeat.ours == 1) {
                note.apply(hdr, meta);
            }
            exclude.apply(meta);
            if (meta.heartbeat.ours == 0) {
                choose.apply(hdr, meta);
            }
        }
    }
}

#endif

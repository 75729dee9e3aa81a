// SPDX-License-Identifier: Apache-2.0
// The second chance of a plain TCP segment, in the manner of GLB. A replica that has no socket for a segment sends it
// back to the ToR from its own Ethernet address; the ToR gives it to the slot's other candidate, and leaves that source
// address standing. A replica hands on only what has the ToR's, so a segment is handed on once.
//
// With TRODS a replica that comes back knows who adopted what it had. It sends such a segment to an Ethernet address
// that names the holder, and the holder gets it for as long as it is alive. So the ToR keeps nothing of a connection.
#ifndef RIVULET_SECOND_CHANCE_P4
#define RIVULET_SECOND_CHANCE_P4

#include "../metadata.p4"

const bit<32> SECOND_CHANCE_TABLE_SIZE = 8192;

// Whether a replica in the rack sent this packet to a service of its own pool, and which.
control SecondChance(in headers_t hdr, inout metadata_t meta) {
    @id(0x01000019)
    action handed_on_by(replica_id_t replica) {
        meta.decided.outcome = outcome_t.HANDED_ON;
        meta.bridged.handed_on = 1;
        meta.flow.handed_on_by = replica;
    }

    @id(0x0100001a)
    action not_handed_on(outcome_t outcome) {
        meta.decided.outcome = outcome;
    }

    // Where each replica of the rack sends from.
    @id(0x0200000d)
    table second_chances {
        key = {
            meta.bridged.pool         : exact @name("pool") @refers_to(pools, pool);
            meta.carried.ingress_port : exact @name("ingress_port");
            hdr.ethernet.src  : exact @name("mac");
        }
        actions = { handed_on_by; @defaultonly not_handed_on; }
        const default_action = not_handed_on(outcome_t.PLAIN_SEGMENT);
        size = SECOND_CHANCE_TABLE_SIZE;
    }

    apply {
        second_chances.apply();
        if (meta.service.plain == plain_t.TRODS && (hdr.ethernet.dst & HOLDER_MAC_MASK) == HOLDER_MAC) {
            meta.flow.holder_named = 1;
            meta.flow.holder = hdr.ethernet.dst[5:0];
        }
    }
}

#endif

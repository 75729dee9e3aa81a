// SPDX-License-Identifier: Apache-2.0
// The second chance of a plain TCP segment, as in GLB. A replica that has no socket for a segment
// sends it back to the ToR from its own Ethernet address. The ToR forwards it to the slot's other
// candidate and keeps that source address. Replicas hand on only segments with the ToR's source
// address, so a segment is handed on once.
//
// With TRODS a returning replica knows which replicas adopted its connections. It sends such a
// segment to an Ethernet address that names the holder, and the ToR forwards it to the holder while
// that is alive. The ToR keeps no connection state.
#ifndef RIVULET_SECOND_CHANCE_P4
#define RIVULET_SECOND_CHANCE_P4

#include "../metadata.p4"

const bit<32> SECOND_CHANCE_TABLE_SIZE = 8192;

// Whether a replica in the rack sent this packet to a service that its pool serves, and which
// replica.
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

    // Port and Ethernet address of each replica of the rack.
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

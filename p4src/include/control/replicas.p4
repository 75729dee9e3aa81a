// SPDX-License-Identifier: Apache-2.0
// Where a replica is: in the rack, or beyond it and reached by a tunnel.
#ifndef RIVULET_REPLICAS_P4
#define RIVULET_REPLICAS_P4

#include "../metadata.p4"
#include "../v1model/state.p4"

const bit<32> REPLICA_TABLE_SIZE = 8192;

control Replicas(inout metadata_t meta) {
    ReplicaCounter() replica_counter;

    action rack(next_hop_t next_hop) {
        meta.next_hop = next_hop;
        meta.routed = 1;
    }

    // overhead: bytes of the tunnel's headers. The mark is for hosts whose frames come from their own ToR.
    action remote(next_hop_t next_hop, bit<16> overhead) {
        meta.next_hop = next_hop;
        meta.routed = 1;
        meta.overhead = overhead;
        meta.is_remote = 1;
    }

    action no_replica_entry() {
        meta.drop_reason = drop_reason_t.SERVICE_UNCONFIGURED;
    }

    table replicas {
        key = {
            meta.pool    : exact @name("pool");
            meta.replica : exact @name("replica");
        }
        actions = { rack; remote; no_replica_entry; }
        const default_action = no_replica_entry;
        size = REPLICA_TABLE_SIZE;
    }

    apply {
        replicas.apply();
        if (meta.drop_reason == drop_reason_t.NONE) {
            meta.to_replica = 1;
            replica_counter.apply(meta.pool ++ meta.replica);
        }
    }
}

#endif

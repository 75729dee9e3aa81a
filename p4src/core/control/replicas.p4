// SPDX-License-Identifier: Apache-2.0
// Where a replica is: in the rack, or beyond it and reached by a tunnel.
#ifndef RIVULET_REPLICAS_P4
#define RIVULET_REPLICAS_P4

#include "../metadata.p4"
#include <state.p4>

const bit<32> REPLICA_TABLE_SIZE = 8192;

control Replicas(inout metadata_t meta) {
    ReplicaCounter() replica_counter;
    RequestCounter() request_counter;

    @id(0x01000020)
    action rack(@refers_to(next_hops, next_hop) next_hop_t next_hop) {
        meta.bridged.next_hop = next_hop;
        meta.bridged.routed = 1;
    }

    // overhead: bytes of the tunnel's headers. path_mtu: the longest packet, with them, that ICMP
    // too-big messages allow, 0 if none arrived. block_key: tags the ToR block, because tunnelled
    // frames could come from any host.
    @id(0x01000021)
    action remote(@refers_to(next_hops, next_hop) next_hop_t next_hop, bit<16> overhead, bit<16> path_mtu,
                  key_epoch_t key_epoch, @secret bit<32> block_key0, @secret bit<32> block_key1) {
        meta.bridged.next_hop = next_hop;
        meta.bridged.routed = 1;
        meta.bridged.overhead = overhead;
        meta.bridged.path_mtu = path_mtu;
        meta.bridged.key_epoch = key_epoch;
        meta.keys.block_key0 = block_key0;
        meta.keys.block_key1 = block_key1;
        meta.bridged.is_remote = 1;
    }

    @id(0x01000022)
    action no_replica_entry(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // How a replica is reached.
    @id(0x02000011)
    table replicas {
        key = {
            meta.bridged.pool    : exact @name("pool") @refers_to(pools, pool);
            meta.bridged.replica : exact @name("replica");
        }
        actions = { rack; remote; @defaultonly no_replica_entry; }
        const default_action = no_replica_entry(drop_reason_t.SERVICE_UNCONFIGURED);
        size = REPLICA_TABLE_SIZE;
    }

    apply {
        replicas.apply();
        if (meta.decided.drop_reason == drop_reason_t.NONE) {
            meta.bridged.to_replica = 1;
            replica_counter.apply(meta.bridged.pool ++ meta.bridged.replica);
            if (meta.decided.is_request == 1) {
                request_counter.apply(meta.bridged.pool ++ meta.bridged.replica);
            }
        }
    }
}

#endif

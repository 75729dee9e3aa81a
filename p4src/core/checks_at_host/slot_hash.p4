// SPDX-License-Identifier: Apache-2.0
// The hashes that choose a slot, where replicas make the checks: CRC-32 of the slot key and the
// packet's words, which a switching chip computes without a pass of its own. The key makes the slot
// of a flow unknown to clients, but not which flows share a slot: a CRC is linear, so the XOR of two
// results does not depend on the key (docs/security.md).
#ifndef RIVULET_HOST_SLOT_HASH_P4
#define RIVULET_HOST_SLOT_HASH_P4

#include "../metadata.p4"
#include <crc.p4>

// meta.flow.hash of the connection, or with client affinity of the client, and meta.flow.client_cell.
control FlowHash(inout metadata_t meta) {
    ClientCrc() client_crc;
    FlowCrc() flow_crc;
    bit<32> client;

    apply {
        client_crc.apply(meta.service.slot_key0, meta.service.slot_key1, meta.flow.client_address, client);
        meta.flow.client_cell = client[11:0];
        meta.flow.hash = client;
        if (meta.service.affinity == affinity_t.FLOW) {
            flow_crc.apply(meta.service.slot_key0, meta.service.slot_key1, meta.flow.client_address,
                           meta.flow.service_address, meta.flow.client_port ++ meta.flow.service_port, meta.flow.hash);
        }
    }
}

// meta.hash.result for eight consecutive numbers of a connection and one attempt.
control BlockHash(inout metadata_t meta, in bit<32> tag, in bit<32> number, in bit<8> attempt) {
    BlockCrc() block_crc;

    apply {
        block_crc.apply(meta.service.slot_key0, meta.service.slot_key1, tag, attempt[2:0] ++ number[31:3],
                        meta.hash.result);
    }
}

// The ToR block has no tag: all replicas are in the rack.
control BlockTag(in headers_t hdr, inout metadata_t meta) {
    apply { }
}

#endif

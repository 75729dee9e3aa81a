// SPDX-License-Identifier: Apache-2.0
// Hashes that choose a slot where replicas make the checks: CRC-32 of IEEE 802.3 over the words in
// this order.
#ifndef RIVULET_V1MODEL_CRC_P4
#define RIVULET_V1MODEL_CRC_P4

// `hash` adds a base of 0 and reduces the result modulo this: every result of 32 bits stays.
const bit<64> CRC_RANGE = 0x100000000;

control ClientCrc(in bit<32> k0, in bit<32> k1, in ip_address_t client, out bit<32> result) {
    apply {
        hash(result, HashAlgorithm.crc32, 32w0, { k0, k1, client }, CRC_RANGE);
    }
}

control FlowCrc(in bit<32> k0, in bit<32> k1, in ip_address_t client, in ip_address_t service, in bit<32> ports,
                out bit<32> result) {
    apply {
        hash(result, HashAlgorithm.crc32, 32w0, { k0, k1, client, service, ports }, CRC_RANGE);
    }
}

control BlockCrc(in bit<32> k0, in bit<32> k1, in bit<32> tag, in bit<32> block, out bit<32> result) {
    apply {
        hash(result, HashAlgorithm.crc32, 32w0, { k0, k1, tag, block }, CRC_RANGE);
    }
}

#endif

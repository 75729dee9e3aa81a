// SPDX-License-Identifier: Apache-2.0
// Hashes that choose a slot: CRC-32 of IEEE 802.3, by the hash unit. As v1model/crc.p4.
#ifndef RIVULET_TNA_CRC_P4
#define RIVULET_TNA_CRC_P4

control ClientCrc(in bit<32> k0, in bit<32> k1, in ip_address_t client, out bit<32> result) {
    Hash<bit<32>>(HashAlgorithm_t.CRC32) crc;
    apply {
        result = crc.get({ k0, k1, client });
    }
}

control FlowCrc(in bit<32> k0, in bit<32> k1, in ip_address_t client, in ip_address_t service, in bit<32> ports,
                out bit<32> result) {
    Hash<bit<32>>(HashAlgorithm_t.CRC32) crc;
    apply {
        result = crc.get({ k0, k1, client, service, ports });
    }
}

control BlockCrc(in bit<32> k0, in bit<32> k1, in bit<32> tag, in bit<32> block, out bit<32> result) {
    Hash<bit<32>>(HashAlgorithm_t.CRC32) crc;
    apply {
        result = crc.get({ k0, k1, tag, block });
    }
}

#endif

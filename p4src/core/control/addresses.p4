// SPDX-License-Identifier: Apache-2.0
// Whether a packet's address is the ToR's own, a service's, or any other.
#ifndef RIVULET_ADDRESSES_P4
#define RIVULET_ADDRESSES_P4

#include "../metadata.p4"

const bit<32> ADDRESS_TABLE_SIZE = 8192;

control Addresses(in headers_t hdr, inout metadata_t meta) {
    ip_address_t asked;

    @id(0x0100000b)
    action own_address() {
        meta.address.own = 1;
    }

    @id(0x0100000c)
    action service_address() {
        meta.address.service = 1;
    }

    @id(0x0100000d)
    action other_address() { }

    // The addresses that the ToR answers for.
    @id(0x02000006)
    table addresses {
        key = { asked : exact @name("address"); }
        actions = { own_address; service_address; other_address; }
        const default_action = other_address;
        size = ADDRESS_TABLE_SIZE;
    }

    apply {
        asked = meta.parsed.dst;
        if (hdr.arp.isValid()) {
            asked = IPV4_MAPPED_PREFIX ++ hdr.arp.target_ip;
        } else if (hdr.neighbour.isValid()) {
            asked = hdr.neighbour.target;
        }
        addresses.apply();
    }
}

#endif

// SPDX-License-Identifier: Apache-2.0
// Whose address a packet is about: the ToR's own, a service's, or somebody else's.
#ifndef RIVULET_ADDRESSES_P4
#define RIVULET_ADDRESSES_P4

#include "../metadata.p4"

const bit<32> ADDRESS_TABLE_SIZE = 8192;

control Addresses(in headers_t hdr, inout metadata_t meta) {
    action own_address() {
        meta.address_own = 1;
    }

    action service_address() {
        meta.address_service = 1;
    }

    action other_address() { }

    table addresses {
        key = { meta.lookup_address : exact @name("address"); }
        actions = { own_address; service_address; other_address; }
        const default_action = other_address;
        size = ADDRESS_TABLE_SIZE;
    }

    apply {
        meta.lookup_address = meta.dst;
        if (hdr.arp.isValid()) {
            meta.lookup_address = IPV4_MAPPED_PREFIX ++ hdr.arp.target_ip;
        } else if (hdr.neighbour.isValid()) {
            meta.lookup_address = hdr.neighbour.target;
        }
        addresses.apply();
    }
}

#endif

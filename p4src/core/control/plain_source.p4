// SPDX-License-Identifier: Apache-2.0
// Which replicas may send from the address of a service with TRODS. While a replica is excluded,
// others adopt its connections. Segments that it still sends, from a queue or after its machine was
// paused, would collide with the adopter's. Its lease stops most of them at the replica; this table
// drops the others.
#ifndef RIVULET_PLAIN_SOURCE_P4
#define RIVULET_PLAIN_SOURCE_P4

#include "../metadata.p4"

const bit<32> PLAIN_SOURCE_TABLE_SIZE = 8192;

// Whether a member sent this as the service: then it is forwarded only while the member is not
// excluded (liveness.p4).
control PlainSource(in headers_t hdr, inout metadata_t meta) {
    @id(0x0100003a)
    action speaks_for(pool_id_t pool, replica_id_t replica) {
        meta.bridged.pool = pool;
        meta.bridged.replica = replica;
        meta.address.of_member = 1;
    }

    @id(0x0100003b)
    action no_member() { }

    // Port and Ethernet address from which each member sends to plain clients.
    @id(0x0200001c)
    table plain_sources {
        key = {
            meta.carried.ingress_port : exact @name("ingress_port");
            hdr.ethernet.src          : exact @name("mac");
            meta.parsed.src           : exact @name("address");
            hdr.tcp.src_port          : exact @name("port");
        }
        actions = { speaks_for; @defaultonly no_member; }
        const default_action = no_member;
        size = PLAIN_SOURCE_TABLE_SIZE;
    }

    apply {
        if (hdr.tcp.isValid() && !hdr.option.isValid()) {
            plain_sources.apply();
        }
    }
}

#endif

// SPDX-License-Identifier: Apache-2.0
// Everything that is not for a service: L2 and L3 by table. And the next hops, which replicas use too.
#ifndef RIVULET_FORWARD_P4
#define RIVULET_FORWARD_P4

#include "../metadata.p4"

const bit<32> BRIDGE_TABLE_SIZE   = 16384;
const bit<32> FLOOD_TABLE_SIZE    = 4096;
const bit<32> ROUTE_TABLE_SIZE    = 16384;
const bit<32> NEXT_HOP_TABLE_SIZE = 16384;

control Forward(in headers_t hdr, inout metadata_t meta) {
    action bridge_to(port_id_t port) {
        meta.egress_port = port;
    }

    action bridge_unknown() {
        meta.is_flood = 1;
    }

    table bridges {
        key = {
            meta.vlan        : exact @name("vlan");
            hdr.ethernet.dst : exact @name("mac");
        }
        actions = { bridge_to; bridge_unknown; }
        const default_action = bridge_unknown;
        size = BRIDGE_TABLE_SIZE;
    }

    action flood(bit<16> group) {
        meta.multicast_group = group;
    }

    action no_flood() {
        meta.drop_reason = drop_reason_t.NO_BRIDGE;
    }

    // The ports of a VLAN, for what is for all or for an unknown one.
    table floods {
        key = { meta.vlan : exact @name("vlan"); }
        actions = { flood; no_flood; }
        const default_action = no_flood;
        size = FLOOD_TABLE_SIZE;
    }

    action route_to(next_hop_t next_hop) {
        meta.next_hop = next_hop;
        meta.routed = 1;
    }

    action no_route() {
        meta.drop_reason = drop_reason_t.NO_ROUTE;
    }

    table routes {
        key = { meta.dst : lpm @name("destination"); }
        actions = { route_to; no_route; }
        const default_action = no_route;
        size = ROUTE_TABLE_SIZE;
    }

    apply {
        if (hdr.ethernet.dst == meta.own_mac) {
            if (meta.address_own == 1) {
                if (meta.is_ip == 1) {
                    meta.punt = punt_reason_t.OWN_ADDRESS;
                } else {
                    meta.punt = punt_reason_t.NEIGHBOUR;
                }
            } else if (meta.is_ip == 1) {
                routes.apply();
            } else {
                meta.drop_reason = drop_reason_t.OWN_ADDRESS;
            }
        } else {
            meta.vlan_out = meta.vlan;
            bridges.apply();
            if (meta.is_flood == 1) {
                floods.apply();
            } else if (meta.egress_port == meta.ingress_port) {
                meta.drop_reason = drop_reason_t.SAME_PORT;
            }
        }
    }
}

// Port and MTU of a next hop, for routes and for replicas.
control NextHops(in headers_t hdr, inout metadata_t meta) {
    action set_next_hop(port_id_t port, bit<16> mtu) {
        meta.egress_port = port;
        meta.mtu = mtu;
    }

    action no_next_hop() {
        meta.drop_reason = drop_reason_t.NO_NEXT_HOP;
    }

    table next_hops {
        key = { meta.next_hop : exact @name("next_hop"); }
        actions = { set_next_hop; no_next_hop; }
        const default_action = no_next_hop;
        size = NEXT_HOP_TABLE_SIZE;
    }

    apply {
        if ((hdr.ipv4.isValid() && hdr.ipv4.ttl <= 1) || (hdr.ipv6.isValid() && hdr.ipv6.hop_limit <= 1)) {
            meta.drop_reason = drop_reason_t.TTL_EXPIRED;
        } else if (meta.to_copies == 0) {
            next_hops.apply();
        }
    }
}

#endif

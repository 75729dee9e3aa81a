// SPDX-License-Identifier: Apache-2.0
// Packets that are not for a service: L2 and L3 by table. Also the next hops, which the path to
// replicas shares.
#ifndef RIVULET_FORWARD_P4
#define RIVULET_FORWARD_P4

#include "../metadata.p4"
#include <state.p4>

const bit<32> BRIDGE_TABLE_SIZE   = 16384;
const bit<32> FLOOD_TABLE_SIZE    = 4096;
const bit<32> ROUTE_TABLE_SIZE    = 16384;
const bit<32> NEXT_HOP_TABLE_SIZE = 16384;

control Forward(in headers_t hdr, inout metadata_t meta) {
    AnswerCounter() answer_counter;

    @id(0x01000023)
    action bridge_to(port_id_t port) {
        meta.decided.egress_port = port;
    }

    @id(0x01000024)
    action bridge_unknown(fate_t fate) {
        meta.bridged.fate = fate;
    }

    // The port of an Ethernet address within its VLAN.
    @id(0x02000012)
    table bridges {
        key = {
            meta.bridged.vlan        : exact @name("vlan");
            hdr.ethernet.dst : exact @name("mac");
        }
        actions = { bridge_to; @defaultonly bridge_unknown; }
        const default_action = bridge_unknown(fate_t.FLOODED);
        size = BRIDGE_TABLE_SIZE;
    }

    @id(0x01000025)
    action flood(@refers_to(builtin::multicast_group_table, multicast_group_id) bit<16> group) {
        meta.decided.multicast_group = group;
    }

    @id(0x01000026)
    action no_flood(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // The ports of a VLAN, for broadcast, multicast and unknown unicast frames.
    @id(0x02000013)
    table floods {
        key = { meta.bridged.vlan : exact @name("vlan"); }
        actions = { flood; @defaultonly no_flood; }
        const default_action = no_flood(drop_reason_t.NO_BRIDGE);
        size = FLOOD_TABLE_SIZE;
    }

    @id(0x01000027)
    action route_to(@refers_to(next_hops, next_hop) next_hop_t next_hop) {
        meta.bridged.next_hop = next_hop;
        meta.bridged.routed = 1;
    }

    @id(0x01000028)
    action no_route(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // The next hop of an IP destination.
    @id(0x02000014)
    table routes {
        key = { meta.parsed.dst : lpm @name("destination"); }
        actions = { route_to; @defaultonly no_route; }
        const default_action = no_route(drop_reason_t.NO_ROUTE);
        size = ROUTE_TABLE_SIZE;
    }

    apply {
        // A port without responses belongs to a replica that gets requests but does not answer.
        if (hdr.option.isValid() && hdr.option.class[7:7] == 1) {
            answer_counter.apply(meta.carried.ingress_port);
        }
        if (hdr.ethernet.dst == meta.bridged.tor_mac) {
            if (meta.address.own == 1) {
                if (meta.parsed.is_ip == 1) {
                    meta.bridged.punt = punt_reason_t.OWN_ADDRESS;
                } else {
                    meta.bridged.punt = punt_reason_t.NEIGHBOUR;
                }
            } else if (meta.parsed.is_ip == 1) {
                routes.apply();
            } else {
                meta.decided.drop_reason = drop_reason_t.OWN_ADDRESS;
            }
        } else {
            meta.bridged.vlan_out = meta.bridged.vlan;
            bridges.apply();
            if (meta.bridged.fate == fate_t.FLOODED) {
                floods.apply();
            } else if (meta.decided.egress_port == meta.carried.ingress_port) {
                meta.decided.drop_reason = drop_reason_t.SAME_PORT;
            }
        }
    }
}

// Port and MTU of a next hop, for routes and for replicas.
control NextHops(in headers_t hdr, inout metadata_t meta) {
    @id(0x01000029)
    action set_next_hop(port_id_t port, bit<16> mtu) {
        meta.decided.egress_port = port;
        meta.bridged.mtu = mtu;
    }

    @id(0x0100002a)
    action no_next_hop(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // Port and MTU of each next hop.
    @id(0x02000015)
    table next_hops {
        key = { meta.bridged.next_hop : exact @name("next_hop"); }
        actions = { set_next_hop; @defaultonly no_next_hop; }
        const default_action = no_next_hop(drop_reason_t.NO_NEXT_HOP);
        size = NEXT_HOP_TABLE_SIZE;
    }

    apply {
        if ((hdr.ipv4.isValid() && hdr.ipv4.ttl <= 1) || (hdr.ipv6.isValid() && hdr.ipv6.hop_limit <= 1)) {
            meta.decided.drop_reason = drop_reason_t.TTL_EXPIRED;
        } else if (meta.bridged.to_copies == 0) {
            next_hops.apply();
            if (meta.bridged.path_mtu != 0 && meta.bridged.path_mtu < meta.bridged.mtu) {
                meta.bridged.mtu = meta.bridged.path_mtu;
            }
        }
    }
}

#endif

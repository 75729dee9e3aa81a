// SPDX-License-Identifier: Apache-2.0
// All rewriting of what is forwarded: the ToR's stamp, the hop limit, tunnels, MAC addresses, the VLAN tag.
#ifndef RIVULET_REWRITE_P4
#define RIVULET_REWRITE_P4

#include "../metadata.p4"
#include "answers.p4"
#include "forward.p4"
#include "replicas.p4"

const bit<32> PORT_VLAN_TABLE_SIZE = 8192;

// Overwrites the ToR block and prepares the repair of the checksum (RFC 1624: complements of what goes).
control Stamp(inout headers_t hdr, inout metadata_t meta) {
    apply {
        meta.repair_tcp = 1;
        meta.old_checksum = ~hdr.tcp.checksum;
        meta.old_block.time = ~hdr.tor_block.time;
        meta.old_block.tor_id = ~hdr.tor_block.tor_id;
        meta.old_block.exclusions = ~hdr.tor_block.exclusions;
        meta.old_block.seal_epoch = ~hdr.tor_block.seal_epoch;
        meta.old_block.nonce_epoch = ~hdr.tor_block.nonce_epoch;
        meta.old_block.flags = ~(hdr.tor_block.flags ++ hdr.tor_block.reserved);
        hdr.tor_block.time = meta.clock;
        hdr.tor_block.tor_id = meta.tor_id;
        hdr.tor_block.exclusions = meta.exclusions;
        hdr.tor_block.seal_epoch = meta.seal_epoch;
        hdr.tor_block.nonce_epoch = meta.nonce_epoch;
        hdr.tor_block.reserved = 0;
        hdr.tor_block.flags = 0;
        if (meta.time_valid == 1) {
            hdr.tor_block.flags = TOR_FLAG_TIME_VALID;
        }
        if (meta.checked == 1 && meta.is_remote == 0) {
            hdr.tor_block.flags = hdr.tor_block.flags | TOR_FLAG_CHECKED;
        }
    }
}

control Rewrite(inout headers_t hdr, inout metadata_t meta, in port_id_t port) {
    Stamp() stamp;
    ether_type_t  type;
    mac_address_t source;
    ip_protocol_t inner;
    bit<8>        tos;
    bit<16>       length;

    action to_rack(next_hop_t next_hop) {
        meta.next_hop = next_hop;
    }

    action outer_ipv4(bit<32> src, bit<32> dst, ip_protocol_t protocol, bit<16> extra) {
        hdr.outer_ipv4.setValid();
        hdr.outer_ipv4.version = 4;
        hdr.outer_ipv4.ihl = 5;
        hdr.outer_ipv4.tos = tos;
        hdr.outer_ipv4.total_length = length + IPV4_HEADER_BYTES + extra;
        hdr.outer_ipv4.identification = 0;
        hdr.outer_ipv4.reserved = 0;
        hdr.outer_ipv4.dont_fragment = 1;
        hdr.outer_ipv4.more_fragments = 0;
        hdr.outer_ipv4.fragment_offset = 0;
        hdr.outer_ipv4.ttl = HOP_LIMIT;
        hdr.outer_ipv4.protocol = protocol;
        hdr.outer_ipv4.src = src;
        hdr.outer_ipv4.dst = dst;
        type = ETHER_TYPE_IPV4;
    }

    action outer_ipv6(bit<128> src, bit<128> dst, ip_protocol_t protocol, bit<16> extra) {
        hdr.outer_ipv6.setValid();
        hdr.outer_ipv6.version = 6;
        hdr.outer_ipv6.traffic_class = tos;
        hdr.outer_ipv6.flow_label = 0;
        hdr.outer_ipv6.payload_length = length + extra;
        hdr.outer_ipv6.next_header = protocol;
        hdr.outer_ipv6.hop_limit = HOP_LIMIT;
        hdr.outer_ipv6.src = src;
        hdr.outer_ipv6.dst = dst;
        type = ETHER_TYPE_IPV6;
    }

    // The source port spreads flows over equal paths. Checksum 0: RFC 768, and RFC 6935 where the replica allows it.
    action outer_gue() {
        hdr.outer_udp.setValid();
        hdr.outer_udp.src_port = meta.pick[15:0] | 0xc000;
        hdr.outer_udp.dst_port = UDP_PORT_GUE;
        hdr.outer_udp.length = length + UDP_HEADER_BYTES + GUE_HEADER_BYTES;
        hdr.outer_udp.checksum = 0;
        hdr.gue.setValid();
        hdr.gue.variant = 0;
        hdr.gue.is_control = 0;
        hdr.gue.header_length = 0;
        hdr.gue.protocol = inner;
        hdr.gue.flags = 0;
    }

    action ip_in_ip_v4(next_hop_t next_hop, bit<32> src, bit<32> dst) {
        meta.next_hop = next_hop;
        outer_ipv4(src, dst, inner, 0);
    }

    action ip_in_ip_v6(next_hop_t next_hop, bit<128> src, bit<128> dst) {
        meta.next_hop = next_hop;
        outer_ipv6(src, dst, inner, 0);
    }

    action gue_v4(next_hop_t next_hop, bit<32> src, bit<32> dst) {
        meta.next_hop = next_hop;
        outer_ipv4(src, dst, PROTOCOL_UDP, UDP_HEADER_BYTES + GUE_HEADER_BYTES);
        outer_gue();
    }

    action gue_v6(next_hop_t next_hop, bit<128> src, bit<128> dst) {
        meta.next_hop = next_hop;
        outer_ipv6(src, dst, PROTOCOL_UDP, UDP_HEADER_BYTES + GUE_HEADER_BYTES);
        outer_gue();
    }

    action no_encapsulation() {
        meta.egress_reason = drop_reason_t.NO_ENCAPSULATION;
    }

    // How a packet gets to a replica. In egress, because each copy of a multicast has its own.
    table encapsulations {
        key = {
            meta.pool    : exact @name("pool");
            meta.replica : exact @name("replica");
        }
        actions = { to_rack; ip_in_ip_v4; ip_in_ip_v6; gue_v4; gue_v6; no_encapsulation; }
        const default_action = no_encapsulation;
        size = REPLICA_TABLE_SIZE;
    }

    action set_neighbour(mac_address_t src_mac, mac_address_t dst_mac, vlan_id_t vlan) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        meta.vlan_out = vlan;
    }

    action no_neighbour() {
        meta.egress_reason = drop_reason_t.NO_NEIGHBOUR;
    }

    table neighbours {
        key = { meta.next_hop : exact @name("next_hop"); }
        actions = { set_neighbour; no_neighbour; }
        const default_action = no_neighbour;
        size = NEXT_HOP_TABLE_SIZE;
    }

    action send_tagged() {
        meta.tag_out = 1;
    }

    action send_untagged() {
        meta.tag_out = 0;
    }

    // Exceptions to: tagged unless the VLAN is 0.
    table port_vlans {
        key = {
            port          : exact @name("egress_port");
            meta.vlan_out : exact @name("vlan");
        }
        actions = { send_tagged; send_untagged; @defaultonly NoAction; }
        const default_action = NoAction;
        size = PORT_VLAN_TABLE_SIZE;
    }

    apply {
        type = hdr.ethernet.ether_type;
        if (hdr.vlan.isValid()) {
            type = hdr.vlan.ether_type;
        }
        if (meta.stamp == 1 && hdr.tcp.isValid() && hdr.tor_block.isValid()) {
            stamp.apply(hdr, meta);
        }
        if (meta.routed == 1) {
            if (hdr.ipv4.isValid()) {
                hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
                inner = PROTOCOL_IPV4;
                tos = hdr.ipv4.tos;
                length = hdr.ipv4.total_length;
            } else {
                hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
                inner = PROTOCOL_IPV6;
                tos = hdr.ipv6.traffic_class;
                length = hdr.ipv6.payload_length + IPV6_HEADER_BYTES;
            }
            if (meta.to_replica == 1) {
                encapsulations.apply();
            }
            if (meta.egress_reason == drop_reason_t.NONE) {
                source = hdr.ethernet.src;
                neighbours.apply();
                // The mark of a second chance: it did not come from the ToR.
                if (meta.handed_on == 1 && meta.is_remote == 0) {
                    hdr.ethernet.src = source;
                }
            }
        }

        meta.tag_out = 0;
        if (meta.vlan_out != 0) {
            meta.tag_out = 1;
        }
        port_vlans.apply();
        if (meta.tag_out == 1) {
            if (!hdr.vlan.isValid()) {
                hdr.vlan.setValid();
                hdr.vlan.pcp = 0;
                hdr.vlan.dei = 0;
            }
            hdr.vlan.vid = meta.vlan_out;
            hdr.vlan.ether_type = type;
            hdr.ethernet.ether_type = ETHER_TYPE_VLAN;
        } else {
            hdr.vlan.setInvalid();
            hdr.ethernet.ether_type = type;
        }
    }
}

#endif

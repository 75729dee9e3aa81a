// SPDX-License-Identifier: Apache-2.0
// All rewriting of forwarded packets: the ToR's stamp, the hop limit, tunnels, MAC addresses, the
// VLAN tag.
#ifndef RIVULET_REWRITE_P4
#define RIVULET_REWRITE_P4

#include "../metadata.p4"
#include "answers.p4"
#include "forward.p4"
#include "replicas.p4"

const bit<32> PORT_VLAN_TABLE_SIZE = 8192;

// Overwrites the ToR block and prepares the repair of the checksum (RFC 1624: complements of the
// old fields).
control Stamp(inout headers_t hdr, in bridged_t bridged, inout written_t written) {
    apply {
        written.repair_tcp = 1;
        written.old_checksum = ~hdr.tcp.checksum;
        written.old_block.time = ~hdr.tor_block.time;
        written.old_block.tor_id = ~hdr.tor_block.tor_id;
        written.old_block.seal_epoch = ~hdr.tor_block.seal_epoch;
        written.old_block.nonce_epoch = ~hdr.tor_block.nonce_epoch;
        written.old_block.flags = ~(hdr.tor_block.flags ++ hdr.tor_block.key_epoch);
        written.old_block.tag = ~hdr.tor_block.tag;
        hdr.tor_block.time = bridged.clock;
        hdr.tor_block.tor_id = bridged.tor_id;
        hdr.tor_block.seal_epoch = bridged.seal_epoch;
        hdr.tor_block.nonce_epoch = bridged.nonce_epoch;
        hdr.tor_block.flags = bridged.flags;
        hdr.tor_block.key_epoch = bridged.key_epoch;
        hdr.tor_block.tag = bridged.tag;
    }
}

// replica: the index of the replica that gets this copy.
control Rewrite(inout headers_t hdr, in bridged_t bridged, inout written_t written, in port_id_t port,
                in replica_id_t replica) {
    Stamp() stamp;
    next_hop_t    to_hop;
    vlan_id_t     vlan_out;
    bit<1>        tag_out;  // send with an 802.1Q tag
    ether_type_t  type;
    mac_address_t source;
    ip_protocol_t inner;
    bit<8>        tos;
    bit<16>       length;

    @id(0x0100002b)
    action to_rack(@refers_to(neighbours, next_hop) next_hop_t next_hop) {
        to_hop = next_hop;
    }

    @hidden action outer_ipv4(bit<32> src, bit<32> dst, ip_protocol_t protocol, bit<16> extra) {
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

    @hidden action outer_ipv6(bit<128> src, bit<128> dst, ip_protocol_t protocol, bit<16> extra) {
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

    // The source port spreads flows over equal paths. Checksum 0: RFC 768, and RFC 6935 where the
    // replica allows it.
    @hidden action outer_gue() {
        hdr.outer_udp.setValid();
        hdr.outer_udp.src_port = bridged.entropy | 0xc000;
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

    @id(0x0100002c)
    action ip_in_ip_v4(@refers_to(neighbours, next_hop) next_hop_t next_hop, bit<32> src, bit<32> dst) {
        to_hop = next_hop;
        outer_ipv4(src, dst, inner, 0);
    }

    @id(0x0100002d)
    action ip_in_ip_v6(@refers_to(neighbours, next_hop) next_hop_t next_hop, bit<128> src, bit<128> dst) {
        to_hop = next_hop;
        outer_ipv6(src, dst, inner, 0);
    }

    @id(0x0100002e)
    action gue_v4(@refers_to(neighbours, next_hop) next_hop_t next_hop, bit<32> src, bit<32> dst) {
        to_hop = next_hop;
        outer_ipv4(src, dst, PROTOCOL_UDP, UDP_HEADER_BYTES + GUE_HEADER_BYTES);
        outer_gue();
    }

    @id(0x0100002f)
    action gue_v6(@refers_to(neighbours, next_hop) next_hop_t next_hop, bit<128> src, bit<128> dst) {
        to_hop = next_hop;
        outer_ipv6(src, dst, PROTOCOL_UDP, UDP_HEADER_BYTES + GUE_HEADER_BYTES);
        outer_gue();
    }

    @id(0x01000030)
    action no_encapsulation(drop_reason_t reason) {
        written.reason = reason;
    }

    // How a packet gets to a replica. In egress, because each copy of a multicast has its own.
    @id(0x02000016)
    table encapsulations {
        key = {
            bridged.pool : exact @name("pool");
            replica      : exact @name("replica");
        }
        actions = { to_rack; ip_in_ip_v4; ip_in_ip_v6; gue_v4; gue_v6; @defaultonly no_encapsulation; }
        const default_action = no_encapsulation(drop_reason_t.NO_ENCAPSULATION);
        size = REPLICA_TABLE_SIZE;
    }

    @id(0x01000031)
    action set_neighbour(mac_address_t src_mac, mac_address_t dst_mac, vlan_id_t vlan) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        vlan_out = vlan;
    }

    @id(0x01000032)
    action no_neighbour(drop_reason_t reason) {
        written.reason = reason;
    }

    // Ethernet addresses and VLAN towards a next hop.
    @id(0x02000017)
    table neighbours {
        key = { to_hop : exact @name("next_hop"); }
        actions = { set_neighbour; @defaultonly no_neighbour; }
        const default_action = no_neighbour(drop_reason_t.NO_NEIGHBOUR);
        size = NEXT_HOP_TABLE_SIZE;
    }

    @id(0x01000033)
    action send_tagged() {
        tag_out = 1;
    }

    @id(0x01000034)
    action send_untagged() {
        tag_out = 0;
    }

    // Exceptions to the rule that frames are tagged unless the VLAN is 0.
    @id(0x02000018)
    table port_vlans {
        key = {
            port     : exact @name("egress_port");
            vlan_out : exact @name("vlan");
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
        if (bridged.stamp == 1 && hdr.tcp.isValid() && hdr.tor_block.isValid()) {
            stamp.apply(hdr, bridged, written);
        }
        vlan_out = bridged.vlan_out;
        to_hop = bridged.next_hop;
        if (bridged.routed == 1 && !hdr.outer_icmp.isValid()) {
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
            if (bridged.to_replica == 1) {
                encapsulations.apply();
            }
            if (written.reason == drop_reason_t.NONE) {
                source = hdr.ethernet.src;
                neighbours.apply();
                // The mark of a second chance: its source address is not the ToR's.
                if (bridged.handed_on == 1 && bridged.is_remote == 0) {
                    hdr.ethernet.src = source;
                }
            }
        }

        tag_out = 0;
        if (vlan_out != 0) {
            tag_out = 1;
        }
        port_vlans.apply();
        if (tag_out == 1) {
            if (!hdr.vlan.isValid()) {
                hdr.vlan.setValid();
                hdr.vlan.pcp = 0;
                hdr.vlan.dei = 0;
            }
            hdr.vlan.vid = vlan_out;
            hdr.vlan.ether_type = type;
            hdr.ethernet.ether_type = ETHER_TYPE_VLAN;
        } else {
            hdr.vlan.setInvalid();
            hdr.ethernet.ether_type = type;
        }
    }
}

#endif

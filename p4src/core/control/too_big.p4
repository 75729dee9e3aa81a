// SPDX-License-Identifier: Apache-2.0
// Packets that exceed the MTU. TooBigChoice decides (ingress), TooBigRewrite turns the packet into
// an ICMP too-big (egress).
#ifndef RIVULET_TOO_BIG_P4
#define RIVULET_TOO_BIG_P4

#include "../metadata.p4"
#include <state.p4>
#include "answers.p4"

const bit<8>  ICMP_UNREACHABLE    = 3;
const bit<8>  ICMP_FRAG_NEEDED    = 4;
const bit<8>  ICMPV6_TOO_BIG      = 2;
// Bytes of an ICMP too-big after its IP header: ICMP header and quoted packet.
const bit<16> TOO_BIG6_TCP_BYTES  = 68;  // 8, IPv6 header 40, TCP header 20
const bit<16> TOO_BIG6_UDP_BYTES  = 56;  // 8, IPv6 header 40, UDP header 8

control TooBigChoice(in headers_t hdr, inout metadata_t meta) {
    TooBigMeter() too_big_meter;
    bit<16> length;
    bit<1>  above;

    apply {
        length = hdr.ipv4.total_length;
        if (hdr.ipv6.isValid()) {
            length = hdr.ipv6.payload_length + IPV6_HEADER_BYTES;
        }
        if ((bit<17>)length + (bit<17>)meta.bridged.overhead > (bit<17>)meta.bridged.mtu) {
            if (hdr.ipv4.isValid() && hdr.ipv4.dont_fragment == 0) {
                meta.decided.drop_reason = drop_reason_t.FRAGMENTATION_NEEDED;
            } else if (hdr.ethernet.dst[40:40] == 1
                       || !(hdr.tcp.isValid() || hdr.udp.isValid())) {
                // Multicast, fragments, ICMP errors, and packets without ports to quote.
                meta.decided.drop_reason = drop_reason_t.TOO_BIG_SILENT;
            } else {
                too_big_meter.apply(meta.carried.ingress_port, above);
                if (above == 1) {
                    meta.decided.drop_reason = drop_reason_t.TOO_BIG_METER;
                } else {
                    meta.bridged.answer = answer_t.TOO_BIG4;
                    if (hdr.ipv6.isValid()) {
                        meta.bridged.answer = answer_t.TOO_BIG6;
                    }
                    meta.decided.outcome = outcome_t.ANSWERED;
                    meta.decided.egress_port = meta.carried.ingress_port;
                    meta.bridged.vlan_out = meta.bridged.vlan;
                }
            }
        }
    }
}

control TooBigRewrite(inout headers_t hdr, in bridged_t bridged, inout written_t written) {
    apply {
        // The quote ends the packet.
        hdr.stamps.setInvalid();
        hdr.syn12.setInvalid();
        hdr.syn20.setInvalid();
        hdr.syn24.setInvalid();
        hdr.option.setInvalid();
        hdr.syn_options.setInvalid();
        hdr.tor_block.setInvalid();
        hdr.proof.setInvalid();
        hdr.continuation.setInvalid();
        hdr.entry0.setInvalid();
        hdr.entry1.setInvalid();
        hdr.entry2.setInvalid();
        hdr.entry3.setInvalid();
        hdr.heartbeat.setInvalid();
        hdr.outer_icmp.setValid();
        if (bridged.answer == answer_t.TOO_BIG4) {
            hdr.quote_l4.setValid();
            if (hdr.tcp.isValid()) {
                hdr.quote_l4.src_port = hdr.tcp.src_port;
                hdr.quote_l4.dst_port = hdr.tcp.dst_port;
                hdr.quote_l4.sequence = hdr.tcp.sequence;
            } else {
                hdr.quote_l4.src_port = hdr.udp.src_port;
                hdr.quote_l4.dst_port = hdr.udp.dst_port;
                hdr.quote_l4.sequence = hdr.udp.length ++ hdr.udp.checksum;
            }
            hdr.tcp.setInvalid();
            hdr.udp.setInvalid();
            hdr.outer_icmp.type = ICMP_UNREACHABLE;
            hdr.outer_icmp.code = ICMP_FRAG_NEEDED;
            hdr.outer_icmp.rest = 16w0 ++ (bridged.mtu - bridged.overhead);
            hdr.outer_ipv4.setValid();
            hdr.outer_ipv4.version = 4;
            hdr.outer_ipv4.ihl = 5;
            hdr.outer_ipv4.tos = 0xc0;  // RFC 1812 section 4.3.2.5: network control
            hdr.outer_ipv4.total_length = IPV4_HEADER_BYTES + ICMP_HEADER_BYTES + ((bit<16>)hdr.ipv4.ihl << 2) + 8;
            hdr.outer_ipv4.identification = 0;
            hdr.outer_ipv4.reserved = 0;
            hdr.outer_ipv4.dont_fragment = 1;
            hdr.outer_ipv4.more_fragments = 0;
            hdr.outer_ipv4.fragment_offset = 0;
            hdr.outer_ipv4.ttl = HOP_LIMIT;
            hdr.outer_ipv4.protocol = PROTOCOL_ICMP;
            hdr.outer_ipv4.src = bridged.tor_ipv4;
            hdr.outer_ipv4.dst = hdr.ipv4.src;
            written.truncate_length = hdr.outer_ipv4.total_length;
            written.fresh_too_big4 = 1;
        } else {
            hdr.outer_icmp.type = ICMPV6_TOO_BIG;
            hdr.outer_icmp.code = 0;
            hdr.outer_icmp.rest = 16w0 ++ (bridged.mtu - bridged.overhead);
            hdr.outer_ipv6.setValid();
            hdr.outer_ipv6.version = 6;
            hdr.outer_ipv6.traffic_class = 0;
            hdr.outer_ipv6.flow_label = 0;
            hdr.outer_ipv6.next_header = PROTOCOL_ICMPV6;
            hdr.outer_ipv6.hop_limit = HOP_LIMIT;
            hdr.outer_ipv6.src = bridged.tor_ipv6;
            hdr.outer_ipv6.dst = hdr.ipv6.src;
            if (hdr.tcp.isValid()) {
                hdr.outer_ipv6.payload_length = TOO_BIG6_TCP_BYTES;
                written.fresh_too_big6_tcp = 1;
            } else {
                hdr.outer_ipv6.payload_length = TOO_BIG6_UDP_BYTES;
                written.fresh_too_big6_udp = 1;
            }
            written.truncate_length = IPV6_HEADER_BYTES + hdr.outer_ipv6.payload_length;
            written.icmp6_length = 16w0 ++ hdr.outer_ipv6.payload_length;
        }
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = bridged.tor_mac;
    }
}

#endif

// SPDX-License-Identifier: Apache-2.0
// What the ToR answers itself: ARP, neighbour solicitations and echo, for its own and for service
// addresses. AnswerChoice decides (ingress), AnswerRewrite writes (egress). An answer leaves by the
// port that its request came in by.
#ifndef RIVULET_ANSWERS_P4
#define RIVULET_ANSWERS_P4

#include "../metadata.p4"

const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY   = 2;

const bit<8> ICMP_ECHO_REPLY         = 0;
const bit<8> ICMP_ECHO               = 8;
const bit<8> ICMPV6_ECHO             = 128;
const bit<8> ICMPV6_ECHO_REPLY       = 129;
const bit<8> ICMPV6_NEIGHBOUR_ADVERT = 136;
const bit<8> LINK_OPTION_TARGET      = 2;

const bit<8> HOP_LIMIT = 64;

control AnswerChoice(in headers_t hdr, inout metadata_t meta) {
    apply {
        if (meta.address.own == 1 || meta.address.service == 1) {
            if (hdr.arp.isValid()) {
                if (hdr.arp.operation == ARP_REQUEST && hdr.arp.hardware_type == 1
                    && hdr.arp.protocol_type == ETHER_TYPE_IPV4 && hdr.arp.hardware_length == 6
                    && hdr.arp.protocol_length == 4) {
                    meta.bridged.answer = answer_t.ARP;
                }
            } else if (hdr.neighbour.isValid()) {
                meta.bridged.answer = answer_t.NEIGHBOUR;
            } else if (hdr.icmp.isValid() && hdr.ethernet.dst[40:40] == 0) {
                if (hdr.ipv4.isValid() && hdr.icmp.type == ICMP_ECHO && hdr.icmp.code == 0) {
                    meta.bridged.answer = answer_t.ECHO4;
                } else if (hdr.ipv6.isValid() && hdr.icmp.type == ICMPV6_ECHO && hdr.icmp.code == 0) {
                    meta.bridged.answer = answer_t.ECHO6;
                }
            }
            if (meta.bridged.answer != answer_t.NONE) {
                meta.decided.egress_port = meta.carried.ingress_port;
                meta.bridged.vlan_out = meta.bridged.vlan;
            }
        }
    }
}

// An echo's checksum is repaired by the difference of its type alone (RFC 1141): the sum of RFC
// 1624 is wrong for a reply that is all zeros, this one is right for any.
control AnswerRewrite(inout headers_t hdr, in bridged_t bridged, inout written_t written) {
    bit<17> repaired;

    apply {
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = bridged.tor_mac;
        if (bridged.answer == answer_t.ARP) {
            bit<32> asked = hdr.arp.target_ip;
            hdr.arp.operation = ARP_REPLY;
            hdr.arp.target_mac = hdr.arp.sender_mac;
            hdr.arp.target_ip = hdr.arp.sender_ip;
            hdr.arp.sender_mac = bridged.tor_mac;
            hdr.arp.sender_ip = asked;
        } else if (bridged.answer == answer_t.NEIGHBOUR) {
            hdr.icmp.type = ICMPV6_NEIGHBOUR_ADVERT;
            hdr.icmp.rest = 0xe0000000;  // router, solicited, override
            hdr.ipv6.dst = hdr.ipv6.src;
            // Duplicate address detection has no source to answer to (RFC 4861 section 7.2.4).
            if (hdr.ipv6.src == 0) {
                hdr.icmp.rest = 0xa0000000;
                hdr.ipv6.dst = 0xff020000_00000000_00000000_00000001;
                hdr.ethernet.dst = 0x333300000001;
            }
            hdr.ipv6.src = hdr.neighbour.target;
            hdr.ipv6.payload_length = 32;
            hdr.ipv6.hop_limit = 255;
            hdr.link_option.setValid();
            hdr.link_option.type = LINK_OPTION_TARGET;
            hdr.link_option.length = 1;
            hdr.link_option.mac = bridged.tor_mac;
            written.fresh_neighbour = 1;
            written.icmp6_length = 32;
        } else if (bridged.answer == answer_t.ECHO4) {
            bit<32> asked = hdr.ipv4.dst;
            hdr.ipv4.dst = hdr.ipv4.src;
            hdr.ipv4.src = asked;
            hdr.ipv4.ttl = HOP_LIMIT;
            hdr.icmp.type = ICMP_ECHO_REPLY;
            repaired = (bit<17>)hdr.icmp.checksum + 0x0800;
            hdr.icmp.checksum = repaired[15:0] + (15w0 ++ repaired[16:16]);
        } else if (bridged.answer == answer_t.ECHO6) {
            bit<128> asked = hdr.ipv6.dst;
            hdr.ipv6.dst = hdr.ipv6.src;
            hdr.ipv6.src = asked;
            hdr.ipv6.hop_limit = HOP_LIMIT;
            hdr.icmp.type = ICMPV6_ECHO_REPLY;
            repaired = (bit<17>)hdr.icmp.checksum + 0xfeff;
            hdr.icmp.checksum = repaired[15:0] + (15w0 ++ repaired[16:16]);
        }
    }
}

#endif

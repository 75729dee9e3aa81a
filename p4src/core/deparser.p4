// SPDX-License-Identifier: Apache-2.0
// Valid headers in the order of headers_t.
#ifndef RIVULET_DEPARSER_P4
#define RIVULET_DEPARSER_P4

#include "headers.p4"

control PacketDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.vlan);
        packet.emit(hdr.arp);
        packet.emit(hdr.outer_ipv4);
        packet.emit(hdr.outer_ipv6);
        packet.emit(hdr.outer_udp);
        packet.emit(hdr.gue);
        packet.emit(hdr.outer_icmp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv4_options);
        packet.emit(hdr.ipv6);
        packet.emit(hdr.udp);
        packet.emit(hdr.icmp);
        packet.emit(hdr.neighbour);
        packet.emit(hdr.link_option);
        packet.emit(hdr.quoted_ipv4);
        packet.emit(hdr.quoted_ipv4_options);
        packet.emit(hdr.quoted_ipv6);
        packet.emit(hdr.quote_l4);
        packet.emit(hdr.tcp);
        packet.emit(hdr.stamps);
        packet.emit(hdr.syn12);
        packet.emit(hdr.syn20);
        packet.emit(hdr.syn24);
        packet.emit(hdr.option);
        packet.emit(hdr.syn_options);
        packet.emit(hdr.tor_block);
        packet.emit(hdr.proof);
        packet.emit(hdr.continuation);
        packet.emit(hdr.entry0);
        packet.emit(hdr.entry1);
        packet.emit(hdr.entry2);
        packet.emit(hdr.entry3);
        packet.emit(hdr.heartbeat);
        packet.emit(hdr.live_sets);
        packet.emit(hdr.heartbeat_tag);
    }
}

#endif

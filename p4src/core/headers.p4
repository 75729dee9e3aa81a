// SPDX-License-Identifier: Apache-2.0
// Headers in the order of a packet.
#ifndef RIVULET_HEADERS_P4
#define RIVULET_HEADERS_P4

#include "types.p4"

@controller_header("packet_out")
header packet_out_h {
    bit<16> egress_port;
}

@controller_header("packet_in")
header packet_in_h {
    bit<16> ingress_port;
    bit<16> vlan;
    bit<8>  reason;  // punt_reason_t
}

header ethernet_h {
    mac_address_t dst;
    mac_address_t src;
    ether_type_t  ether_type;
}

// IEEE 802.1Q.
header vlan_h {
    bit<3>       pcp;
    bit<1>       dei;
    vlan_id_t    vid;
    ether_type_t ether_type;
}

// RFC 826 for Ethernet and IPv4.
header arp_h {
    bit<16>       hardware_type;
    bit<16>       protocol_type;
    bit<8>        hardware_length;
    bit<8>        protocol_length;
    bit<16>       operation;
    mac_address_t sender_mac;
    bit<32>       sender_ip;
    mac_address_t target_mac;
    bit<32>       target_ip;
}

// RFC 791.
header ipv4_h {
    bit<4>        version;
    bit<4>        ihl;
    bit<8>        tos;
    bit<16>       total_length;
    bit<16>       identification;
    bit<1>        reserved;
    bit<1>        dont_fragment;
    bit<1>        more_fragments;
    bit<13>       fragment_offset;
    bit<8>        ttl;
    ip_protocol_t protocol;
    bit<16>       checksum;
    bit<32>       src;
    bit<32>       dst;
}

header ipv4_options_h {
    varbit<320> options;
}

// RFC 8200.
header ipv6_h {
    bit<4>        version;
    bit<8>        traffic_class;
    bit<20>       flow_label;
    bit<16>       payload_length;
    ip_protocol_t next_header;
    bit<8>        hop_limit;
    bit<128>      src;
    bit<128>      dst;
}

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// Generic UDP Encapsulation, variant 0, no extensions.
header gue_h {
    bit<2>        variant;
    bit<1>        is_control;
    bit<5>        header_length;
    ip_protocol_t protocol;
    bit<16>       flags;
}

// RFC 792 and RFC 4443; `rest` is the identifier and sequence number of an echo, the MTU of a
// too-big.
header icmp_h {
    bit<8>  type;
    bit<8>  code;
    bit<16> checksum;
    bit<32> rest;
}

// Body of a neighbour solicitation or advertisement behind icmp_h (RFC 4861 sections 4.3, 4.4).
header neighbour_h {
    bit<128> target;
}

// Source or target link-layer address (RFC 4861 section 4.6.1).
header link_option_h {
    bit<8>        type;
    bit<8>        length;
    mac_address_t mac;
}

// The first eight bytes behind a quoted IP header: ports and sequence number of TCP.
header quote_l4_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<32> sequence;
}

// RFC 9293.
header tcp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<32> sequence;
    bit<32> acknowledgement;
    bit<4>  data_offset;
    bit<4>  reserved;
    bit<8>  flags;
    bit<16> window;
    bit<16> checksum;
    bit<16> urgent;
}

// Timestamps where common stacks put them, first of the options of a plain segment (RFC 7323).
header stamps_h {
    bit<32> lead;  // STAMPS_LEAD
    bit<32> value;
    bit<32> echo;
}

// All options of a plain SYN of a known layout (syn_layout_t), by their length.
header syn12_h {
    bit<96> options;
}

header syn20_h {
    bit<160> options;
}

header syn24_h {
    bit<192> options;
}

// The Rivulet option, first of the TCP options (docs/wire-format.md, as all that follows).
header option_h {
    bit<8>  kind;
    bit<8>  length;
    bit<16> exid;
    bit<8>  class;
    bit<4>  version;
    bit<4>  flags;
    bit<16> number_low;
}

// The one block of ordinary options behind ours in a SYN; carried, never read.
header syn_options_h {
    bit<160> block;
}

// Fields that the ToR overwrites; outside every MAC.
header tor_block_h {
    bit<48>     time;
    bit<16>     tor_id;
    bit<16>     seal_epoch;
    bit<16>     nonce_epoch;
    bit<8>      flags;
    key_epoch_t key_epoch;
    bit<32>     tag;  // for a replica beyond the rack
}

header proof_h {
    bit<8>  range_count;
    bit<8>  attempt;
    bit<32> range_kinds;
}

// Sealed head of the continuation.
header continuation_h {
    bit<32> tag;
    bit<32> number;
    bit<32> base;
    bit<48> time;
    epoch_t nonce_epoch;
}

header entry_h {
    bit<16> first;
    bit<16> last;
    bit<32> sum;
}

// A heartbeat, and the answer to it.
header heartbeat_h {
    bit<8>      version;
    bit<8>      flags;
    bit<16>     pool;
    bit<8>      replica;
    key_epoch_t key_epoch;
    bit<16>     load;  // in an answer: the ToR's id
    bit<32>     incarnation;
    bit<32>     sequence;
}

// Of an answer: the live members, and those of them that take plain TCP.
header live_sets_h {
    member_set_t alive;
    member_set_t plain;
}

header heartbeat_tag_h {
    bit<32> tag;
}

struct headers_t {
    packet_in_h    packet_in;
    packet_out_h   packet_out;
    ethernet_h     ethernet;
    vlan_h         vlan;
    arp_h          arp;
    // Written in egress: the outer headers of a tunnel, or of an ICMP too-big.
    ipv4_h         outer_ipv4;
    ipv6_h         outer_ipv6;
    udp_h          outer_udp;
    gue_h          gue;
    icmp_h         outer_icmp;
    ipv4_h         ipv4;
    ipv4_options_h ipv4_options;
    ipv6_h         ipv6;
    udp_h          udp;
    icmp_h         icmp;
    neighbour_h    neighbour;
    link_option_h  link_option;
    // The packet that an ICMP error quotes.
    ipv4_h         quoted_ipv4;
    ipv4_options_h quoted_ipv4_options;
    ipv6_h         quoted_ipv6;
    quote_l4_h     quote_l4;
    tcp_h          tcp;
    stamps_h       stamps;
    syn12_h        syn12;
    syn20_h        syn20;
    syn24_h        syn24;
    option_h       option;
    syn_options_h  syn_options;
    tor_block_h    tor_block;
    proof_h        proof;
    continuation_h continuation;
    entry_h        entry0;
    entry_h        entry1;
    entry_h        entry2;
    entry_h        entry3;
    heartbeat_h    heartbeat;
    live_sets_h    live_sets;
    heartbeat_tag_h heartbeat_tag;
}

#endif

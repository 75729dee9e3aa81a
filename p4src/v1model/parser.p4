// SPDX-License-Identifier: Apache-2.0
// From the Ethernet header to the fourth range of a proof. Each requirement has its error, which
// ParseReason maps to the drop reason. (A reason in metadata, set before each verify(), does not
// survive: p4c takes all but the last assignment of a state for dead.) All parsed headers lie in
// the first 160 bytes.
#ifndef RIVULET_V1MODEL_PARSER_P4
#define RIVULET_V1MODEL_PARSER_P4

#include "../core/metadata.p4"
#include "syn_parser.p4"

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta) {
    SynParser() syn_parser;

    state start {
        packet.extract(hdr.ethernet);
        meta.parsed.l2_length = 14;
        transition select(hdr.ethernet.ether_type) {
            ETHER_TYPE_VLAN:      parse_vlan;
            ETHER_TYPE_QINQ:      stacked;
            ETHER_TYPE_ARP:       parse_arp;
            ETHER_TYPE_IPV4:      parse_ipv4;
            ETHER_TYPE_IPV6:      parse_ipv6;
            ETHER_TYPE_HEARTBEAT: parse_heartbeat;
            default:              accept;
        }
    }

    state parse_vlan {
        packet.extract(hdr.vlan);
        meta.parsed.l2_length = 18;
        transition select(hdr.vlan.ether_type) {
            ETHER_TYPE_VLAN:      stacked;
            ETHER_TYPE_QINQ:      stacked;
            ETHER_TYPE_ARP:       parse_arp;
            ETHER_TYPE_IPV4:      parse_ipv4;
            ETHER_TYPE_IPV6:      parse_ipv6;
            ETHER_TYPE_HEARTBEAT: parse_heartbeat;
            default:              accept;
        }
    }

    // A service packet must not bypass the checks behind a second tag.
    state stacked {
        verify(false, error.VlanStacked);
        transition accept;
    }

    state parse_arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    state parse_heartbeat {
        packet.extract(hdr.heartbeat);
        packet.extract(hdr.heartbeat_tag);
        verify(hdr.heartbeat.version == HEARTBEAT_VERSION && (hdr.heartbeat.flags & ~HEARTBEAT_FLAG_READY) == 0
               && hdr.heartbeat.replica < 64, error.HeartbeatForm);
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.version == 4 && hdr.ipv4.ihl >= 5, error.Ipv4Header);
        verify(hdr.ipv4.total_length >= ((bit<16>)hdr.ipv4.ihl << 2), error.Ipv4Header);
        verify(meta.parsed.frame_length - meta.parsed.l2_length >= hdr.ipv4.total_length, error.IpTruncated);
        meta.parsed.is_ip = 1;
        meta.parsed.src = IPV4_MAPPED_PREFIX ++ hdr.ipv4.src;
        meta.parsed.dst = IPV4_MAPPED_PREFIX ++ hdr.ipv4.dst;
        meta.parsed.l4_length = hdr.ipv4.total_length - ((bit<16>)hdr.ipv4.ihl << 2);
        transition select(hdr.ipv4.ihl) {
            5:       parse_ipv4_payload;
            default: parse_ipv4_options;
        }
    }

    state parse_ipv4_options {
        packet.extract(hdr.ipv4_options, ((bit<32>)hdr.ipv4.ihl - 5) << 5);
        transition parse_ipv4_payload;
    }

    state parse_ipv4_payload {
        transition select(hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (0, 0, PROTOCOL_TCP):  parse_tcp;
            (0, 0, PROTOCOL_UDP):  parse_udp;
            (0, 0, PROTOCOL_ICMP): parse_icmp;
            (0, 0, _):             accept;
            default:               fragment;
        }
    }

    state fragment {
        meta.parsed.is_fragment = 1;
        transition accept;
    }

    state parse_ipv6 {
        packet.extract(hdr.ipv6);
        verify(hdr.ipv6.version == 6, error.Ipv6Header);
        verify(meta.parsed.frame_length - meta.parsed.l2_length - IPV6_HEADER_BYTES >= hdr.ipv6.payload_length,
               error.IpTruncated);
        meta.parsed.is_ip = 1;
        meta.parsed.src = hdr.ipv6.src;
        meta.parsed.dst = hdr.ipv6.dst;
        meta.parsed.l4_length = hdr.ipv6.payload_length;
        transition select(hdr.ipv6.next_header) {
            PROTOCOL_TCP:         parse_tcp;
            PROTOCOL_UDP:         parse_udp;
            PROTOCOL_ICMPV6:      parse_icmpv6;
            PROTOCOL_FRAGMENT:    fragment;
            PROTOCOL_HOP_BY_HOP:  extension;
            PROTOCOL_ROUTING:     extension;
            PROTOCOL_DESTINATION: extension;
            PROTOCOL_ESP:         extension;
            PROTOCOL_AH:          extension;
            PROTOCOL_MOBILITY:    extension;
            PROTOCOL_HIP:         extension;
            PROTOCOL_SHIM6:       extension;
            default:              accept;
        }
    }

    state extension {
        meta.parsed.has_extension = 1;
        transition accept;
    }

    // ---- ICMP ----

    state parse_icmp {
        packet.extract(hdr.icmp);
        verify(meta.parsed.l4_length >= ICMP_HEADER_BYTES, error.IpTruncated);
        transition select(hdr.icmp.type) {
            3:       look_quoted_ipv4;
            11:      look_quoted_ipv4;
            12:      look_quoted_ipv4;
            default: accept;
        }
    }

    // A quote too short to identify a connection is forwarded as any packet: it may be another
    // host's.
    state look_quoted_ipv4 {
        transition select(meta.parsed.l4_length >= ICMP_HEADER_BYTES + IPV4_HEADER_BYTES + 8) {
            true:  parse_quoted_ipv4;
            false: accept;
        }
    }

    state parse_quoted_ipv4 {
        packet.extract(hdr.quoted_ipv4);
        transition select(hdr.quoted_ipv4.version, hdr.quoted_ipv4.ihl,
                          hdr.quoted_ipv4.fragment_offset, hdr.quoted_ipv4.protocol) {
            (4, 5, 0, PROTOCOL_TCP):       parse_quote_l4;
            (4, 0 &&& 12, 0, _):           accept;
            (4, 4, 0, _):                  accept;
            (4, _, 0, PROTOCOL_TCP):       look_quoted_ipv4_options;
            default:                       accept;
        }
    }

    state look_quoted_ipv4_options {
        transition select(meta.parsed.l4_length >= ICMP_HEADER_BYTES + ((bit<16>)hdr.quoted_ipv4.ihl << 2) + 8) {
            true:  parse_quoted_ipv4_options;
            false: accept;
        }
    }

    state parse_quoted_ipv4_options {
        packet.extract(hdr.quoted_ipv4_options, ((bit<32>)hdr.quoted_ipv4.ihl - 5) << 5);
        transition parse_quote_l4;
    }

    state parse_quote_l4 {
        packet.extract(hdr.quote_l4);
        meta.parsed.quote = quote_t.SHORT;
        // The option's place: bytes 20 to 23 of the quoted TCP header, 12 bytes after the extracted
        // fields.
        transition select(meta.parsed.l4_length >= ICMP_HEADER_BYTES + ((bit<16>)hdr.quoted_ipv4.ihl << 2) + 24) {
            true:  look_quoted_option;
            false: accept;
        }
    }

    state look_quoted_option {
        meta.parsed.quote = quote_t.PLAIN;
        transition select(packet.lookahead<bit<128>>()[31:0]) {
            OPTION_LEAD &&& OPTION_LEAD_ANY_LENGTH: quoted_rivulet;
            default:                   accept;
        }
    }

    state quoted_rivulet {
        meta.parsed.quote = quote_t.RIVULET;
        transition accept;
    }

    state parse_icmpv6 {
        packet.extract(hdr.icmp);
        verify(meta.parsed.l4_length >= ICMP_HEADER_BYTES, error.IpTruncated);
        transition select(hdr.icmp.type) {
            1:       look_quoted_ipv6;
            2:       look_quoted_ipv6;
            3:       look_quoted_ipv6;
            4:       look_quoted_ipv6;
            135:     check_solicitation;
            default: accept;
        }
    }

    state look_quoted_ipv6 {
        transition select(meta.parsed.l4_length >= ICMP_HEADER_BYTES + IPV6_HEADER_BYTES + 8) {
            true:  parse_quoted_ipv6;
            false: accept;
        }
    }

    state parse_quoted_ipv6 {
        packet.extract(hdr.quoted_ipv6);
        transition select(hdr.quoted_ipv6.version, hdr.quoted_ipv6.next_header) {
            (6, PROTOCOL_TCP): parse_quote_l4_v6;
            default:           accept;
        }
    }

    state parse_quote_l4_v6 {
        packet.extract(hdr.quote_l4);
        meta.parsed.quote = quote_t.SHORT;
        transition select(meta.parsed.l4_length >= ICMP_HEADER_BYTES + IPV6_HEADER_BYTES + 24) {
            true:  look_quoted_option;
            false: accept;
        }
    }

    // RFC 4861 section 7.1.1.
    state check_solicitation {
        verify(hdr.ipv6.hop_limit == 255 && hdr.icmp.code == 0 && meta.parsed.l4_length >= 24, error.NeighbourForm);
        transition select(meta.parsed.l4_length) {
            24:      parse_solicitation;
            32:      parse_solicitation_option;
            default: accept;
        }
    }

    state parse_solicitation {
        packet.extract(hdr.neighbour);
        transition accept;
    }

    state parse_solicitation_option {
        packet.extract(hdr.neighbour);
        packet.extract(hdr.link_option);
        verify(hdr.link_option.length == 1, error.NeighbourForm);
        transition accept;
    }

    // ---- UDP: only heartbeats from outside ----

    state parse_udp {
        packet.extract(hdr.udp);
        verify(hdr.udp.length >= UDP_HEADER_BYTES && hdr.udp.length <= meta.parsed.l4_length, error.UdpHeader);
        transition select(hdr.udp.dst_port, hdr.udp.length) {
            (UDP_PORT_HEARTBEAT, UDP_HEADER_BYTES + HEARTBEAT_BYTES): parse_remote_heartbeat;
            default:                  accept;
        }
    }

    // Whether it is for this ToR is known later, so its form is checked there.
    state parse_remote_heartbeat {
        packet.extract(hdr.heartbeat);
        packet.extract(hdr.heartbeat_tag);
        transition accept;
    }

    // ---- TCP and the Rivulet option ----

    state parse_tcp {
        packet.extract(hdr.tcp);
        verify(hdr.tcp.data_offset >= 5 && meta.parsed.l4_length >= ((bit<16>)hdr.tcp.data_offset << 2),
               error.TcpHeader);
        meta.parsed.payload_length = meta.parsed.l4_length - ((bit<16>)hdr.tcp.data_offset << 2);
        transition select(hdr.tcp.data_offset) {
            5:       accept;
            default: look_option;
        }
    }

    // Options are not walked. Ours first, with the data offset of its kind of segment, is a Rivulet
    // packet; ours elsewhere is plain TCP on a SYN and malformed otherwise, seen behind up to four
    // NOPs and behind the aligned timestamps that common stacks put first.
    state look_option {
        transition select(packet.lookahead<bit<32>>(), hdr.tcp.data_offset, hdr.tcp.flags) {
            (OPTION_LEAD, DATA_OFFSET_SEGMENT, 0 &&& TCP_SYN):   parse_option;
            (OPTION_LEAD, DATA_OFFSET_SYN, TCP_SYN &&& TCP_SYN): parse_option_syn;
            (_, _, TCP_SYN &&& TCP_SYN):                        parse_plain_syn;
            (STAMPS_LEAD, 8 &&& 8, _):                          parse_stamps;
            (OPTION_LEAD &&& OPTION_LEAD_ANY_LENGTH, _, _):                  misplaced_option;
            (0x01000000 &&& 0xff000000, 7 &&& 7, _):            look_behind_padding;
            (0x01000000 &&& 0xff000000, 8 &&& 8, _):            look_behind_padding;
            default:                                            accept;
        }
    }

    state look_behind_padding {
        transition select(packet.lookahead<bit<64>>(), hdr.tcp.data_offset) {
            (0x01fd005256000000 &&& 0xffff00ffff000000, _): misplaced_option;
            (0x0101fd0052560000 &&& 0xffffff00ffff0000, _): misplaced_option;
            (0x010101fd00525600 &&& 0xffffffff00ffff00, _): misplaced_option;
            (0x01010101fd005256 &&& 0xffffffffff00ffff, _): misplaced_option;
            default:                                         accept;
        }
    }

    // A stateless service identifies the connection by them.
    state parse_stamps {
        packet.extract(hdr.stamps);
        transition select(hdr.tcp.data_offset) {
            8:       accept;
            9:       accept;
            default: look_behind_stamps;
        }
    }

    state look_behind_stamps {
        transition select(packet.lookahead<bit<32>>()) {
            OPTION_LEAD &&& OPTION_LEAD_ANY_LENGTH: misplaced_option;
            default:                   accept;
        }
    }

    state parse_plain_syn {
        syn_parser.apply(packet, hdr.tcp.data_offset, hdr.syn12, hdr.syn20, hdr.syn24, meta.parsed.syn_layout);
        transition accept;
    }

    state misplaced_option {
        verify(false, error.OptionForm);
        transition accept;
    }

    state parse_option {
        packet.extract(hdr.option);
        verify(hdr.option.version == OPTION_VERSION && hdr.option.flags == 0, error.OptionVersion);
        transition select(hdr.option.class) {
            0x80 &&& 0x80: accept;  // a response: only the client checks it
            default:       check_request;
        }
    }

    state check_request {
        verify(hdr.option.class <= CLASS_CLOSE, error.ClassUnknown);
        verify(hdr.option.class != CLASS_SYN, error.ClassFlags);
        verify((hdr.tcp.flags & (TCP_RST | TCP_ACK | TCP_URG)) == TCP_ACK, error.ClassFlags);
        verify(((hdr.tcp.flags & TCP_FIN) == 0) == (hdr.option.class != CLASS_CLOSE), error.ClassFlags);
        verify(meta.parsed.payload_length >= REQUEST_FIXED_BYTES, error.RequestLength);
        packet.extract(hdr.tor_block);
        packet.extract(hdr.proof);
        packet.extract(hdr.continuation);
        verify(hdr.proof.range_count <= RANGE_COUNT_MAX, error.EntryCount);
        verify(hdr.option.class != CLASS_RESTART || hdr.proof.range_count == 0, error.EntryCount);
        verify(hdr.proof.attempt == 0 || (hdr.proof.attempt <= ATTEMPT_MAX && hdr.option.class != CLASS_NORMAL),
               error.Attempt);
        verify(meta.parsed.payload_length >= REQUEST_FIXED_BYTES + ((bit<16>)hdr.proof.range_count << 3),
               error.RequestLength);
        verify(hdr.option.number_low == hdr.continuation.number[15:0], error.NumberLow);
        transition select(hdr.proof.range_count) {
            0:       check_kinds;
            default: parse_entry0;
        }
    }

    state parse_entry0 {
        packet.extract(hdr.entry0);
        transition select(hdr.proof.range_count) {
            1:       check_kinds;
            default: parse_entry1;
        }
    }

    state parse_entry1 {
        packet.extract(hdr.entry1);
        transition select(hdr.proof.range_count) {
            2:       check_kinds;
            default: parse_entry2;
        }
    }

    state parse_entry2 {
        packet.extract(hdr.entry2);
        transition select(hdr.proof.range_count) {
            3:       check_kinds;
            default: parse_entry3;
        }
    }

    state parse_entry3 {
        packet.extract(hdr.entry3);
        transition check_kinds;
    }

    // Kinds of absent entries are 0, and no range (high bit 0) stands behind a mark or an excuse
    // (high bit 1): among the used entries the high bits are zeros, then ones.
    state check_kinds {
        verify(hdr.proof.range_kinds << ((bit<8>)hdr.proof.range_count << 1) == 0, error.EntryKinds);
        verify((((hdr.proof.range_kinds & 0xaaaaaaaa) >> 2) & ~hdr.proof.range_kinds & 0xaaaaaaaa
                & ~(32w0xffffffff >> ((bit<8>)hdr.proof.range_count << 1))) == 0, error.EntryKinds);
        transition accept;
    }

    state parse_option_syn {
        packet.extract(hdr.option);
        packet.extract(hdr.syn_options);
        verify(hdr.option.version == OPTION_VERSION && hdr.option.flags == 0, error.OptionVersion);
        transition select(hdr.option.class) {
            0x80 &&& 0x80: accept;
            default:       check_opening;
        }
    }

    state check_opening {
        verify(hdr.option.class <= CLASS_CLOSE, error.ClassUnknown);
        verify(hdr.option.class == CLASS_SYN, error.ClassFlags);
        verify((hdr.tcp.flags & (TCP_FIN | TCP_RST | TCP_ACK | TCP_URG)) == 0, error.ClassFlags);
        verify(hdr.option.number_low == 0, error.NumberLow);
        transition select(meta.parsed.payload_length) {
            0:       accept;  // bare, for paths that drop SYNs with data
            default: parse_opening;
        }
    }

    state parse_opening {
        verify(meta.parsed.payload_length >= REQUEST_SYN_BYTES, error.RequestLength);
        packet.extract(hdr.tor_block);
        packet.extract(hdr.proof);
        verify(hdr.proof.range_count == 0, error.EntryCount);
        verify(hdr.proof.attempt == 0, error.Attempt);
        transition check_kinds;
    }
}

// The drop reason of a parser error.
control ParseReason(in error parse_error, out drop_reason_t reason) {
    apply {
        reason = drop_reason_t.NONE;
        if (parse_error != error.NoError) {
            reason = drop_reason_t.TRUNCATED;
            if (parse_error == error.VlanStacked) { reason = drop_reason_t.VLAN_STACKED; }
            if (parse_error == error.HeartbeatForm) { reason = drop_reason_t.HEARTBEAT_FORM; }
            if (parse_error == error.Ipv4Header) { reason = drop_reason_t.IPV4_HEADER; }
            if (parse_error == error.Ipv6Header) { reason = drop_reason_t.IPV6_HEADER; }
            if (parse_error == error.NeighbourForm) { reason = drop_reason_t.NEIGHBOUR_FORM; }
            if (parse_error == error.UdpHeader) { reason = drop_reason_t.UDP_HEADER; }
            if (parse_error == error.TcpHeader) { reason = drop_reason_t.TCP_HEADER; }
            if (parse_error == error.OptionForm) { reason = drop_reason_t.OPTION_FORM; }
            if (parse_error == error.OptionVersion) { reason = drop_reason_t.OPTION_VERSION; }
            if (parse_error == error.ClassUnknown) { reason = drop_reason_t.CLASS_UNKNOWN; }
            if (parse_error == error.ClassFlags) { reason = drop_reason_t.CLASS_FLAGS; }
            if (parse_error == error.RequestLength) { reason = drop_reason_t.REQUEST_LENGTH; }
            if (parse_error == error.EntryCount) { reason = drop_reason_t.ENTRY_COUNT; }
            if (parse_error == error.Attempt) { reason = drop_reason_t.ATTEMPT; }
            if (parse_error == error.NumberLow) { reason = drop_reason_t.NUMBER_LOW; }
            if (parse_error == error.EntryKinds) { reason = drop_reason_t.ENTRY_KINDS; }
        }
    }
}

#endif

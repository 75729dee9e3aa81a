// SPDX-License-Identifier: Apache-2.0
// The parser for Tofino. It accepts what v1model/parser.p4 accepts of requests, plain TCP and
// heartbeats of the rack. It has no `verify`: a packet of another form gets a drop reason here, or
// leaves headers invalid, and ingress drops it. Not parsed: IPv4 options and ICMP, which have no replica.
#ifndef RIVULET_TNA_PARSER_P4
#define RIVULET_TNA_PARSER_P4

#include "../core/metadata.p4"

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta) {
    Checksum() tcp_checksum;
    Checksum() ipv4_checksum;

    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHER_TYPE_VLAN:      parse_vlan;
            ETHER_TYPE_QINQ:      stacked;
            ETHER_TYPE_IPV4:      parse_ipv4;
            ETHER_TYPE_IPV6:      parse_ipv6;
            ETHER_TYPE_HEARTBEAT: parse_heartbeat;
            default:              accept;
        }
    }

    state parse_vlan {
        packet.extract(hdr.vlan);
        transition select(hdr.vlan.ether_type) {
            ETHER_TYPE_VLAN:      stacked;
            ETHER_TYPE_QINQ:      stacked;
            ETHER_TYPE_IPV4:      parse_ipv4;
            ETHER_TYPE_IPV6:      parse_ipv6;
            ETHER_TYPE_HEARTBEAT: parse_heartbeat;
            default:              accept;
        }
    }

    state stacked {
        meta.parsed.reason = drop_reason_t.VLAN_STACKED;
        transition accept;
    }

    state parse_heartbeat {
        packet.extract(hdr.heartbeat);
        packet.extract(hdr.heartbeat_tag);
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.parsed.is_ip = 1;
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
                          hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_TCP): parse_tcp;
            (4, 5, _, _, _):            accept;
            default:                    other_ipv4;
        }
    }

    state other_ipv4 {
        meta.parsed.reason = drop_reason_t.IPV4_HEADER;
        transition accept;
    }

    state parse_ipv6 {
        packet.extract(hdr.ipv6);
        meta.parsed.is_ip = 1;
        transition select(hdr.ipv6.version, hdr.ipv6.next_header) {
            (6, PROTOCOL_TCP): parse_tcp;
            (6, _):            accept;
            default:           other_ipv6;
        }
    }

    state other_ipv6 {
        meta.parsed.reason = drop_reason_t.IPV6_HEADER;
        transition accept;
    }

    // The sum of what is not rewritten: the old checksum and the old ToR block are taken out here,
    // and the deparser adds the new block (RFC 1624).
    state parse_tcp {
        packet.extract(hdr.tcp);
        tcp_checksum.subtract({ hdr.tcp.checksum });
        transition select(hdr.tcp.data_offset, hdr.tcp.flags) {
            (DATA_OFFSET_SEGMENT, TCP_SYN &&& TCP_SYN): accept;
            (DATA_OFFSET_SEGMENT, _):                   look_for_option;
            (8, TCP_SYN &&& TCP_SYN):                   accept;
            (8, _):                                     look_for_stamps;
            (DATA_OFFSET_SYN, TCP_SYN &&& TCP_SYN):     look_for_option;
            default:                                    accept;
        }
    }

    state look_for_stamps {
        transition select(packet.lookahead<bit<32>>()) {
            STAMPS_LEAD: parse_stamps;
            default:     accept;
        }
    }

    state parse_stamps {
        packet.extract(hdr.stamps);
        transition accept;
    }

    state look_for_option {
        transition select(packet.lookahead<bit<32>>()) {
            OPTION_LEAD: parse_option;
            default:     accept;
        }
    }

    state parse_option {
        packet.extract(hdr.option);
        transition select(hdr.option.version, hdr.option.class) {
            (OPTION_VERSION, CLASS_SYN):            parse_syn_options;
            (OPTION_VERSION, 0x80 &&& 0x80):        accept;
            (OPTION_VERSION, _):                    parse_request;
            default:                                other_option;
        }
    }

    state other_option {
        meta.parsed.reason = drop_reason_t.OPTION_VERSION;
        transition accept;
    }

    // A bare SYN has no ToR block: its IP length tells, which ingress compares.
    state parse_syn_options {
        packet.extract(hdr.syn_options);
        transition accept;
    }

    state parse_request {
        packet.extract(hdr.tor_block);
        tcp_checksum.subtract({ hdr.tor_block });
        tcp_checksum.subtract_all_and_deposit(meta.written.old_checksum);
        packet.extract(hdr.proof);
        packet.extract(hdr.continuation);
        transition accept;
    }
}

#endif

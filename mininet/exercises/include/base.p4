// SPDX-License-Identifier: Apache-2.0
// What the exercises share: Ethernet, IPv4 and TCP ports, parser and checksum. A program defines
// metadata_t before it includes this file.
#ifndef EXERCISE_BASE_P4
#define EXERCISE_BASE_P4

const bit<16> TYPE_IPV4 = 0x0800;
const bit<16> TYPE_HEARTBEAT = 0x88b5;
const bit<16> TYPE_RANGE = 0x88b6;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> length;
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header tcp_ports_t {
    bit<16> src;
    bit<16> dst;
}

// A replica sends this to show that it is alive.
header heartbeat_t {
    bit<8> replica;
}

// A data packet with the number `first`, or a request that acknowledges the packets from `first` to
// before `last`.
header range_t {
    bit<8>  kind;
    bit<32> tag;
    bit<32> first;
    bit<32> last;
    bit<32> nonce;
}

struct headers_t {
    ethernet_t  ethernet;
    heartbeat_t heartbeat;
    range_t     range;
    ipv4_t      ipv4;
    tcp_ports_t tcp;
}

parser BaseParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_IPV4: parse_ipv4;
            TYPE_HEARTBEAT: parse_heartbeat;
            TYPE_RANGE: parse_range;
            default: accept;
        }
    }

    state parse_heartbeat {
        packet.extract(hdr.heartbeat);
        transition accept;
    }

    state parse_range {
        packet.extract(hdr.range);
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.ihl, hdr.ipv4.protocol) {
            (5, 6): parse_tcp;
            default: accept;
        }
    }

    state parse_tcp {
        packet.extract(hdr.tcp);
        transition accept;
    }
}

control BaseVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control BaseEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}

control BaseChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            {
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.identification,
                hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst
            },
            hdr.ipv4.checksum,
            HashAlgorithm.csum16
        );
    }
}

control BaseDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

#endif

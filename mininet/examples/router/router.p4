// SPDX-License-Identifier: Apache-2.0
// A small IPv4 router with an access list, for `rivulet-lab run` and `rivulet-lab console`: each kind of match, a
// counter, a register, a direct counter, a multicast group and a clone session.
#include <core.p4>
#include <v1model.p4>

const bit<16> TYPE_IPV4 = 0x0800;
const bit<32> MIRROR_SESSION = 7;

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

header ports_t {
    bit<16> src;
    bit<16> dst;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t     ipv4;
    ports_t    ports;
}

struct metadata_t {
    bit<16> port;
}

parser RouterParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_IPV4: ipv4;
            default: accept;
        }
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.ihl, hdr.ipv4.protocol) {
            (5, 6): ports;
            (5, 17): ports;
            default: accept;
        }
    }

    state ports {
        packet.extract(hdr.ports);
        meta.port = hdr.ports.dst;
        transition accept;
    }
}

control RouterVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control RouterIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    counter(16, CounterType.packets_and_bytes) received;
    direct_counter(CounterType.packets_and_bytes) routed;
    register<bit<32>>(16) sizes;

    action drop() {
        mark_to_drop(standard);
    }

    action forward(bit<48> mac, bit<9> port) {
        standard.egress_spec = port;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }

    action multicast(bit<16> group) {
        standard.mcast_grp = group;
    }

    action mirror() {
        clone(CloneType.I2E, MIRROR_SESSION);
    }

    table routes {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward; multicast; drop; }
        counters = routed;
        default_action = drop();
        size = 256;
    }

    table access {
        key = {
            hdr.ipv4.src: ternary;
            meta.port: range;
        }
        actions = { drop; mirror; NoAction; }
        default_action = NoAction();
        size = 64;
    }

    table neighbours {
        key = { hdr.ethernet.src: exact; }
        actions = { drop; NoAction; }
        default_action = NoAction();
        size = 64;
    }

    apply {
        bit<32> cell = (bit<32>)(standard.ingress_port & 15);
        received.count(cell);
        sizes.write(cell, standard.packet_length);
        neighbours.apply();
        if (hdr.ipv4.isValid() && hdr.ipv4.ttl > 1) {
            routes.apply();
            access.apply();
        } else {
            drop();
        }
    }
}

control RouterEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}

control RouterChecksum(inout headers_t hdr, inout metadata_t meta) {
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

control RouterDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(RouterParser(), RouterVerify(), RouterIngress(), RouterEgress(), RouterChecksum(), RouterDeparser()) main;

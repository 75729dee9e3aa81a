// Types that controllers know as strings, for the server's tests.
#define V1MODEL_VERSION 20200408
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;

@p4runtime_translation("", string)
@p4runtime_translation_mappings({ {"cpu", 510} })
type bit<9> port_t;
// Eight values, 0 with a string. p4c crashes on values in const entries and default actions.
@p4runtime_translation("", string)
@p4runtime_translation_mappings({ {"", 0} })
type bit<3> vrf_t;
@p4runtime_translation("example.org/nexthop", string)
type bit<10> nexthop_t;

@controller_header("packet_in")
header packet_in_t {
    port_t ingress_port;
    vrf_t  vrf;
    bit<4> pad;
}

@controller_header("packet_out")
header packet_out_t {
    port_t egress_port;
    bit<7> pad;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    ethernet_t   ethernet;
}

struct seen_t {
    port_t  port;
    vrf_t   vrf;
    bit<48> src;
}

struct meta_t {
    port_t    in_port;
    vrf_t     vrf;
    nexthop_t nexthop;
}

parser MainParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    state start {
        meta.in_port = (port_t)std.ingress_port;
        transition select(std.ingress_port) {
            CPU_PORT: from_cpu;
            default: ethernet;
        }
    }
    state from_cpu {
        packet.extract(hdr.packet_out);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control MainIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    register<vrf_t, bit<32>>(4) last_vrf;
    action_selector(HashAlgorithm.crc16, 32, 14) spread;
    action_profile(16) shared;

    action set_vrf(vrf_t vrf) {
        meta.vrf = vrf;
    }
    action set_nexthop(nexthop_t nexthop) {
        meta.nexthop = nexthop;
    }
    action send(port_t port) {
        std.egress_spec = (bit<9>)port;
    }
    action multicast(bit<16> group) {
        std.mcast_grp = group;
    }
    table classify {
        key = { meta.in_port: exact @name("port"); }
        actions = { set_vrf; NoAction; }
        default_action = NoAction();
    }
    table routes {
        key = { meta.vrf: optional @name("vrf"); hdr.ethernet.dst: ternary @name("dst"); }
        actions = { set_nexthop; send; multicast; NoAction; }
        default_action = NoAction();
    }
    table nexthops {
        key = { meta.nexthop: exact @name("nexthop"); }
        actions = { send; NoAction; }
        default_action = NoAction();
    }
    table groups {
        key = { meta.nexthop: exact @name("nexthop"); hdr.ethernet.src: selector; }
        actions = { send; NoAction; }
        implementation = spread;
    }
    table members {
        key = { meta.vrf: exact @name("vrf"); }
        actions = { send; NoAction; }
        implementation = shared;
    }
    table odd {
        key = { meta.vrf: ternary @name("vrf"); }
        actions = { send; NoAction; }
        default_action = NoAction();
    }
    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = (bit<9>)hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            classify.apply();
            last_vrf.write(32w0, meta.vrf);
            digest<seen_t>(1, { meta.in_port, meta.vrf, hdr.ethernet.src });
            routes.apply();
            nexthops.apply();
            groups.apply();
            members.apply();
            odd.apply();
        }
    }
}

control MainEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    apply {
        if (std.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = meta.in_port;
            hdr.packet_in.vrf = meta.vrf;
            hdr.packet_in.pad = 0;
        }
    }
}

control Compute(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control MainDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
    }
}

V1Switch(MainParser(), Verify(), MainIngress(), MainEgress(), Compute(), MainDeparser()) main;

// Types that controllers know as numbers of another width, for the server's tests.
#define V1MODEL_VERSION 20200408
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;

// Controllers see 32 bits, packets and tables have 9, 16 and 24.
@p4runtime_translation("", 32)
type bit<9> port_t;
@p4runtime_translation("", 32)
type bit<16> wide_port_t;
// Controllers see fewer bits than the packets have.
@p4runtime_translation("", 8)
type bit<24> label_t;

@controller_header("packet_in")
header packet_in_t {
    port_t  ingress_port;
    bit<7>  pad;
    label_t label;
}

@controller_header("packet_out")
header packet_out_t {
    wide_port_t egress_port;
}

// One field, as in the packet-out header.
header tag_t {
    bit<8> tag;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    tag_t        tag;
    ethernet_t   ethernet;
}

struct seen_t {
    port_t  port;
    label_t label;
}

struct meta_t {
    port_t      in_port;
    wide_port_t wide;
    label_t     label;
}

parser MainParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    state start {
        meta.in_port = (port_t)std.ingress_port;
        meta.wide = (wide_port_t)(bit<16>)std.ingress_port;
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
        meta.label = (label_t)hdr.ethernet.dst[23:0];
        transition select(hdr.ethernet.ether_type) {
            0x8888: tag;
            default: accept;
        }
    }
    state tag {
        packet.extract(hdr.tag);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control MainIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    action send(port_t port) {
        std.egress_spec = (bit<9>)port;
    }
    action learn(port_t port) {
        std.egress_spec = (bit<9>)port;
        digest<seen_t>(1, { meta.in_port, meta.label });
    }
    table exact_ports {
        key = { meta.in_port: exact @name("port"); }
        actions = { send; learn; NoAction; }
        default_action = NoAction();
    }
    table ternary_ports {
        key = { meta.wide: ternary @name("port"); }
        actions = { send; NoAction; }
        default_action = NoAction();
    }
    table lpm_ports {
        key = { meta.wide: lpm @name("port"); }
        actions = { send; NoAction; }
        default_action = NoAction();
    }
    table range_ports {
        key = { meta.wide: range @name("port"); meta.label: optional @name("label"); }
        actions = { send; NoAction; }
        default_action = NoAction();
    }
    table labels {
        key = { meta.label: ternary @name("label"); }
        actions = { send; NoAction; }
        default_action = NoAction();
    }
    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = (bit<9>)(bit<16>)hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            exact_ports.apply();
            ternary_ports.apply();
            lpm_ports.apply();
            range_ports.apply();
            labels.apply();
        }
    }
}

control MainEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    apply {
        if (std.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = meta.in_port;
            hdr.packet_in.pad = 0;
            hdr.packet_in.label = meta.label;
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
        packet.emit(hdr.tag);
    }
}

V1Switch(MainParser(), Verify(), MainIngress(), MainEgress(), Compute(), MainDeparser()) main;

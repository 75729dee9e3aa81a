// One entity of each kind that P4Runtime has, for the server's tests.
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;
const bit<9> DROP_PORT = 511;

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> mode;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

header ipv4_t {
    bit<8>  version_ihl;
    bit<8>  tos;
    bit<16> length;
    bit<16> id;
    bit<16> fragment;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    ethernet_t   ethernet;
    ipv4_t       ipv4;
}

struct learn_t {
    bit<48> src;
    bit<9>  port;
}

struct meta_t {
    bit<8>  matched;
    bit<12> class;
}

parser MainParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    value_set<bit<16>>(4) extra_types;
    state start {
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
        transition select(hdr.ethernet.ether_type) {
            0x0800: ipv4;
            extra_types: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control MainVerify(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control MainIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    counter(16, CounterType.packets_and_bytes) port_counter;
    meter(16, MeterType.bytes) port_meter;
    register<bit<48>>(8) stamps;
    register<int<16>>(8) balances;
    direct_counter(CounterType.packets_and_bytes) route_counter;
    direct_meter<bit<2>>(MeterType.packets) acl_meter;
    action_profile(16) profile;
    action_selector(HashAlgorithm.crc16, 32, 14) selector;
    bit<2> colour = 0;
    bit<2> port_colour = 0;
    bit<48> stamp;
    int<16> balance;

    action drop() { mark_to_drop(std); }
    action nothing() {}
    action forward(bit<9> port) { std.egress_spec = port; }
    action forward_counted(bit<9> port, bit<4> cell) {
        std.egress_spec = port;
        port_counter.count((bit<32>)cell);
    }
    action to_cpu(bit<7> reason) {
        std.egress_spec = CPU_PORT;
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = std.ingress_port;
        hdr.packet_in.reason = reason;
    }
    action replicate(bit<16> group) { std.mcast_grp = group; }
    action mirror(bit<32> session) { clone(CloneType.I2E, session); }
    action learn() { digest<learn_t>(1, {hdr.ethernet.src, std.ingress_port}); }
    action set_class(bit<12> class) { meta.class = class; }
    action police() { acl_meter.read(colour); }

    // Exact match; some actions are allowed in entries only (`forward`), one only as the default (`to_cpu`).
    table l2 {
        key = { hdr.ethernet.dst: exact; }
        actions = { @tableonly forward; @tableonly learn; @tableonly replicate; @tableonly mirror; @defaultonly to_cpu; nothing; drop; }
        default_action = nothing();
        size = 1024;
    }
    // Longest prefix match, with a direct counter.
    table routes {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward; forward_counted; drop; }
        default_action = drop();
        counters = route_counter;
        size = 16384;
    }
    // Match kinds that require a priority, and an exact one, with a direct meter.
    table acl {
        key = {
            hdr.ipv4.src: ternary;
            hdr.ipv4.protocol: optional;
            hdr.ipv4.length: range;
            std.ingress_port: exact;
        }
        actions = { police; drop; set_class; to_cpu; nothing; }
        const default_action = nothing();
        meters = acl_meter;
        size = 512;
    }
    table fixed {
        key = { hdr.ethernet.ether_type: exact; }
        actions = { set_class; nothing; }
        const entries = {
            0x0800: set_class(4);
            0x86dd: set_class(6);
        }
        default_action = nothing();
    }
    table fixed_ternary {
        key = { hdr.ethernet.ether_type: ternary; }
        actions = { set_class; nothing; }
        const entries = {
            0x0800 &&& 0xff00: set_class(1);
            0x0000 &&& 0x0000: set_class(2);
        }
        const default_action = nothing();
    }
    table initial {
        key = { hdr.ipv4.tos: exact; }
        actions = { set_class; nothing; }
        entries = {
            const 1: set_class(11);
            2: set_class(12);
        }
        default_action = nothing();
        size = 16;
    }
    table members {
        key = { hdr.ipv4.ttl: exact; }
        actions = { forward; drop; }
        implementation = profile;
        size = 64;
    }
    table groups {
        key = { hdr.ipv4.dst: exact; hdr.ipv4.src: selector; hdr.ipv4.protocol: selector; }
        actions = { forward; drop; set_class; }
        implementation = selector;
        size = 64;
    }
    table aging {
        key = { hdr.ethernet.src: exact; }
        actions = { nothing; learn; }
        default_action = nothing();
        support_timeout = true;
        size = 64;
    }
    table keyless {
        actions = { set_class; nothing; }
        default_action = nothing();
    }

    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
            exit;
        }
        fixed.apply();
        fixed_ternary.apply();
        keyless.apply();
        aging.apply();
        l2.apply();
        if (hdr.ipv4.isValid()) {
            initial.apply();
            routes.apply();
            members.apply();
            groups.apply();
            acl.apply();
            port_meter.execute_meter((bit<32>)(bit<4>)std.ingress_port, port_colour);
            stamps.read(stamp, 0);
            stamps.write(0, stamp + 1);
            balances.read(balance, 0);
            balances.write(0, balance - 1);
            if (colour == 2 || port_colour == 2) {
                drop();
            }
        }
    }
}

control MainEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t std) {
    apply {
        if (std.egress_port == CPU_PORT && !hdr.packet_in.isValid()) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = std.ingress_port;
            hdr.packet_in.reason = 0;
        }
    }
}

control MainUpdate(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control MainDeparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(MainParser(), MainVerify(), MainIngress(), MainEgress(), MainUpdate(), MainDeparse()) main;

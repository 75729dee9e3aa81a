// SPDX-License-Identifier: Apache-2.0
// One table of each kind, picked by `op`: for the benchmark of lookups.
#include <core.p4>
#include <v1model.p4>

header cmd_h {
    bit<8>  op;
    bit<8>  pad;
    bit<32> key;
    bit<32> value;
}

struct headers_t {
    cmd_h cmd;
}

struct metadata_t {}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.cmd);
        transition accept;
    }
}

control None(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action set_value(bit<32> value) { hdr.cmd.value = value; }

    table exact_t {
        key = { hdr.cmd.key : exact; }
        actions = { set_value; NoAction; }
        default_action = NoAction();
        size = 16384;
    }

    table lpm_t {
        key = { hdr.cmd.key : lpm; }
        actions = { set_value; NoAction; }
        default_action = NoAction();
        size = 16384;
    }

    table ternary_t {
        key = { hdr.cmd.key : ternary; }
        actions = { set_value; NoAction; }
        default_action = NoAction();
        size = 16384;
    }

    apply {
        standard.egress_spec = 1;
        if (hdr.cmd.op == 1) {
            exact_t.apply();
        } else if (hdr.cmd.op == 2) {
            lpm_t.apply();
        } else if (hdr.cmd.op == 3) {
            ternary_t.apply();
        }
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}

control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.cmd);
    }
}

V1Switch(P(), None(), I(), E(), None(), D()) main;

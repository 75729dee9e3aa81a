// SPDX-License-Identifier: Apache-2.0
// One feature of v1model for each value of `op`; what it gives is put into the header and sent to port 1.
#include <core.p4>
#include <v1model.p4>

header cmd_h {
    bit<8>  op;
    bit<8>  c;
    bit<32> a;
    bit<32> b;
    bit<64> w;
}

header var_h {
    bit<8>      length;
    varbit<256> data;
}

header item_h {
    bit<7> value;
    bit<1> last;
}

struct metadata_t {
    @field_list(1) bit<32> kept;
    bit<32> lost;
    bit<2>  colour;
    bit<8>  set;
}

struct headers_t {
    cmd_h     cmd;
    var_h     var;
    item_h[4] items;
}

struct event_t {
    bit<8>  c;
    bit<48> when;
    bit<13> odd;
}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    value_set<bit<8>>(4) known;

    state start {
        packet.extract(hdr.cmd);
        transition select(hdr.cmd.op) {
            20:          variable;
            21:          items;
            22:          check;
            23 &&& 0xfe: accept;
            known:       in_set;
            default:     accept;
        }
    }

    state in_set {
        meta.set = 1;
        transition accept;
    }

    state variable {
        packet.extract(hdr.var, (bit<32>)packet.lookahead<bit<8>>() << 3);
        transition accept;
    }

    state items {
        packet.extract(hdr.items.next);
        transition select(hdr.items.last.last) {
            0:       items;
            default: accept;
        }
    }

    state check {
        verify(hdr.cmd.a == 7, error.NoMatch);
        transition accept;
    }
}

control V(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(16) sums;
    register<bit<96>>(4) wides;
    counter(8, CounterType.packets_and_bytes) seen;
    meter(8, MeterType.packets) limit;
    direct_counter(CounterType.packets) hits;
    action_selector(HashAlgorithm.crc16, 16, 14) ways;

    action drop() { mark_to_drop(standard); }
    action set_b(bit<32> value) { hdr.cmd.b = value; }
    action count_b(bit<32> value) { hdr.cmd.b = value; hits.count(); }
    action set_wide(bit<128> value) { hdr.cmd.w = value[127:64] ^ value[63:0]; }

    table exact_t {
        key = { hdr.cmd.a : exact; hdr.cmd.c : exact; }
        actions = { count_b; set_wide; @defaultonly NoAction; }
        default_action = NoAction();
        counters = hits;
        support_timeout = true;
        size = 64;
    }

    table lpm_t {
        key = { hdr.cmd.a : lpm; }
        actions = { set_b; drop; NoAction; }
        default_action = set_b(0xdead);
    }

    table range_t {
        key = { hdr.cmd.a : range; hdr.cmd.c : ternary; }
        actions = { set_b; NoAction; }
        default_action = NoAction();
    }

    table const_t {
        key = { hdr.cmd.c : ternary; }
        actions = { set_b; NoAction; }
        const default_action = NoAction();
        const entries = {
            0x10 &&& 0xf0 : set_b(1);
            0x12          : set_b(2);
            _             : set_b(3);
        }
    }

    table select_t {
        key = { hdr.cmd.c : exact; hdr.cmd.a : selector; }
        actions = { set_b; NoAction; }
        implementation = ways;
    }

    apply {
        standard.egress_spec = 1;
        seen.count((bit<32>)hdr.cmd.op & 7);
        if (standard.parser_error != error.NoError) {
            hdr.cmd.c = 0xee;
        } else if (hdr.cmd.op == 1) {
            bit<32> v;
            sums.read(v, hdr.cmd.a);
            v = v + hdr.cmd.b;
            sums.write(hdr.cmd.a, v);
            hdr.cmd.b = v;
        } else if (hdr.cmd.op == 2) {
            if (select_t.apply().hit) { hdr.cmd.w = 1; }
        } else if (hdr.cmd.op == 3) {
            meta.kept = hdr.cmd.a;
            meta.lost = hdr.cmd.a;
            clone_preserving_field_list(CloneType.I2E, 5, 1);
            hdr.cmd.b = 9;
        } else if (hdr.cmd.op == 4) {
            standard.mcast_grp = hdr.cmd.a[15:0];
        } else if (hdr.cmd.op == 5) {
            if (standard.instance_type == 0) {
                meta.kept = hdr.cmd.a;
                meta.lost = 1;
                hdr.cmd.b = 77;
                resubmit_preserving_field_list(1);
            } else {
                hdr.cmd.w = (bit<64>)(meta.kept + meta.lost);
            }
        } else if (hdr.cmd.op == 6) {
            hdr.cmd.b = hdr.cmd.b + 1;
        } else if (hdr.cmd.op == 7) {
            digest<event_t>(1, { hdr.cmd.c, standard.ingress_global_timestamp, 13w0x1abc });
        } else if (hdr.cmd.op == 8) {
            limit.execute_meter(hdr.cmd.a, meta.colour);
            hdr.cmd.c = 6w0 ++ meta.colour;
        } else if (hdr.cmd.op == 9) {
            exact_t.apply();
        } else if (hdr.cmd.op == 10) {
            lpm_t.apply();
        } else if (hdr.cmd.op == 11) {
            range_t.apply();
        } else if (hdr.cmd.op == 12) {
            const_t.apply();
        } else if (hdr.cmd.op == 13) {
            int<32> x = (int<32>)hdr.cmd.a;
            int<32> y = (int<32>)hdr.cmd.b;
            bit<32> s = hdr.cmd.a |+| hdr.cmd.b;
            hdr.cmd.w = (bit<64>)s << 32;
            hdr.cmd.b = (bit<32>)(x |-| y);
            if (x < y) { hdr.cmd.c = 1; } else { hdr.cmd.c = 0; }
            hdr.cmd.a = (bit<32>)(x >> 4);
        } else if (hdr.cmd.op == 14) {
            hash(hdr.cmd.b, HashAlgorithm.crc32, 32w0, { hdr.cmd.a }, 64w0x100000000);
        } else if (hdr.cmd.op == 15) {
            assert(hdr.cmd.a != 0);
        } else if (hdr.cmd.op == 16) {
            bit<96> v;
            wides.read(v, 1);
            v = v + (hdr.cmd.w ++ hdr.cmd.b);
            wides.write(1, v);
            hdr.cmd.w = v[95:32];
            hdr.cmd.b = v[31:0];
        } else if (hdr.cmd.op == 17) {
            bit<128> p = (bit<128>)hdr.cmd.w * (bit<128>)hdr.cmd.w;
            hdr.cmd.w = p[127:64];
            if (p > 128w0x1_0000_0000_0000_0000) { hdr.cmd.c = 1; }
            hdr.cmd.b = (hdr.cmd.a << (bit<8>)hdr.cmd.c) | (hdr.cmd.b >> (bit<8>)40);
        } else if (hdr.cmd.op == 18) {
            random(hdr.cmd.b, 32w10, 32w12);
        } else if (hdr.cmd.op == 19) {
            log_msg("a={} \\{c\\}={}", { hdr.cmd.a, hdr.cmd.c });
            exit;
        } else if (hdr.cmd.op == 21) {
            hdr.items.pop_front(1);
        } else if (meta.set == 1) {
            hdr.cmd.b = 0x5e7;
        }
        if (hdr.cmd.op == 19) { hdr.cmd.b = 0xbad; }
        if (hdr.cmd.op == 30) { drop(); }
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.cmd.op == 3 && standard.instance_type == 1) {
            hdr.cmd.w = meta.kept ++ meta.lost;
        }
        if (hdr.cmd.op == 4) {
            hdr.cmd.b = (bit<32>)standard.egress_rid;
        }
        if (hdr.cmd.op == 6 && hdr.cmd.b < hdr.cmd.a) {
            recirculate_preserving_field_list(1);
        }
        if (hdr.cmd.op == 23) {
            truncate(hdr.cmd.a);
        }
        if (hdr.cmd.op == 24) {
            mark_to_drop(standard);
        }
        if (hdr.cmd.op == 25 && standard.instance_type == 0) {
            meta.kept = 5;
            clone_preserving_field_list(CloneType.E2E, 6, 1);
        }
        if (hdr.cmd.op == 25 && standard.instance_type == 2) {
            hdr.cmd.b = meta.kept;
        }
    }
}

control C(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.cmd);
        packet.emit(hdr.var);
        packet.emit(hdr.items);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;

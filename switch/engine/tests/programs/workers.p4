// SPDX-License-Identifier: Apache-2.0
// Read, change and write of registers in actions, counters of both kinds: what several workers must not mix up.
#include <core.p4>
#include <v1model.p4>

header cmd_h {
    bit<8>  op;
    bit<8>  c;
    bit<32> a;
    bit<32> b;
    bit<64> w;
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
    register<bit<32>>(4) sums;
    register<bit<96>>(4) wides;
    counter(4, CounterType.packets_and_bytes) seen;
    direct_counter(CounterType.packets_and_bytes) hits;
    meter(1, MeterType.packets) limit;
    register<bit<32>>(2) turns;

    // Adds one to both; the wide one's upper limb is always the lower one's inverse.
    action both() {
        bit<96> wide;
        bit<32> sum;
        wides.read(wide, 0);
        sums.read(sum, 0);
        sum = sum + 1;
        hdr.cmd.a = sum;
        hdr.cmd.b = (bit<32>)(wide[31:0] ^ ~wide[95:64]);
        wide[31:0] = sum;
        wide[95:64] = ~sum;
        wides.write(0, wide);
        sums.write(0, sum);
        hits.count();
        seen.count(1);
    }
    // The same arrays in the other order, and the end of the pipeline in the middle.
    action ends() {
        bit<32> sum;
        bit<96> wide;
        sums.read(sum, 1);
        wides.read(wide, 1);
        sums.write(1, sum + 1);
        wides.write(1, wide + 1);
        hits.count();
        exit;
    }
    table work {
        key = { hdr.cmd.op: exact; }
        actions = { both; ends; }
        counters = hits;
    }

    apply {
        standard.egress_spec = 1;
        if (hdr.cmd.op == 9) {
            // Without a table.
            bit<32> sum;
            sums.read(sum, 2);
            sums.write(2, sum + 1);
            limit.execute_meter<bit<8>>(0, hdr.cmd.c);
        }
        if (hdr.cmd.op == 10) {
            // Three actions and two conditions of p4c's.
            @atomic {
                bit<32> turn;
                turns.read(turn, 0);
                if (turn[0:0] == 1) {
                    turns.read(hdr.cmd.a, 1);
                    turns.write(1, hdr.cmd.a + 1);
                }
                if (hdr.cmd.b != 1) {
                    turns.write(0, turn + 1);
                }
            }
        }
        work.apply();
        seen.count(0);
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

// SPDX-License-Identifier: Apache-2.0
// A switch that checks that a client has really received what it acknowledges. Each data packet n gets the
// nonce H(n) ^ H(n + 1), so that the nonces of a whole range first..last cancel out to H(first) ^ H(last):
// the switch checks any range by two hashes and stores nothing. Without the nonce of each packet of the
// range a client cannot know this value.
#include <core.p4>
#include <v1model.p4>

struct metadata_t {
    bit<32> k0;
    bit<32> k1;
    bit<32> v0;
    bit<32> v1;
    bit<32> v2;
    bit<32> v3;
    bit<32> expected;
}

#include "../include/base.p4"
#include "../include/keyed_hash.p4"

const bit<8> DATA = 1;

control ExerciseIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    KeyedHash() hash_one;
    KeyedHash() hash_two;
    bit<32> one;
    bit<32> two;

    action drop() {
        mark_to_drop(standard);
    }

    action set_keys(bit<32> k0, bit<32> k1) {
        meta.k0 = k0;
        meta.k1 = k1;
    }

    table keys {
        actions = { set_keys; drop; }
        default_action = drop();
    }

    action forward(bit<9> port) {
        standard.egress_spec = port;
    }

    table routes {
        key = { hdr.range.kind: exact; }
        actions = { forward; drop; }
        default_action = drop();
        size = 16;
    }

    apply {
        if (!hdr.range.isValid()) {
            drop();
        } else {
            keys.apply();
            routes.apply();
            if (hdr.range.kind == DATA) {
                hdr.range.last = hdr.range.first + 1;
            }
            hash_one.apply(meta, hdr.range.tag, hdr.range.first, one);
            hash_two.apply(meta, hdr.range.tag, hdr.range.last, two);
            meta.expected = one ^ two;
            if (hdr.range.kind == DATA) {
                hdr.range.nonce = meta.expected;
            } else if (hdr.range.first >= hdr.range.last || hdr.range.nonce != meta.expected) {
                drop();
            }
        }
    }
}

V1Switch(
    BaseParser(), BaseVerify(), ExerciseIngress(), BaseEgress(), BaseChecksum(), BaseDeparser()
) main;

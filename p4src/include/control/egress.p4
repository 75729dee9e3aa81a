// SPDX-License-Identifier: Apache-2.0
// All rewriting, once a copy.
#ifndef RIVULET_EGRESS_P4
#define RIVULET_EGRESS_P4

#include "../metadata.p4"
#include "../v1model/state.p4"
#include "answers.p4"
#include "rewrite.p4"
#include "too_big.p4"

control Write(inout headers_t hdr, inout metadata_t meta, in port_id_t port) {
    AnswerRewrite() answer_rewrite;
    TooBigRewrite() too_big_rewrite;
    Rewrite() rewrite;
    EgressDropCounter() egress_drop_counter;

    apply {
        if (meta.packet_out == 1) {
            hdr.packet_out.setInvalid();
        } else if (meta.punt != punt_reason_t.NONE) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = (bit<16>)meta.ingress_port;
            hdr.packet_in.vlan = (bit<16>)meta.vlan;
            hdr.packet_in.reason = (bit<8>)meta.punt;
        } else {
            if (meta.is_flood == 1 && port == meta.ingress_port) {
                meta.egress_reason = drop_reason_t.COPY_SOURCE;
            }
            if (meta.to_copies == 1) {
                meta.replica = meta.copy[5:0];
                if (((meta.alive >> (bit<8>)meta.replica) & 1) == 0) {
                    meta.egress_reason = drop_reason_t.COPY_EXCLUDED;
                }
            }
            if (meta.answer == answer_t.TOO_BIG4 || meta.answer == answer_t.TOO_BIG6) {
                meta.routed = 0;
                meta.stamp = 0;
                too_big_rewrite.apply(hdr, meta);
            } else if (meta.answer != answer_t.NONE) {
                answer_rewrite.apply(hdr, meta);
            }
            if (meta.egress_reason == drop_reason_t.NONE) {
                rewrite.apply(hdr, meta, port);
            }
            if (meta.egress_reason != drop_reason_t.NONE) {
                egress_drop_counter.apply(meta.egress_reason);
            }
        }
    }
}

#endif

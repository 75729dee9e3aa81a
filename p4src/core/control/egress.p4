// SPDX-License-Identifier: Apache-2.0
// All rewriting, once for each copy. Its only input from ingress is `bridged`.
#ifndef RIVULET_EGRESS_P4
#define RIVULET_EGRESS_P4

#include "../metadata.p4"
#include <state.p4>
#include "answers.p4"
#include <cookies.p4>
#include "heartbeats.p4"
#include "rewrite.p4"
#include "too_big.p4"

// port: egress port of this copy. copy: its instance within a multicast group.
control Write(inout headers_t hdr, in bridged_t bridged, inout written_t written, in port_id_t port,
              in bit<16> copy) {
    AnswerRewrite() answer_rewrite;
    AnswerHeartbeatRewrite() answer_heartbeat_rewrite;
    CookieRewrite() cookie_rewrite;
    TooBigRewrite() too_big_rewrite;
    Rewrite() rewrite;
    EgressDropCounter() egress_drop_counter;
    replica_id_t replica;

    apply {
        if (bridged.packet_out == 1) {
            hdr.packet_out.setInvalid();
        } else if (bridged.punt != punt_reason_t.NONE) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = (bit<16>)bridged.ingress_port;
            hdr.packet_in.vlan = (bit<16>)bridged.vlan;
            hdr.packet_in.reason = (bit<8>)bridged.punt;
        } else {
            if (bridged.fate == fate_t.FLOODED && port == bridged.ingress_port) {
                written.reason = drop_reason_t.COPY_SOURCE;
            }
            replica = bridged.replica;
            if (bridged.to_copies == 1) {
                replica = copy[5:0];
                if (((bridged.alive >> (bit<8>)replica) & 1) == 0) {
                    written.reason = drop_reason_t.COPY_EXCLUDED;
                }
            }
            if (bridged.answer == answer_t.TOO_BIG4 || bridged.answer == answer_t.TOO_BIG6) {
                too_big_rewrite.apply(hdr, bridged, written);
            } else if (bridged.answer == answer_t.HEARTBEAT) {
                answer_heartbeat_rewrite.apply(hdr, bridged, written);
            } else if (bridged.answer == answer_t.COOKIE) {
                cookie_rewrite.apply(hdr, bridged, written);
            } else if (bridged.answer != answer_t.NONE) {
                answer_rewrite.apply(hdr, bridged, written);
            }
            if (written.reason == drop_reason_t.NONE) {
                rewrite.apply(hdr, bridged, written, port, replica);
            }
            if (written.reason != drop_reason_t.NONE) {
                egress_drop_counter.apply(written.reason);
            }
        }
    }
}

#endif

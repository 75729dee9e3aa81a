// SPDX-License-Identifier: Apache-2.0
// The Rivulet ToR for v1model. Only this folder depends on the architecture (-I of the compiler).
//
//   V1Parser -> VerifyChecksums -> V1Ingress (Decide) -> V1Egress (Write) -> ComputeChecksums -> V1Deparser
//                     ^                  |
//                     +--- resubmit -----+   the heartbeats of a replica are overdue: once for each, at most 64
#define V1MODEL_VERSION 20200408
#include <core.p4>
#include <v1model.p4>

#include "../core/types.p4"
#include "../core/headers.p4"
#include "../core/metadata.p4"
#include "parser.p4"
#include "state.p4"
#include "../core/control/ingress.p4"
#include "../core/control/egress.p4"
#include "checksums.p4"
#include "../core/deparser.p4"

parser V1Parser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    PacketParser() packet_parser;

    // Initialises every field of the metadata; fields that a resubmission keeps are initialised in
    // the first pass.
    state start {
        meta.parsed = {...};
        meta.decided = {...};
        meta.tor = {...};
        meta.address = {...};
        meta.flow = {...};
        meta.service = {...};
        meta.checks = {...};
        meta.keys = {...};
        meta.cookie = {...};
        meta.hash = {...};
        meta.nonce = {...};
        meta.proof = {...};
        meta.verdict = {...};
        meta.pool = {...};
        meta.choice = {...};
        meta.sums = {...};
        meta.heartbeat = {...};
        meta.event = {...};
        meta.bridged = {...};
        meta.written = {...};
        meta.parsed.frame_length = (bit<16>)standard.packet_length;
        transition select(standard.instance_type) {
            0:       first_pass;
            default: parse_packet;
        }
    }

    // After a resubmission standard metadata is zero, including clock and port; the @field_list is
    // kept.
    state first_pass {
        meta.carried = {...};
        meta.carried.ingress_port = standard.ingress_port;
        meta.carried.now = standard.ingress_global_timestamp;
        transition select(standard.ingress_port) {
            CPU_PORT: parse_packet_out;
            default:  parse_packet;
        }
    }

    // Packets from the controller leave unchanged.
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition accept;
    }

    state parse_packet {
        packet_parser.apply(packet, hdr, meta);
        transition accept;
    }
}

control V1Ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    ParseReason() parse_reason;
    Decide() decide;

    apply {
        parse_reason.apply(standard.parser_error, meta.parsed.reason);
        if (meta.parsed.reason == drop_reason_t.NONE && standard.checksum_error == 1) {
            meta.parsed.reason = drop_reason_t.IPV4_CHECKSUM;
        }
        if (hdr.packet_out.isValid()) {
            meta.bridged.packet_out = 1;
            standard.egress_spec = hdr.packet_out.egress_port[8:0];
        } else {
            meta.decided.egress_port = DROP_PORT;
            meta.bridged.ingress_port = meta.carried.ingress_port;
            decide.apply(hdr, meta);
            standard.egress_spec = meta.decided.egress_port;
            standard.mcast_grp = meta.decided.multicast_group;
            if (meta.decided.resubmit == 1) {
                resubmit_preserving_field_list(RESUBMIT_FIELDS);
            }
        }
    }
}

control V1Egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Write() write;

    apply {
        write.apply(hdr, meta.bridged, meta.written, standard.egress_port, standard.egress_rid);
        if (meta.written.truncate_length != 0) {
            bit<32> l2_length = 14;
            if (hdr.vlan.isValid()) {
                l2_length = 18;
            }
            truncate(l2_length + (bit<32>)meta.written.truncate_length);
        }
        if (meta.written.reason != drop_reason_t.NONE) {
            mark_to_drop(standard);
        }
    }
}

control V1Deparser(packet_out packet, in headers_t hdr) {
    PacketDeparser() packet_deparser;

    apply {
        packet_deparser.apply(packet, hdr);
    }
}

V1Switch(V1Parser(), VerifyChecksums(), V1Ingress(), V1Egress(), ComputeChecksums(), V1Deparser()) main;

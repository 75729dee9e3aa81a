// SPDX-License-Identifier: Apache-2.0
// The Rivulet ToR for v1model. This file, include/v1model/ and nothing else name the architecture.
//
//   V1Parser -> VerifyChecksums -> V1Ingress (Decide) -> V1Egress (Write) -> ComputeChecksums -> V1Deparser
//                     ^                  |
//                     +--- resubmit -----+   a replica was found silent: once for each, 64 at most
#define V1MODEL_VERSION 20200408
#include <core.p4>
#include <v1model.p4>

#include "include/types.p4"
#include "include/headers.p4"
#include "include/metadata.p4"
#include "include/parser.p4"
#include "include/v1model/state.p4"
#include "include/control/ingress.p4"
#include "include/control/egress.p4"
#include "include/v1model/checksums.p4"
#include "include/deparser.p4"

parser V1Parser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    PacketParser() packet_parser;

    // After a resubmission standard metadata is zero, the clock and the port too; the fields of the @field_list are kept.
    state start {
        meta.frame_length = (bit<16>)standard.packet_length;
        transition select(standard.instance_type) {
            0:       first_pass;
            default: parse_packet;
        }
    }

    state first_pass {
        meta.ingress_port = standard.ingress_port;
        meta.now = standard.ingress_global_timestamp;
        meta.resubmits = 0;
        meta.found_dead = 0;
        meta.pick = 0;
        meta.checked = 0;
        transition select(standard.ingress_port) {
            CPU_PORT: parse_packet_out;
            default:  parse_packet;
        }
    }

    // What the controller sends leaves as it is.
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
        parse_reason.apply(standard.parser_error, meta.parse_reason);
        if (meta.parse_reason == drop_reason_t.NONE && standard.checksum_error == 1) {
            meta.parse_reason = drop_reason_t.IPV4_CHECKSUM;
        }
        if (hdr.packet_out.isValid()) {
            meta.packet_out = 1;
            standard.egress_spec = hdr.packet_out.egress_port[8:0];
        } else {
            meta.egress_port = DROP_PORT;
            decide.apply(hdr, meta);
            standard.egress_spec = meta.egress_port;
            standard.mcast_grp = meta.multicast_group;
            if (meta.resubmit == 1) {
                resubmit_preserving_field_list(RESUBMIT_FIELDS);
            }
        }
    }
}

control V1Egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Write() write;

    apply {
        meta.copy = standard.egress_rid;
        write.apply(hdr, meta, standard.egress_port);
        if (meta.truncate_length != 0) {
            bit<32> l2_length = 14;
            if (hdr.vlan.isValid()) {
                l2_length = 18;
            }
            truncate(l2_length + (bit<32>)meta.truncate_length);
        }
        if (meta.egress_reason != drop_reason_t.NONE) {
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

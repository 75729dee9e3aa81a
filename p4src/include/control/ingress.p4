// SPDX-License-Identifier: Apache-2.0
// All decisions about a packet, in this order:
//
//   malformed -> drop                                  heartbeat -> admit, note, consume
//   packet-out, punted types -> port, controller       ARP, solicitation, echo for us -> answer
//   Tor, Ports, Addresses                              service -> Admission, Liveness, Replicas
//                                                      the rest -> Forward
//   NextHops and MTU for what is routed; counters and the event
#ifndef RIVULET_INGRESS_P4
#define RIVULET_INGRESS_P4

#include "../metadata.p4"
#include "../v1model/state.p4"
#include "addresses.p4"
#include "answers.p4"
#include "events.p4"
#include "forward.p4"
#include "heartbeats.p4"
#include "liveness.p4"
#include "ports.p4"
#include "replicas.p4"
#include "service_path.p4"
#include "too_big.p4"
#include "tor.p4"

control Decide(in headers_t hdr, inout metadata_t meta) {
    Tor() tor;
    Ports() ports;
    Addresses() addresses;
    AnswerChoice() answer_choice;
    Heartbeats() heartbeats;
    Admission() admission;
    Liveness() liveness;
    Replicas() replicas;
    Forward() forward;
    NextHops() next_hops;
    TooBigChoice() too_big_choice;
    DropCounter() drop_counter;
    OutcomeCounter() outcome_counter;
    FateCounter() fate_counter;
    Events() events;
    fate_t fate;

    apply {
        tor.apply(meta);
        if (meta.parse_reason != drop_reason_t.NONE) {
            meta.drop_reason = meta.parse_reason;
        } else if (meta.tor_ready == 0) {
            meta.drop_reason = drop_reason_t.SERVICE_UNCONFIGURED;
        } else {
            ports.apply(hdr, meta);
        }
        if (meta.drop_reason == drop_reason_t.NONE) {
            addresses.apply(hdr, meta);
            answer_choice.apply(hdr, meta);
            // In the rack a heartbeat has no IP header; one from outside is for an address of ours.
            if (hdr.heartbeat.isValid() && (meta.is_ip == 0 || meta.address_own == 1)) {
                meta.is_heartbeat = 1;
            }
            if (meta.punt != punt_reason_t.NONE || meta.answer != answer_t.NONE) {
                // Decided.
            } else if (meta.is_heartbeat == 1) {
                heartbeats.apply(hdr, meta);
            } else if (meta.address_service == 1 && meta.is_ip == 1) {
                meta.is_service = 1;
                admission.apply(hdr, meta);
            } else {
                forward.apply(hdr, meta);
            }
        }

        if (meta.drop_reason == drop_reason_t.NONE && (meta.admitted == 1 || meta.is_service == 1)) {
            liveness.apply(hdr, meta);
        }
        if (meta.drop_reason == drop_reason_t.NONE && meta.resubmit == 0) {
            if (meta.to_copies == 1) {
                meta.multicast_group = meta.copies_group;
                meta.to_replica = 1;
                meta.routed = 1;
            } else if (meta.is_service == 1) {
                replicas.apply(meta);
                meta.stamp = meta.is_request;
            }
        }
        if (meta.drop_reason == drop_reason_t.NONE && meta.routed == 1 && meta.resubmit == 0) {
            next_hops.apply(hdr, meta);
            if (meta.drop_reason == drop_reason_t.NONE && meta.to_copies == 0) {
                too_big_choice.apply(hdr, meta);
            }
        }

        fate = fate_t.BRIDGED;
        if (meta.resubmit == 1) {
            fate = fate_t.RESUBMITTED;
        } else if (meta.drop_reason != drop_reason_t.NONE) {
            fate = fate_t.DROPPED;
            drop_counter.apply(meta.drop_reason);
            meta.outcome = outcome_t.DROPPED;
            meta.egress_port = DROP_PORT;
            meta.multicast_group = 0;
        } else if (meta.punt != punt_reason_t.NONE) {
            fate = fate_t.PUNTED;
            meta.egress_port = CPU_PORT;
        } else if (meta.is_heartbeat == 1) {
            fate = fate_t.HEARTBEAT;
            meta.egress_port = DROP_PORT;
        } else if (meta.answer != answer_t.NONE) {
            fate = fate_t.ANSWERED;
        } else if (meta.is_service == 1) {
            fate = fate_t.SERVICE;
        } else if (meta.routed == 1) {
            fate = fate_t.ROUTED;
        } else if (meta.is_flood == 1) {
            fate = fate_t.FLOODED;
        }
        fate_counter.apply(fate);
        if (meta.service_hit == 1 && meta.resubmit == 0) {
            outcome_counter.apply(meta.service, meta.outcome);
        }
        events.apply(meta);
    }
}

#endif

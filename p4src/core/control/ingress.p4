// SPDX-License-Identifier: Apache-2.0
// All decisions about a packet, in this order:
//
//   malformed -> drop                                  heartbeat -> admit, note, judge the next, answer
//   packet-out, punted types -> port, controller       ARP, solicitation, echo for us -> answer
//   Tor, Ports, Addresses                              service -> Admission, Liveness, Replicas
//                                                      the rest -> Forward
//   NextHops and MTU for routed packets; counters and the event
#ifndef RIVULET_INGRESS_P4
#define RIVULET_INGRESS_P4

#include "../metadata.p4"
#include <state.p4>
#include "addresses.p4"
#include "answers.p4"
#include "events.p4"
#include "forward.p4"
#include "heartbeats.p4"
#include "liveness.p4"
#include "own_meters.p4"
#include "plain_source.p4"
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
    BlockTag() block_tag;
    OwnMetering() own_metering;
    PlainSource() plain_source;
    Forward() forward;
    NextHops() next_hops;
    TooBigChoice() too_big_choice;
    DropCounter() drop_counter;
    OutcomeCounter() outcome_counter;
    FateCounter() fate_counter;
    Events() events;

    apply {
        meta.bridged.fate = fate_t.BRIDGED;
        tor.apply(meta);
        if (meta.parsed.reason != drop_reason_t.NONE) {
            meta.decided.drop_reason = meta.parsed.reason;
        } else if (meta.tor.ready == 0) {
            meta.decided.drop_reason = drop_reason_t.SERVICE_UNCONFIGURED;
        } else {
            ports.apply(hdr, meta);
        }
        if (meta.decided.drop_reason == drop_reason_t.NONE) {
            addresses.apply(hdr, meta);
            answer_choice.apply(hdr, meta);
            // In the rack a heartbeat has no IP header; one from outside is addressed to the ToR.
            if (hdr.heartbeat.isValid() && (meta.parsed.is_ip == 0 || meta.address.own == 1)) {
                meta.heartbeat.ours = 1;
            }
            if (meta.bridged.punt != punt_reason_t.NONE || meta.bridged.answer != answer_t.NONE) {
                // Decided.
            } else if (meta.heartbeat.ours == 1) {
                heartbeats.apply(hdr, meta);
            } else if (meta.address.service == 1 && meta.parsed.is_ip == 1) {
                meta.decided.is_service = 1;
                admission.apply(hdr, meta);
            } else {
                if (meta.address.guarded == 1) {
                    plain_source.apply(hdr, meta);
                }
                forward.apply(hdr, meta);
            }
        }

        // Cookies are not metered by destination: each SYN gets at most one, and it is no longer
        // than the SYN.
        if (meta.decided.drop_reason == drop_reason_t.NONE && meta.bridged.answer != answer_t.COOKIE
            && (meta.bridged.punt != punt_reason_t.NONE || meta.bridged.answer != answer_t.NONE)) {
            own_metering.apply(hdr, meta);
        }
        if (meta.decided.drop_reason == drop_reason_t.NONE
            && (meta.heartbeat.admitted == 1 || meta.decided.is_service == 1 || meta.address.of_member == 1)) {
            liveness.apply(hdr, meta);
        }
        if (meta.decided.drop_reason == drop_reason_t.NONE && meta.decided.resubmit == 0) {
            if (meta.bridged.to_copies == 1) {
                meta.decided.multicast_group = meta.pool.copies_group;
                meta.bridged.to_replica = 1;
                meta.bridged.routed = 1;
            } else if (meta.decided.is_service == 1) {
                replicas.apply(meta);
                meta.bridged.stamp = meta.decided.is_request;
                meta.bridged.entropy = meta.carried.pick[15:0];
                if (meta.bridged.time_valid == 1) {
                    meta.bridged.flags = TOR_FLAG_TIME_VALID;
                }
                if (meta.carried.checked == 1) {
                    meta.bridged.flags = meta.bridged.flags | TOR_FLAG_CHECKED;
                }
                if (meta.bridged.is_remote == 1 && meta.bridged.stamp == 1 && hdr.tor_block.isValid()) {
                    block_tag.apply(hdr, meta);
                }
            }
        }
        if (meta.decided.drop_reason == drop_reason_t.NONE && meta.bridged.routed == 1
            && meta.decided.resubmit == 0) {
            next_hops.apply(hdr, meta);
            if (meta.decided.drop_reason == drop_reason_t.NONE && meta.bridged.to_copies == 0) {
                too_big_choice.apply(hdr, meta);
            }
        }

        if (meta.decided.resubmit == 1) {
            meta.bridged.fate = fate_t.RESUBMITTED;
        } else if (meta.decided.drop_reason != drop_reason_t.NONE) {
            meta.bridged.fate = fate_t.DROPPED;
            drop_counter.apply(meta.decided.drop_reason);
            meta.decided.outcome = outcome_t.DROPPED;
            meta.decided.egress_port = DROP_PORT;
            meta.decided.multicast_group = 0;
        } else if (meta.bridged.punt != punt_reason_t.NONE) {
            meta.bridged.fate = fate_t.PUNTED;
            meta.decided.egress_port = CPU_PORT;
        } else if (meta.heartbeat.ours == 1) {
            meta.bridged.fate = fate_t.HEARTBEAT;
        } else if (meta.bridged.answer != answer_t.NONE) {
            meta.bridged.fate = fate_t.ANSWERED;
        } else if (meta.decided.is_service == 1) {
            meta.bridged.fate = fate_t.SERVICE;
        } else if (meta.bridged.routed == 1) {
            meta.bridged.fate = fate_t.ROUTED;
        }
        fate_counter.apply(meta.bridged.fate);
        if (meta.service.hit == 1 && meta.decided.resubmit == 0) {
            outcome_counter.apply(meta.service.id, meta.decided.outcome);
        }
        events.apply(meta);
    }
}

#endif

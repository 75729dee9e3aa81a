// SPDX-License-Identifier: Apache-2.0
// A packet to a service address: its service, whether it is admitted, and the replica that gets it.
#ifndef RIVULET_SERVICE_PATH_P4
#define RIVULET_SERVICE_PATH_P4

#include "../metadata.p4"
#include <state.p4>
#include <checks.p4>
#include <cookies.p4>
#include <slot_hash.p4>
#include "second_chance.p4"
#include "services.p4"

// Classifies, and checks Rivulet requests. Afterwards meta.decided.drop_reason is set, or a replica
// is to be chosen.
control Admission(in headers_t hdr, inout metadata_t meta) {
    Services() services;
    Checks() checks;
    Cookies() cookies;
    SecondChance() second_chance;
    FlowHash() flow_hash;
    IcmpErrorMeter() icmp_error_meter;
    bit<1> above;

    apply {
        if (hdr.ethernet.dst[40:40] == 1) {
            meta.decided.drop_reason = drop_reason_t.MULTICAST_SERVICE;
        } else if (meta.parsed.is_fragment == 1) {
            meta.decided.drop_reason = drop_reason_t.FRAGMENT;
        } else if (meta.parsed.has_extension == 1) {
            meta.decided.drop_reason = drop_reason_t.EXTENSION_HEADER;
        } else if (!hdr.tcp.isValid() && !hdr.icmp.isValid()) {
            meta.decided.drop_reason = drop_reason_t.NOT_SERVED;
        } else if (hdr.icmp.isValid() && meta.parsed.quote == quote_t.NONE) {
            // A fragment has no ports, so it has no service: the lookup would read a TCP header
            // that is not there.
            meta.decided.drop_reason = drop_reason_t.ICMP_QUOTE;
        } else {
            services.apply(hdr, meta);
            if (hdr.icmp.isValid()) {
                // Any replica of a stateless service may have sent the quoted packet.
                if (meta.parsed.quote == quote_t.PLAIN && meta.service.plain != plain_t.STATELESS) {
                    meta.flow.by_flow = 1;
                }
            } else if (!hdr.option.isValid() || hdr.option.class == CLASS_SYN) {
                // An opening goes where plain TCP goes: if the replica answers it as plain TCP, the
                // client continues with that replica.
                meta.flow.by_flow = 1;
            }
            // The packet that completes a bare SYN goes by block; its flow identifies it.
            if (meta.carried.resubmits == 0 && meta.service.hit == 1
                && (meta.flow.by_flow == 1
                    || (hdr.option.class == CLASS_RESTART && hdr.continuation.nonce_epoch == 0))) {
                flow_hash.apply(meta);
            }
            if (hdr.icmp.isValid()) {
                // An error about a response of ours comes to the address that the response came
                // from.
                if (meta.service.hit == 0 || meta.flow.service_address != meta.parsed.dst) {
                    meta.decided.drop_reason = drop_reason_t.ICMP_QUOTE;
                } else if (meta.flow.by_flow == 1) {
                    meta.decided.outcome = outcome_t.ICMP_ERROR;
                } else {
                    meta.bridged.to_copies = 1;
                    meta.decided.outcome = outcome_t.ICMP_ERROR;
                    icmp_error_meter.apply(meta.service.id, above);
                    if (above == 1) {
                        meta.decided.drop_reason = drop_reason_t.ICMP_ERROR_METER;
                    }
                }
            } else if (meta.service.hit == 0) {
                meta.decided.drop_reason = drop_reason_t.NOT_SERVED;
            } else if (meta.decided.drop_reason != drop_reason_t.NONE) {
                // Not configured.
            } else if (hdr.option.isValid()) {
                meta.decided.is_request = 1;
                if (!hdr.tor_block.isValid() && hdr.option.class != CLASS_SYN) {
                    meta.decided.drop_reason = drop_reason_t.RESPONSE_CLASS;
                } else {
                    if (meta.carried.resubmits == 0) {
                        checks.apply(hdr, meta);
                    }
                    meta.decided.outcome = outcome_t.UNCHECKED;
                    if (hdr.option.class == CLASS_SYN) {
                        meta.decided.outcome = outcome_t.OPENING;
                    } else if (meta.carried.checked == 1) {
                        meta.decided.outcome = outcome_t.CHECKED;
                    }
                }
            } else {
                meta.decided.outcome = outcome_t.PLAIN_SEGMENT;
                if ((hdr.tcp.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
                    meta.decided.outcome = outcome_t.PLAIN_SYN;
                }
                if (meta.service.plain == plain_t.NONE) {
                    meta.decided.drop_reason = drop_reason_t.PLAIN_TCP_REFUSED;
                } else if (meta.service.plain == plain_t.STATELESS) {
                    cookies.apply(hdr, meta);
                }
                if (meta.decided.drop_reason == drop_reason_t.NONE && meta.flow.by_flow == 1
                    && meta.decided.outcome == outcome_t.PLAIN_SEGMENT) {
                    second_chance.apply(hdr, meta);
                }
            }
        }
    }
}

#endif

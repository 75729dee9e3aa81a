// SPDX-License-Identifier: Apache-2.0
// A packet to a service address: which service, is it let in, who gets it.
#ifndef RIVULET_SERVICE_PATH_P4
#define RIVULET_SERVICE_PATH_P4

#include "../metadata.p4"
#include "../v1model/state.p4"
#include "checks.p4"
#include "second_chance.p4"
#include "services.p4"

// Classifies, and checks Rivulet requests. Afterwards meta.drop_reason is set, or a replica is to be chosen.
control Admission(in headers_t hdr, inout metadata_t meta) {
    Services() services;
    Checks() checks;
    SecondChance() second_chance;
    IcmpErrorMeter() icmp_error_meter;
    bit<1> above;

    apply {
        if (hdr.ethernet.dst[40:40] == 1) {
            meta.drop_reason = drop_reason_t.MULTICAST_SERVICE;
        } else if (meta.is_fragment == 1) {
            meta.drop_reason = drop_reason_t.FRAGMENT;
        } else if (meta.has_extension == 1) {
            meta.drop_reason = drop_reason_t.EXTENSION_HEADER;
        } else if (!hdr.tcp.isValid() && !hdr.icmp.isValid()) {
            meta.drop_reason = drop_reason_t.NOT_SERVED;
        } else if (hdr.icmp.isValid() && meta.quote == quote_t.NONE) {
            // It names no ports, so no service: to look for one would read a TCP header that is not there.
            meta.drop_reason = drop_reason_t.ICMP_QUOTE;
        } else {
            services.apply(hdr, meta);
            if (hdr.icmp.isValid()) {
                // An error about a response of ours comes to the address that the response came from.
                if (meta.service_hit == 0 || meta.service_address != meta.dst) {
                    meta.drop_reason = drop_reason_t.ICMP_QUOTE;
                } else if (meta.quote == quote_t.PLAIN) {
                    meta.by_flow = 1;
                    meta.outcome = outcome_t.ICMP_ERROR;
                } else {
                    meta.to_copies = 1;
                    meta.outcome = outcome_t.ICMP_ERROR;
                    icmp_error_meter.apply(meta.service, above);
                    if (above == 1) {
                        meta.drop_reason = drop_reason_t.ICMP_ERROR_METER;
                    }
                }
            } else if (meta.service_hit == 0) {
                meta.drop_reason = drop_reason_t.NOT_SERVED;
            } else if (meta.drop_reason != drop_reason_t.NONE) {
                // Not configured.
            } else if (hdr.option.isValid()) {
                meta.is_request = 1;
                if (!hdr.tor_block.isValid() && hdr.option.class != CLASS_SYN) {
                    meta.drop_reason = drop_reason_t.RESPONSE_CLASS;
                } else {
                    if (meta.resubmits == 0) {
                        checks.apply(hdr, meta);
                    }
                    meta.outcome = outcome_t.UNCHECKED;
                    if (hdr.option.class == CLASS_SYN) {
                        // Where the flow hash would send it, so that a plain answer is followed by plain TCP there.
                        meta.by_flow = 1;
                        meta.outcome = outcome_t.OPENING;
                    } else if (meta.checked == 1) {
                        meta.outcome = outcome_t.CHECKED;
                    }
                }
            } else {
                meta.by_flow = 1;
                meta.outcome = outcome_t.PLAIN_SEGMENT;
                if ((hdr.tcp.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
                    meta.outcome = outcome_t.PLAIN_SYN;
                }
                if (meta.plain_tcp == 0) {
                    meta.drop_reason = drop_reason_t.PLAIN_TCP_REFUSED;
                } else if (meta.outcome == outcome_t.PLAIN_SEGMENT) {
                    second_chance.apply(hdr, meta);
                    if (meta.handed_on == 1) {
                        meta.outcome = outcome_t.HANDED_ON;
                    }
                }
            }
        }
    }
}

#endif

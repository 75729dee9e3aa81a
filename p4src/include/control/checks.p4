// SPDX-License-Identifier: Apache-2.0
// The checks of a Rivulet request, cheapest first. After it: meta.drop_reason says to drop, or meta.checked whether
// the sums are right. Applied in the first pass only; a resubmitted packet carries its verdict.
#ifndef RIVULET_CHECKS_P4
#define RIVULET_CHECKS_P4

#include "../metadata.p4"
#include "ranges.p4"
#include "replay.p4"
#include "verdict.p4"

const bit<32> KEY_TABLE_SIZE = 8192;

control Checks(in headers_t hdr, inout metadata_t meta) {
    Verdict() verdict;
    RangeForm() range_form;
    RangeSums() range_sums;
    Replay() replay;
    ServiceMeter() service_meter;
    bit<1> above;
    bit<48> age;

    // k0_prime and k1_prime are the words of K'. An epoch that is withdrawn stays a while with usable = 0.
    action set_nonce_keys(bit<32> k0, bit<32> k1, bit<32> k0_prime, bit<32> k1_prime, bit<1> usable) {
        meta.k0 = k0;
        meta.k1 = k1;
        meta.k0_prime = k0_prime;
        meta.k1_prime = k1_prime;
        meta.key_known = 1;
        meta.key_usable = usable;
    }

    action no_key() {
        meta.key_known = 0;
    }

    table nonce_keys {
        key = {
            meta.service                 : exact @name("service");
            hdr.continuation.nonce_epoch : exact @name("nonce_epoch");
        }
        actions = { set_nonce_keys; no_key; }
        const default_action = no_key;
        size = KEY_TABLE_SIZE;
    }

    apply {
        if (hdr.continuation.isValid()) {
            // Key epoch. A RESTART shows no sum: it is the way out when its epoch is gone, and what completes a bare SYN
            // has none yet (epoch 0). The host judges its seal, or its cookie.
            nonce_keys.apply();
            if (hdr.option.class == CLASS_RESTART) {
                meta.failed = drop_reason_t.NONE;
            } else if (meta.key_known == 0) {
                meta.failed = drop_reason_t.KEY_UNKNOWN;
            } else if (meta.key_usable == 0) {
                meta.failed = drop_reason_t.KEY_NOT_USABLE;
            }
            meta.mode = meta.key_mode;
            verdict.apply(meta);

            // Freshness. A RESTART may be of any age.
            if (meta.drop_reason == drop_reason_t.NONE) {
                if (meta.time_valid == 0) {
                    meta.unjudged = drop_reason_t.UNJUDGED_CLOCK;
                } else if (hdr.option.class != CLASS_RESTART) {
                    age = meta.clock - hdr.continuation.time;
                    if (age[47:47] == 1) {
                        if (hdr.continuation.time - meta.clock > CLOCK_AGREEMENT) {
                            meta.failed = drop_reason_t.FUTURE;
                        }
                    } else if (age > (bit<48>)meta.horizon) {
                        meta.failed = drop_reason_t.STALE;
                    }
                }
                meta.mode = meta.time_mode;
                verdict.apply(meta);
            }

            // Form of the proof.
            if (meta.drop_reason == drop_reason_t.NONE) {
                range_form.apply(hdr, meta);
                meta.mode = meta.range_mode;
                verdict.apply(meta);
            }

            // Sums.
            if (meta.drop_reason == drop_reason_t.NONE && meta.has_ranges == 1) {
                if (meta.ranges_unseen == 1) {
                    meta.unjudged = drop_reason_t.UNJUDGED_RANGES;
                } else if (meta.sum_mode != check_mode_t.OFF && meta.key_known == 1) {
                    range_sums.apply(hdr, meta);
                    meta.mode = meta.sum_mode;
                    verdict.apply(meta);
                }
            }
        }

        // What carries little or no proof is metered; what carries none has a sketch of its own.
        if (meta.has_ranges == 0) {
            meta.opening = 1;
        }
        if (meta.drop_reason == drop_reason_t.NONE
            && (meta.opening == 1 || hdr.option.class == CLASS_TIMEOUT)) {
            above = 0;
            if (hdr.option.class == CLASS_SYN) {
                service_meter.apply(meta.service, service_meter_t.SYN, above);
                meta.failed = drop_reason_t.METER_SYN;
            } else if (hdr.option.class == CLASS_RESTART) {
                service_meter.apply(meta.service, service_meter_t.RESTART, above);
                meta.failed = drop_reason_t.METER_RESTART;
            } else {
                service_meter.apply(meta.service, service_meter_t.TIMEOUT, above);
                meta.failed = drop_reason_t.METER_TIMEOUT;
            }
            if (above == 0) {
                meta.failed = drop_reason_t.NONE;
            }
            meta.mode = meta.meter_mode;
            verdict.apply(meta);
        }

        // One use per number. Only what was proved, or what cannot be, is counted.
        if (meta.drop_reason == drop_reason_t.NONE && meta.replay_mode != check_mode_t.OFF
            && (meta.sums_right == 1 || meta.opening == 1)) {
            replay.apply(hdr, meta);
            meta.mode = meta.replay_mode;
            verdict.apply(meta);
        }

        if (meta.drop_reason == drop_reason_t.NONE && meta.unjudged != drop_reason_t.NONE) {
            // Without a clock the host judges freshness, whatever the service says.
            meta.failed = meta.unjudged;
            meta.mode = check_mode_t.COUNT;
            if (meta.drop_unjudged == 1 && meta.unjudged != drop_reason_t.UNJUDGED_CLOCK) {
                meta.mode = check_mode_t.ENFORCE;
            }
            verdict.apply(meta);
        }

        meta.checked = 0;
        if (meta.sums_right == 1 && meta.suspect == 0) {
            meta.checked = 1;
        }
    }
}

#endif

// SPDX-License-Identifier: Apache-2.0
// The checks of a Rivulet request, cheapest first. Result: decided.drop_reason is set, or
// carried.checked is 1 where the nonce sums are right. Applied in the first pass only; a
// resubmitted packet carries its verdict.
#ifndef RIVULET_CHECKS_P4
#define RIVULET_CHECKS_P4

#include "../metadata.p4"
#include "../control/ranges.p4"
#include "../control/replay.p4"
#include "../control/verdict.p4"

const bit<32> KEY_TABLE_SIZE = 8192;

control Checks(in headers_t hdr, inout metadata_t meta) {
    Verdict() verdict;
    RangeForm() range_form;
    RangeSums() range_sums;
    Replay() replay;
    ServiceMeter() service_meter;
    bit<1> above;
    bit<48> age;
    service_meter_t cell;        // the meter of this class
    drop_reason_t   above_rate;  // drop reason above that meter's rate

    // k0_prime and k1_prime are the words of K'. A withdrawn epoch keeps its entry for a while,
    // with usable = 0.
    @id(0x01000016)
    action set_nonce_keys(@secret bit<32> k0, @secret bit<32> k1, @secret bit<32> k0_prime, @secret bit<32> k1_prime, bit<1> usable) {
        meta.keys.k0 = k0;
        meta.keys.k1 = k1;
        meta.keys.k0_prime = k0_prime;
        meta.keys.k1_prime = k1_prime;
        meta.keys.known = 1;
        meta.keys.usable = usable;
    }

    @id(0x01000017)
    action no_key() {
        meta.keys.known = 0;
    }

    // K and K' of a nonce epoch.
    @id(0x0200000b)
    table nonce_keys {
        key = {
            meta.service.id                 : exact @name("service") @refers_to(service_config, service);
            hdr.continuation.nonce_epoch : exact @name("nonce_epoch");
        }
        actions = { set_nonce_keys; no_key; }
        const default_action = no_key;
        size = KEY_TABLE_SIZE;
    }

    @id(0x01000018)
    action meter_as(service_meter_t kind, drop_reason_t reason) {
        cell = kind;
        above_rate = reason;
    }

    // The meter of each class of request. Classes have separate meters, so that a flood of one does
    // not starve the others.
    @id(0x0200000c)
    table metered_classes {
        key = {
            hdr.option.class         : ternary @name("class");
            meta.proof.has_ranges    : ternary @name("has_ranges");
            meta.proof.ranges_unseen : ternary @name("ranges_unseen");
        }
        actions = { meter_as; }
        const default_action = meter_as(service_meter_t.UNPROVED, drop_reason_t.METER_UNPROVED);
        const entries = {
            (_, _, 1)             : meter_as(service_meter_t.RANGES, drop_reason_t.METER_RANGES);
            (CLASS_SYN, _, _)     : meter_as(service_meter_t.SYN, drop_reason_t.METER_SYN);
            (CLASS_RESTART, _, _) : meter_as(service_meter_t.RESTART, drop_reason_t.METER_RESTART);
            (CLASS_TIMEOUT, 1, _) : meter_as(service_meter_t.TIMEOUT, drop_reason_t.METER_TIMEOUT);
        }
    }

    apply {
        if (hdr.continuation.isValid()) {
            // Key epoch. A RESTART carries no sum, because a client sends it when its key epoch has
            // expired. The packet that completes a bare SYN has no epoch yet (0). The host checks
            // their seal or cookie.
            nonce_keys.apply();
            if (hdr.option.class == CLASS_RESTART) {
                meta.verdict.failed = drop_reason_t.NONE;
            } else if (meta.keys.known == 0) {
                meta.verdict.failed = drop_reason_t.KEY_UNKNOWN;
            } else if (meta.keys.usable == 0) {
                meta.verdict.failed = drop_reason_t.KEY_NOT_USABLE;
            }
            meta.verdict.mode = meta.checks.key_mode;
            verdict.apply(meta);

            // Freshness. A RESTART may be of any age.
            if (meta.decided.drop_reason == drop_reason_t.NONE) {
                if (meta.bridged.time_valid == 0) {
                    meta.verdict.unjudged = drop_reason_t.UNJUDGED_CLOCK;
                } else if (hdr.option.class != CLASS_RESTART) {
                    age = meta.bridged.clock - hdr.continuation.time;
                    if (age[47:47] == 1) {
                        if (hdr.continuation.time - meta.bridged.clock > CLOCK_AGREEMENT) {
                            meta.verdict.failed = drop_reason_t.FUTURE;
                        }
                    } else if (age > (bit<48>)meta.checks.horizon) {
                        meta.verdict.failed = drop_reason_t.STALE;
                    }
                }
                meta.verdict.mode = meta.checks.time_mode;
                verdict.apply(meta);
            }

            // Form of the proof.
            if (meta.decided.drop_reason == drop_reason_t.NONE) {
                range_form.apply(hdr, meta);
                meta.verdict.mode = meta.checks.range_mode;
                verdict.apply(meta);
            }

            // Sums.
            if (meta.decided.drop_reason == drop_reason_t.NONE && meta.proof.has_ranges == 1) {
                // The ranges that were parsed are checked all the same.
                if (meta.proof.ranges_unseen == 1) {
                    meta.verdict.unjudged = drop_reason_t.UNJUDGED_RANGES;
                }
                if (meta.checks.sum_mode != check_mode_t.OFF && meta.keys.known == 1) {
                    range_sums.apply(hdr, meta);
                    meta.verdict.mode = meta.checks.sum_mode;
                    verdict.apply(meta);
                }
            }
        }

        // Requests without a proof, or with more ranges than are parsed, are metered. Those without
        // a proof use a separate sketch.
        if (meta.proof.has_ranges == 0 || meta.proof.beyond == 1) {
            meta.proof.opening = 1;
        }
        if (meta.decided.drop_reason == drop_reason_t.NONE
            && (meta.proof.opening == 1 || meta.proof.ranges_unseen == 1 || hdr.option.class == CLASS_TIMEOUT)) {
            metered_classes.apply();
            service_meter.apply(meta.service.id, cell, above);
            if (above == 1) {
                meta.verdict.failed = above_rate;
            }
            meta.verdict.mode = meta.checks.meter_mode;
            verdict.apply(meta);
        }

        // One use per number. Counts requests with a right proof, and those of classes that carry
        // none.
        if (meta.decided.drop_reason == drop_reason_t.NONE && meta.checks.replay_mode != check_mode_t.OFF
            && (meta.proof.sums_right == 1 || meta.proof.opening == 1)) {
            replay.apply(hdr, meta);
            meta.verdict.mode = meta.checks.replay_mode;
            verdict.apply(meta);
        }

        if (meta.decided.drop_reason == drop_reason_t.NONE && meta.verdict.unjudged != drop_reason_t.NONE) {
            // Without a clock the host checks freshness, also where the service has this check
            // enforced.
            meta.verdict.failed = meta.verdict.unjudged;
            meta.verdict.mode = check_mode_t.COUNT;
            if (meta.checks.drop_unjudged == 1 && meta.verdict.unjudged != drop_reason_t.UNJUDGED_CLOCK) {
                meta.verdict.mode = check_mode_t.ENFORCE;
            }
            verdict.apply(meta);
        }

        meta.carried.checked = 0;
        if (meta.proof.sums_right == 1 && meta.verdict.suspect == 0) {
            meta.carried.checked = 1;
        }
    }
}

#endif

// SPDX-License-Identifier: Apache-2.0
// The proof: its form, then its sums.
#ifndef RIVULET_RANGES_P4
#define RIVULET_RANGES_P4

#include "../metadata.p4"
#include "half_sip_hash.p4"

// One entry of the proof against the range before it. Sets meta.verdict.failed; advances
// meta.proof.range_end.
control EntryForm(inout metadata_t meta, in entry_h entry, in bit<2> kind, in bit<1> is_first) {
    apply {
        if (kind[1:1] == 0) {
            if (entry.first > entry.last || (is_first == 0 && (bit<32>)entry.first <= meta.proof.range_end)) {
                meta.verdict.failed = drop_reason_t.RANGE_ORDER;
            }
            meta.proof.range_end = (bit<32>)entry.last;
            meta.proof.has_ranges = 1;
        } else if (entry.sum != 0 || (kind == entry_kind_t.MARK && entry.first != entry.last)
                   || (kind == entry_kind_t.EXCUSE && entry.last != 0)) {
            meta.verdict.failed = drop_reason_t.ENTRY_FORM;
        }
    }
}

// Ranges ascend and are disjoint, marks and excuses have only their allowed fields, and the proof
// of a request that answers a packet reaches that packet. (Otherwise an observer of an old proof
// could use up future numbers.)
control RangeForm(in headers_t hdr, inout metadata_t meta) {
    EntryForm() entry_form;

    apply {
        if (hdr.entry0.isValid()) {
            entry_form.apply(meta, hdr.entry0, hdr.proof.range_kinds[31:30], 1);
        }
        if (hdr.entry1.isValid()) {
            entry_form.apply(meta, hdr.entry1, hdr.proof.range_kinds[29:28], 0);
        }
        if (hdr.entry2.isValid()) {
            entry_form.apply(meta, hdr.entry2, hdr.proof.range_kinds[27:26], 0);
        }
        if (hdr.entry3.isValid()) {
            entry_form.apply(meta, hdr.entry3, hdr.proof.range_kinds[25:24], 0);
        }
        if (hdr.proof.range_count > RANGES_SEEN && hdr.proof.range_kinds[23:23] == 0) {
            meta.proof.ranges_unseen = 1;
        }
        if (meta.verdict.failed == drop_reason_t.NONE
            && (hdr.option.class == CLASS_NORMAL || hdr.option.class == CLASS_PROBE
                || hdr.option.class == CLASS_REKEY)) {
            if (meta.proof.has_ranges == 0) {
                meta.verdict.failed = drop_reason_t.RANGE_MISSING;
            } else if (hdr.continuation.number - hdr.continuation.base > meta.proof.range_end) {
                // A range that was not parsed may reach it, since numbers go to 2^16 above the
                // base.
                if (meta.proof.ranges_unseen == 1 && hdr.continuation.number - hdr.continuation.base <= 0xffff) {
                    meta.proof.beyond = 1;
                } else {
                    meta.verdict.failed = drop_reason_t.RANGE_COVER;
                }
            }
        }
    }
}

// r(base + first) ^ r(base + last + 1) against the sum: two hashes.
control EntrySum(inout metadata_t meta, in entry_h entry, in bit<2> kind, in bit<32> base) {
    NonceNumber() nonce_number;

    @hidden action start() {
        meta.hash.v0 = meta.nonce.original.v0;
        meta.hash.v1 = meta.nonce.original.v1;
        meta.hash.v2 = meta.nonce.original.v2;
        meta.hash.v3 = meta.nonce.original.v3;
    }

    @hidden action start_prime() {
        meta.hash.v0 = meta.nonce.retransmitted.v0;
        meta.hash.v1 = meta.nonce.retransmitted.v1;
        meta.hash.v2 = meta.nonce.retransmitted.v2;
        meta.hash.v3 = meta.nonce.retransmitted.v3;
    }

    @hidden action keep() {
        meta.nonce.first = meta.hash.result;
    }

    apply {
        if (kind == entry_kind_t.ORIGINAL) {
            start();
        } else {
            start_prime();
        }
        nonce_number.apply(meta, base + (bit<32>)entry.first);
        keep();
        if (kind == entry_kind_t.ORIGINAL) {
            start();
        } else {
            start_prime();
        }
        nonce_number.apply(meta, base + (bit<32>)entry.last + 1);
        if (meta.nonce.first ^ meta.hash.result != entry.sum) {
            meta.verdict.failed = drop_reason_t.SUM;
        }
    }
}

// All sums of up to four ranges: 8 hashes at most. Stops at the first wrong one.
control RangeSums(in headers_t hdr, inout metadata_t meta) {
    NonceTag() nonce_tag;
    EntrySum() entry_sum;

    @hidden action keep_original() {
        meta.nonce.original.v0 = meta.hash.v0;
        meta.nonce.original.v1 = meta.hash.v1;
        meta.nonce.original.v2 = meta.hash.v2;
        meta.nonce.original.v3 = meta.hash.v3;
    }

    @hidden action keep_retransmitted() {
        meta.nonce.retransmitted.v0 = meta.hash.v0;
        meta.nonce.retransmitted.v1 = meta.hash.v1;
        meta.nonce.retransmitted.v2 = meta.hash.v2;
        meta.nonce.retransmitted.v3 = meta.hash.v3;
    }

    apply {
        nonce_tag.apply(meta, meta.keys.k0, meta.keys.k1, hdr.continuation.tag);
        keep_original();
        // Kind 1 somewhere: low bit set, high bit not.
        if ((~(hdr.proof.range_kinds >> 1) & hdr.proof.range_kinds & 0x55555555) != 0) {
            nonce_tag.apply(meta, meta.keys.k0_prime, meta.keys.k1_prime, hdr.continuation.tag);
            keep_retransmitted();
        }
        if (hdr.entry0.isValid() && hdr.proof.range_kinds[31:31] == 0) {
            entry_sum.apply(meta, hdr.entry0, hdr.proof.range_kinds[31:30], hdr.continuation.base);
        }
        if (meta.verdict.failed == drop_reason_t.NONE && hdr.entry1.isValid() && hdr.proof.range_kinds[29:29] == 0) {
            entry_sum.apply(meta, hdr.entry1, hdr.proof.range_kinds[29:28], hdr.continuation.base);
        }
        if (meta.verdict.failed == drop_reason_t.NONE && hdr.entry2.isValid() && hdr.proof.range_kinds[27:27] == 0) {
            entry_sum.apply(meta, hdr.entry2, hdr.proof.range_kinds[27:26], hdr.continuation.base);
        }
        if (meta.verdict.failed == drop_reason_t.NONE && hdr.entry3.isValid() && hdr.proof.range_kinds[25:25] == 0) {
            entry_sum.apply(meta, hdr.entry3, hdr.proof.range_kinds[25:24], hdr.continuation.base);
        }
        if (meta.verdict.failed == drop_reason_t.NONE) {
            meta.proof.sums_right = 1;
        }
    }
}

#endif

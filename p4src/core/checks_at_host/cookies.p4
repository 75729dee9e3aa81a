// SPDX-License-Identifier: Apache-2.0
// Plain TCP to a stateless service without cookies at the ToR (docs/plain.md): replicas answer SYNs
// and check what clients acknowledge. The ToR meters each client and sets how the replica is chosen.
#ifndef RIVULET_HOST_COOKIES_P4
#define RIVULET_HOST_COOKIES_P4

#include "../metadata.p4"
#include <state.p4>

// Kind of a timestamp, its bits 23 and 22: answers of up to 15 kB, and sockets of a replica's
// kernel; between them large answers.
const bit<2> STAMP_SMALL  = 0;
const bit<2> STAMP_KERNEL = 3;

// Sets decided.drop_reason, or flow.by_flow and flow.by_block. The same segments go by flow as with
// cookies at the ToR (../checks_at_tor/cookies.p4).
control Cookies(in headers_t hdr, inout metadata_t meta) {
    PlainMeter() plain_meter;
    bit<1> above;

    apply {
        if (meta.decided.outcome == outcome_t.PLAIN_SEGMENT && hdr.stamps.isValid()
            && (hdr.tcp.flags & TCP_RST) == 0 && hdr.stamps.echo[23:22] != STAMP_KERNEL
            && (hdr.stamps.echo[23:22] != STAMP_SMALL || hdr.stamps.echo[31:24] != 0)) {
            meta.flow.by_flow = 0;
            if (hdr.stamps.echo[23:22] != STAMP_SMALL) {
                meta.flow.by_block = 1;
                // The first byte of the answer is not known here, so blocks begin at multiples of
                // their size in the sequence space.
                meta.cookie.distance = hdr.tcp.acknowledgement;
            }
        }
        if (meta.carried.resubmits == 0) {
            plain_meter.apply(meta.flow.client_cell, above);
            if (above == 1) {
                meta.decided.drop_reason = drop_reason_t.METER_PLAIN;
            }
        }
    }
}

// No SYN is answered by the ToR.
control CookieRewrite(inout headers_t hdr, in bridged_t bridged, inout written_t written) {
    apply { }
}

#endif

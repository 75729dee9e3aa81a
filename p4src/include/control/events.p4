// SPDX-License-Identifier: Apache-2.0
// The one digest, at most one a pass, at the end of ingress. What a packet can cause at will is metered; exclusion,
// return and readmission are not, and come before it. A digest is a hint, the counters are the truth.
#ifndef RIVULET_EVENTS_P4
#define RIVULET_EVENTS_P4

#include "../metadata.p4"
#include "../v1model/state.p4"

control Events(inout metadata_t meta) {
    EventMeter() event_meter;
    EventSequence() event_sequence;
    SendEvent() send_event;
    bit<1> above;

    apply {
        above = 0;
        if (meta.event_kind != event_kind_t.EXCLUDED && meta.event_kind != event_kind_t.RETURNED
            && meta.event_kind != event_kind_t.READMITTED) {
            if (meta.drop_reason == drop_reason_t.NO_REPLICA) {
                meta.event_kind = event_kind_t.NO_REPLICA;
                meta.event.pool = 6w0 ++ meta.pool;
            } else if ((bit<8>)meta.drop_reason >= (bit<8>)drop_reason_t.KEY_UNKNOWN
                       && (bit<8>)meta.drop_reason <= (bit<8>)drop_reason_t.METER_RESTART) {
                meta.event_kind = event_kind_t.CHECK_FAILED;
            } else if (meta.unjudged != drop_reason_t.NONE) {
                meta.event_kind = event_kind_t.UNJUDGED;
            }
            if (meta.event_kind != event_kind_t.NONE) {
                event_meter.apply(meta.event_kind, above);
            }
        }
        if (meta.event_kind != event_kind_t.NONE && above == 0) {
            meta.event.reason = (bit<8>)meta.drop_reason;
            if (meta.drop_reason == drop_reason_t.NONE) {
                meta.event.reason = (bit<8>)meta.unjudged;
            }
            event_sequence.apply(meta.event.sequence);
            meta.event.clock = meta.clock;
            meta.event.kind = (bit<8>)meta.event_kind;
            send_event.apply(meta.event, meta.event_kind);
        }
    }
}

#endif

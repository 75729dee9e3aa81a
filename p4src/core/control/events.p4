// SPDX-License-Identifier: Apache-2.0
// The digest: at most one a pass, at the end of ingress. Events that a sender can cause at will are
// metered. Exclusions, returns and readmissions are not metered and have priority. Digests can be
// lost; the counters are exact.
#ifndef RIVULET_EVENTS_P4
#define RIVULET_EVENTS_P4

#include "../metadata.p4"
#include <state.p4>

control Events(inout metadata_t meta) {
    EventMeter() event_meter;
    EventSequence() event_sequence;
    SendEvent() send_event;
    bit<1> above;

    apply {
        above = 0;
        if (meta.decided.event_kind != event_kind_t.EXCLUDED && meta.decided.event_kind != event_kind_t.RETURNED
            && meta.decided.event_kind != event_kind_t.READMITTED) {
            if (meta.decided.drop_reason == drop_reason_t.NO_REPLICA) {
                meta.decided.event_kind = event_kind_t.NO_REPLICA;
                meta.event.pool = 6w0 ++ meta.bridged.pool;
            } else if (((bit<8>)meta.decided.drop_reason >= (bit<8>)drop_reason_t.KEY_UNKNOWN
                        && (bit<8>)meta.decided.drop_reason <= (bit<8>)drop_reason_t.METER_RESTART)
                       || meta.decided.drop_reason == drop_reason_t.METER_UNPROVED
                       || meta.decided.drop_reason == drop_reason_t.METER_RANGES
                       || meta.decided.drop_reason == drop_reason_t.COOKIE
                       || meta.decided.drop_reason == drop_reason_t.METER_PLAIN
                       || meta.decided.drop_reason == drop_reason_t.METER_UNCOOKIED
                       || ((bit<8>)meta.decided.drop_reason >= (bit<8>)drop_reason_t.HEARTBEAT_KEY
                           && (bit<8>)meta.decided.drop_reason <= (bit<8>)drop_reason_t.HEARTBEAT_REPLAY)) {
                meta.decided.event_kind = event_kind_t.CHECK_FAILED;
            } else if (meta.verdict.unjudged != drop_reason_t.NONE) {
                meta.decided.event_kind = event_kind_t.UNJUDGED;
            }
            if (meta.decided.event_kind != event_kind_t.NONE) {
                event_meter.apply(meta.decided.event_kind, above);
            }
        }
        if (meta.decided.event_kind != event_kind_t.NONE && above == 0) {
            meta.event.reason = (bit<8>)meta.decided.drop_reason;
            if (meta.decided.drop_reason == drop_reason_t.NONE) {
                meta.event.reason = (bit<8>)meta.verdict.unjudged;
            }
            event_sequence.apply(meta.event.sequence);
            meta.event.clock = meta.bridged.clock;
            meta.event.kind = (bit<8>)meta.decided.event_kind;
            send_event.apply(meta.event);
        }
    }
}

#endif

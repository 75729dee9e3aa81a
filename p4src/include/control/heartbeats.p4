// SPDX-License-Identifier: Apache-2.0
// Which heartbeats are believed: those from the port and the source of that replica.
#ifndef RIVULET_HEARTBEATS_P4
#define RIVULET_HEARTBEATS_P4

#include "../metadata.p4"
#include "../v1model/state.p4"

const bit<32> HEARTBEAT_TABLE_SIZE = 8192;

control Heartbeats(in headers_t hdr, inout metadata_t meta) {
    HeartbeatCounter() heartbeat_counter;
    bit<1> remote;
    bit<128> source;
    bit<1> ready;

    // readmitted: after how many exclusions, modulo 2^16, the controller lets the replica take plain TCP again.
    action admit_heartbeat(bit<16> readmitted) {
        meta.admitted = 1;
        meta.readmitted = readmitted;
    }

    action refuse_heartbeat() {
        meta.drop_reason = drop_reason_t.HEARTBEAT_REFUSED;
    }

    table heartbeat_sources {
        key = {
            hdr.heartbeat.pool    : exact @name("pool");
            hdr.heartbeat.replica : exact @name("replica");
            meta.ingress_port     : exact @name("ingress_port");
            remote                : exact @name("remote");
            source                : exact @name("source");
        }
        actions = { admit_heartbeat; refuse_heartbeat; }
        const default_action = refuse_heartbeat;
        size = HEARTBEAT_TABLE_SIZE;
    }

    apply {
        remote = 0;
        source = 80w0 ++ hdr.ethernet.src;
        if (hdr.udp.isValid()) {
            remote = 1;
            source = meta.src;
        }
        heartbeat_sources.apply();
        if (hdr.heartbeat.version != HEARTBEAT_VERSION || (hdr.heartbeat.flags & ~HEARTBEAT_FLAG_READY) != 0
            || hdr.heartbeat.replica >= 64 || hdr.heartbeat.reserved != 0) {
            meta.admitted = 0;
            meta.drop_reason = drop_reason_t.HEARTBEAT_FORM;
        }
        if (meta.admitted == 1) {
            meta.pool = hdr.heartbeat.pool[9:0];
            meta.replica = hdr.heartbeat.replica[5:0];
            ready = 0;
            if ((hdr.heartbeat.flags & HEARTBEAT_FLAG_READY) != 0) {
                ready = 1;
            }
            heartbeat_counter.apply(meta.pool ++ meta.replica, ready);
            // Not ready is as good as silent.
            meta.heartbeat_ready = ready;
        }
    }
}

#endif

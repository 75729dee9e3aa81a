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
    @id(0x0100000e)
    action admit_heartbeat(bit<16> readmitted) {
        meta.heartbeat.admitted = 1;
        meta.heartbeat.readmitted = readmitted;
    }

    @id(0x0100000f)
    action refuse_heartbeat(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // Where each replica's heartbeats come from.
    @id(0x02000007)
    table heartbeat_sources {
        key = {
            hdr.heartbeat.pool    : exact @name("pool");
            hdr.heartbeat.replica : exact @name("replica");
            meta.carried.ingress_port     : exact @name("ingress_port");
            remote                : exact @name("remote");
            source                : exact @name("source");
        }
        actions = { admit_heartbeat; @defaultonly refuse_heartbeat; }
        const default_action = refuse_heartbeat(drop_reason_t.HEARTBEAT_REFUSED);
        size = HEARTBEAT_TABLE_SIZE;
    }

    apply {
        remote = 0;
        source = 80w0 ++ hdr.ethernet.src;
        if (hdr.udp.isValid()) {
            remote = 1;
            source = meta.parsed.src;
        }
        heartbeat_sources.apply();
        if (hdr.heartbeat.version != HEARTBEAT_VERSION || (hdr.heartbeat.flags & ~HEARTBEAT_FLAG_READY) != 0
            || hdr.heartbeat.replica >= 64 || hdr.heartbeat.reserved != 0) {
            meta.heartbeat.admitted = 0;
            meta.decided.drop_reason = drop_reason_t.HEARTBEAT_FORM;
        }
        if (meta.heartbeat.admitted == 1) {
            meta.bridged.pool = hdr.heartbeat.pool[9:0];
            meta.bridged.replica = hdr.heartbeat.replica[5:0];
            ready = 0;
            if ((hdr.heartbeat.flags & HEARTBEAT_FLAG_READY) != 0) {
                ready = 1;
            }
            heartbeat_counter.apply(meta.bridged.pool ++ meta.bridged.replica, ready);
            // Not ready is as good as silent.
            meta.heartbeat.ready = ready;
        }
    }
}

#endif

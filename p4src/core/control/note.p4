// SPDX-License-Identifier: Apache-2.0
// Records an admitted heartbeat. Only ready ones count: a member that is not ready is treated as
// one without heartbeats. The register keeps the times of the last two, so the third is recognised
// without a counter.
#ifndef RIVULET_NOTE_P4
#define RIVULET_NOTE_P4

#include "../metadata.p4"
#include <state.p4>

control Note(in headers_t hdr, inout metadata_t meta) {
    Hear() hear;
    SetLoad() set_load;
    member_id_t    member;
    microseconds_t last;
    microseconds_t before_last;

    apply {
        member = meta.bridged.pool ++ meta.bridged.replica;
        hear.apply(member, meta.carried.now, meta.heartbeat.ready, last, before_last);
        set_load.apply(member, hdr.heartbeat.load);
        if (meta.heartbeat.ready == 1 && before_last != 0
            && meta.carried.now - before_last <= (bit<48>)meta.pool.bound) {
            meta.heartbeat.third = 1;
        }
    }
}

#endif

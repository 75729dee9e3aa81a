// SPDX-License-Identifier: Apache-2.0
// What a failed check means in its mode.
#ifndef RIVULET_VERDICT_P4
#define RIVULET_VERDICT_P4

#include "../metadata.p4"
#include "../v1model/state.p4"

// Reads meta.failed and meta.mode; clears meta.failed. ENFORCE drops, COUNT counts and clears the mark.
control Verdict(inout metadata_t meta) {
    SuspectCounter() suspect_counter;

    apply {
        if (meta.failed != drop_reason_t.NONE) {
            if (meta.mode == check_mode_t.ENFORCE) {
                meta.drop_reason = meta.failed;
            } else if (meta.mode == check_mode_t.COUNT) {
                meta.suspect = 1;
                suspect_counter.apply(meta.failed);
            }
            meta.failed = drop_reason_t.NONE;
        }
    }
}

#endif

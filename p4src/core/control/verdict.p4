// SPDX-License-Identifier: Apache-2.0
// What a failed check means in its mode.
#ifndef RIVULET_VERDICT_P4
#define RIVULET_VERDICT_P4

#include "../metadata.p4"
#include <state.p4>

// Reads verdict.failed and verdict.mode; clears verdict.failed. ENFORCE drops, COUNT counts and
// clears the mark.
control Verdict(inout metadata_t meta) {
    SuspectCounter() suspect_counter;

    apply {
        if (meta.verdict.failed != drop_reason_t.NONE) {
            if (meta.verdict.mode == check_mode_t.ENFORCE) {
                meta.decided.drop_reason = meta.verdict.failed;
            } else if (meta.verdict.mode == check_mode_t.COUNT) {
                meta.verdict.suspect = 1;
                suspect_counter.apply(meta.verdict.failed);
            }
            meta.verdict.failed = drop_reason_t.NONE;
        }
    }
}

#endif

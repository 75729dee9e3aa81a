// SPDX-License-Identifier: Apache-2.0
// One member of a set by its rank: no loop, no division. Partial sums count the members of every 2,
// 4, 8, 16 and 32 places; the rank then halves its way down to one place. Sums are fields of the
// metadata: over local variables p4c's copy propagation grows without bound. Hardware takes a table
// of 64 entries for each shift by a variable.
#ifndef RIVULET_RANK_P4
#define RIVULET_RANK_P4

#include "../metadata.p4"

// share: a number that is even over all 2^16; the member at `share` of the way through the set.
control MemberAt(inout metadata_t meta, in member_set_t members, in bit<16> share, out replica_id_t member) {
    bit<32> scaled;
    bit<7>  rank;   // members before the wanted one in the remaining half
    bit<7>  below;  // members of its lower half
    bit<6>  place;

    @hidden action count() {
        meta.sums.of2 = members - ((members >> 1) & 0x5555555555555555);
        meta.sums.of4 = (meta.sums.of2 & 0x3333333333333333) + ((meta.sums.of2 >> 2) & 0x3333333333333333);
        meta.sums.of8 = (meta.sums.of4 + (meta.sums.of4 >> 4)) & 0x0f0f0f0f0f0f0f0f;
        meta.sums.of16 = (meta.sums.of8 + (meta.sums.of8 >> 8)) & 0x00ff00ff00ff00ff;
        meta.sums.of32 = (meta.sums.of16 + (meta.sums.of16 >> 16)) & 0x0000ffff0000ffff;
    }

    apply {
        count();
        scaled = (16w0 ++ share) * (25w0 ++ (meta.sums.of32[6:0] + meta.sums.of32[38:32]));
        rank = 1w0 ++ scaled[21:16];
        place = 0;
        below = meta.sums.of32[6:0];
        if (rank >= below) {
            rank = rank - below;
            place = 32;
        }
        below = (meta.sums.of16 >> (bit<8>)place)[6:0];
        if (rank >= below) {
            rank = rank - below;
            place = place + 16;
        }
        below = (meta.sums.of8 >> (bit<8>)place)[6:0];
        if (rank >= below) {
            rank = rank - below;
            place = place + 8;
        }
        below = 3w0 ++ (meta.sums.of4 >> (bit<8>)place)[3:0];
        if (rank >= below) {
            rank = rank - below;
            place = place + 4;
        }
        below = 5w0 ++ (meta.sums.of2 >> (bit<8>)place)[1:0];
        if (rank >= below) {
            rank = rank - below;
            place = place + 2;
        }
        below = 6w0 ++ (members >> (bit<8>)place)[0:0];
        if (rank >= below) {
            place = place + 1;
        }
        member = place;
    }
}

#endif

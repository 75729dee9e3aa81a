// SPDX-License-Identifier: Apache-2.0
// One use per response number (transport.md calls it the replay defence): a sketch of counts for
// this slot of time and the one before; nothing is ever cleared. Proved requests and openings have
// separate sketches, so that requests without a proof cannot fill the sketch of proved ones.
//
// A key that was never used is taken for a used one if it finds all six rows set by others. A slot
// takes `limit` keys and no more: then at most `limit` cells of a row are set under any load, and
// the odds stay below 2 (limit / cells)^6 for the two slots. A key that arrives when a slot is full
// is not inserted. It passes unjudged unless it is known as used, in this slot and in the next,
// which cannot know the keys that were not inserted.
//
// 6 register accesses, 2 of the load and one hash of 10 rounds a packet. Hardware: a stateful ALU
// cannot shift by a variable, so there a cell is a word and a slot a register: 12 accesses. The
// second access to the load costs one pass for each inserted key, or one for each slot if the
// packet that fills a slot closes it by a resubmission.
#ifndef RIVULET_REPLAY_P4
#define RIVULET_REPLAY_P4

#include "../metadata.p4"
#include <state.p4>
#include "half_sip_hash.p4"

// Words of a row, eight cells each. The limits that the controller sets are an eighth of the cells.
const bit<32> REPLAY_WORDS  = 262144;
const bit<32> OPENING_WORDS = 32768;

// The smaller of each pair.
control Least(in bit<8> current, in bit<8> previous, inout bit<8> current_uses, inout bit<8> previous_uses) {
    apply {
        if (current < current_uses) {
            current_uses = current;
        }
        if (previous < previous_uses) {
            previous_uses = previous;
        }
    }
}

// `uses`: how often this key was inserted, never too low. The six rows take their 18 and 3 bits
// from the four words of the hash, no bit twice. `mask`: words of a row in use, minus one.
control ReplaySketch(in bit<128> index, in bit<18> mask, in bit<24> slot, in bit<32> limit,
                     out bit<8> uses, out bit<1> judged)(bit<32> words) {
    SketchLoad() sketch_load;
    SketchRow(words) row0;
    SketchRow(words) row1;
    SketchRow(words) row2;
    SketchRow(words) row3;
    SketchRow(words) row4;
    SketchRow(words) row5;
    Least() least;
    bit<8> count;
    bit<8> previous;
    bit<8> current_uses;
    bit<8> previous_uses;
    bit<1> full;
    bit<1> full_before;
    bit<1> put;

    apply {
        sketch_load.apply(slot, 0, limit, full, full_before);
        judged = ~(full | full_before);
        put = ~full;
        row0.apply(index[17:0] & mask, index[20:18], slot[15:0], put, current_uses, previous_uses);
        row1.apply(index[38:21] & mask, index[41:39], slot[15:0], put, count, previous);
        least.apply(count, previous, current_uses, previous_uses);
        row2.apply(index[59:42] & mask, index[62:60], slot[15:0], put, count, previous);
        least.apply(count, previous, current_uses, previous_uses);
        row3.apply(index[80:63] & mask, index[83:81], slot[15:0], put, count, previous);
        least.apply(count, previous, current_uses, previous_uses);
        row4.apply(index[101:84] & mask, index[104:102], slot[15:0], put, count, previous);
        least.apply(count, previous, current_uses, previous_uses);
        row5.apply(index[122:105] & mask, index[125:123], slot[15:0], put, count, previous);
        least.apply(count, previous, current_uses, previous_uses);
        // Slots are counted apart: the sum of two minima. Collisions would raise the minimum of the
        // sums much sooner.
        uses = current_uses + previous_uses;
        // Each key that may have set a cell counts, also one that is known from the previous slot.
        if (put == 1 && current_uses == 0) {
            sketch_load.apply(slot, 1, limit, full, full_before);
        }
    }
}

// Sets verdict.failed to REPLAY, or verdict.unjudged when the sketch is full and does not know the
// key. The key is (service, epoch, class, tag, number); the first three are mixed into the sketch's
// own key, which no other machine has.
control Replay(in headers_t hdr, inout metadata_t meta) {
    NonceTag() nonce_tag;
    NonceNumber() nonce_number;
    ReplaySketch(REPLAY_WORDS) replay_sketch;
    ReplaySketch(OPENING_WORDS) opening_sketch;
    bit<128> index;
    bit<8> uses;
    bit<1> judged;
    bit<24> slot;
    bit<32> tag;
    bit<32> number;
    epoch_t epoch;
    bit<8>  uses_allowed;

    apply {
        slot = (meta.carried.now >> REPLAY_SLOT_SHIFT)[23:0];
        uses_allowed = 4;
        if (hdr.option.class == CLASS_NORMAL || hdr.option.class == CLASS_REKEY) {
            uses_allowed = 1;
        }
        // A SYN and the packet that completes a bare SYN (epoch 0) have neither tag nor number:
        // client, port and ISN identify them. The port takes the place of the epoch, because with
        // client affinity the hash does not include ports. A RESTART is counted for its generation,
        // and each generation has a different tag.
        if (hdr.option.class == CLASS_SYN
            || (hdr.option.class == CLASS_RESTART && hdr.continuation.nonce_epoch == 0)) {
            tag = meta.flow.hash;
            number = hdr.tcp.sequence;
            epoch = meta.flow.client_port;
        } else {
            tag = hdr.continuation.tag;
            number = hdr.continuation.number;
            epoch = hdr.continuation.nonce_epoch;
            if (hdr.option.class == CLASS_RESTART) {
                number = 0;
            }
        }
        nonce_tag.apply(meta, meta.tor.sketch_key0 ^ (4w0 ++ meta.service.id ++ epoch),
                        meta.tor.sketch_key1 ^ (24w0 ++ hdr.option.class), tag);
        nonce_number.apply(meta, number);
        // All four words of the state are well mixed; indices need no more.
        index = meta.hash.v0 ++ meta.hash.v1 ++ meta.hash.v2 ++ meta.hash.v3;
        if (meta.proof.opening == 0) {
            replay_sketch.apply(index, meta.tor.sketch_mask, slot, meta.tor.replay_limit, uses, judged);
        } else {
            opening_sketch.apply(index, 3w0 ++ meta.tor.sketch_mask[14:0], slot, meta.tor.openings_limit, uses, judged);
        }
        if (uses >= uses_allowed) {
            meta.verdict.failed = drop_reason_t.REPLAY;
        } else if (judged == 0) {
            meta.verdict.unjudged = drop_reason_t.UNJUDGED_REPLAY;
        }
    }
}

#endif

// SPDX-License-Identifier: Apache-2.0
// One use per response number (transport.md calls it the replay defence): a sketch in two banks of one slot each,
// nothing is ever cleared. Proved requests and openings have sketches of their own, so that what carries no proof
// cannot fill the one that matters. 9 register accesses and one hash of 10 rounds a packet.
#ifndef RIVULET_REPLAY_P4
#define RIVULET_REPLAY_P4

#include "../metadata.p4"
#include "../v1model/state.p4"
#include "nonces.p4"

const bit<32> REPLAY_CELLS  = 262144;  // a row and bank
const bit<32> OPENING_CELLS = 65536;

// Four rows, their indices 16 bits apart in the hash. `uses`: how often this key was seen, never too low.
control ReplaySketch(in bit<64> index, in bit<24> slot, in bit<32> limit, out bit<8> uses, out bit<1> full) {
    SketchRow(REPLAY_CELLS) row0;
    SketchRow(REPLAY_CELLS) row1;
    SketchRow(REPLAY_CELLS) row2;
    SketchRow(REPLAY_CELLS) row3;
    SketchLoad() sketch_load;
    bit<8> uses1;
    bit<8> uses2;
    bit<8> uses3;
    bit<1> first_use;

    apply {
        row0.apply(index[17:0], slot, uses);
        row1.apply(index[33:16], slot, uses1);
        row2.apply(index[49:32], slot, uses2);
        row3.apply(index[63:46], slot, uses3);
        if (uses1 < uses) {
            uses = uses1;
        }
        if (uses2 < uses) {
            uses = uses2;
        }
        if (uses3 < uses) {
            uses = uses3;
        }
        first_use = 0;
        if (uses == 0) {
            first_use = 1;
        }
        sketch_load.apply(slot, first_use, limit, full);
    }
}

// Two rows.
control OpeningSketch(in bit<32> index, in bit<24> slot, in bit<32> limit, out bit<8> uses, out bit<1> full) {
    SketchRow(OPENING_CELLS) row0;
    SketchRow(OPENING_CELLS) row1;
    SketchLoad() sketch_load;
    bit<8> uses1;
    bit<1> first_use;

    apply {
        row0.apply(2w0 ++ index[15:0], slot, uses);
        row1.apply(2w0 ++ index[31:16], slot, uses1);
        if (uses1 < uses) {
            uses = uses1;
        }
        first_use = 0;
        if (uses == 0) {
            first_use = 1;
        }
        sketch_load.apply(slot, first_use, limit, full);
    }
}

// Sets meta.failed to REPLAY, or meta.unjudged when the sketch is full. The key is (service, epoch, class, tag, number);
// the first three are mixed into the sketch's own key, which no other machine has.
control Replay(in headers_t hdr, inout metadata_t meta) {
    FlowHash() flow_hash;
    NonceTag() nonce_tag;
    NonceNumber() nonce_number;
    ReplaySketch() replay_sketch;
    OpeningSketch() opening_sketch;
    bit<8> uses;
    bit<1> full;
    bit<24> slot;
    epoch_t epoch;

    apply {
        slot = (meta.now >> REPLAY_SLOT_SHIFT)[23:0];
        meta.uses_allowed = 4;
        if (hdr.option.class == CLASS_NORMAL || hdr.option.class == CLASS_REKEY) {
            meta.uses_allowed = 1;
        }
        // A SYN has neither tag nor number: client, ports and ISN are what makes its tag. A RESTART is counted for
        // its generation, and a generation has a tag of its own.
        if (hdr.option.class == CLASS_SYN) {
            flow_hash.apply(meta.client_address, meta.service_address, meta.client_port, meta.service_port,
                            meta.sketch_tag);
            meta.sketch_number = hdr.tcp.sequence;
            epoch = 0;
        } else {
            meta.sketch_tag = hdr.continuation.tag;
            meta.sketch_number = hdr.continuation.number;
            epoch = hdr.continuation.nonce_epoch;
            if (hdr.option.class == CLASS_RESTART) {
                meta.sketch_number = 0;
            }
        }
        nonce_tag.apply(meta, meta.sketch_key0 ^ (4w0 ++ meta.service ++ epoch),
                        meta.sketch_key1 ^ (24w0 ++ hdr.option.class), meta.sketch_tag);
        nonce_number.apply(meta, meta.sketch_number);
        // v0 ^ v2 is as well mixed as the hash itself; indices need no more.
        if (meta.opening == 0) {
            replay_sketch.apply(meta.nonce ++ (meta.state.v0 ^ meta.state.v2), slot, meta.replay_limit,
                                uses, full);
        } else {
            opening_sketch.apply(meta.nonce, slot, meta.openings_limit, uses, full);
        }
        if (full == 1) {
            meta.unjudged = drop_reason_t.UNJUDGED_REPLAY;
        } else if (uses >= meta.uses_allowed) {
            meta.failed = drop_reason_t.REPLAY;
        }
    }
}

#endif

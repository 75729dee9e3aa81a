// SPDX-License-Identifier: Apache-2.0
// HalfSipHash-2-4 over two 32-bit words, tag first (docs/wire-format.md, "Keys and derived values").
// Two SipRounds are an action on metadata: unrolled over local variables p4c's copy propagation grows without bound.
// In hardware a round takes 4 stages of Tofino; the tag's two rounds are shared by all numbers under one key,
// a number takes 8, so one range is 18 rounds, about 4 passes, and four are 64 and 2 for each key.
#ifndef RIVULET_NONCES_P4
#define RIVULET_NONCES_P4

#include "../metadata.p4"

// A message word with its two rounds.
control NonceWord(inout metadata_t meta, in bit<32> word) {
    @hidden action compress() {
        meta.state.v3 = meta.state.v3 ^ word;
        meta.state.v0 = meta.state.v0 + meta.state.v1;
        meta.state.v2 = meta.state.v2 + meta.state.v3;
        meta.state.v1 = (meta.state.v1[26:0] ++ meta.state.v1[31:27]) ^ meta.state.v0;
        meta.state.v3 = (meta.state.v3[23:0] ++ meta.state.v3[31:24]) ^ meta.state.v2;
        meta.state.v0 = (meta.state.v0[15:0] ++ meta.state.v0[31:16]) + meta.state.v3;
        meta.state.v2 = meta.state.v2 + meta.state.v1;
        meta.state.v3 = (meta.state.v3[24:0] ++ meta.state.v3[31:25]) ^ meta.state.v0;
        meta.state.v1 = (meta.state.v1[18:0] ++ meta.state.v1[31:19]) ^ meta.state.v2;
        meta.state.v2 = meta.state.v2[15:0] ++ meta.state.v2[31:16];
        meta.state.v0 = meta.state.v0 + meta.state.v1;
        meta.state.v2 = meta.state.v2 + meta.state.v3;
        meta.state.v1 = (meta.state.v1[26:0] ++ meta.state.v1[31:27]) ^ meta.state.v0;
        meta.state.v3 = (meta.state.v3[23:0] ++ meta.state.v3[31:24]) ^ meta.state.v2;
        meta.state.v0 = (meta.state.v0[15:0] ++ meta.state.v0[31:16]) + meta.state.v3;
        meta.state.v2 = meta.state.v2 + meta.state.v1;
        meta.state.v3 = (meta.state.v3[24:0] ++ meta.state.v3[31:25]) ^ meta.state.v0;
        meta.state.v1 = (meta.state.v1[18:0] ++ meta.state.v1[31:19]) ^ meta.state.v2;
        meta.state.v2 = meta.state.v2[15:0] ++ meta.state.v2[31:16];
        meta.state.v0 = meta.state.v0 ^ word;
    }

    apply {
        compress();
    }
}

// The state after key and tag, in meta.state.
control NonceTag(inout metadata_t meta, in bit<32> k0, in bit<32> k1, in bit<32> tag) {
    NonceWord() nonce_word;

    @hidden action start() {
        meta.state.v0 = k0;
        meta.state.v1 = k1;
        meta.state.v2 = 0x6c796765 ^ k0;
        meta.state.v3 = 0x74656462 ^ k1;
    }

    apply {
        start();
        nonce_word.apply(meta, tag);
    }
}

// From meta.state after the tag to meta.nonce of a number.
control NonceNumber(inout metadata_t meta, in bit<32> number) {
    NonceWord() nonce_word;

    @hidden action finalize() {
        meta.state.v2 = meta.state.v2 ^ 0xff;
        meta.state.v0 = meta.state.v0 + meta.state.v1;
        meta.state.v2 = meta.state.v2 + meta.state.v3;
        meta.state.v1 = (meta.state.v1[26:0] ++ meta.state.v1[31:27]) ^ meta.state.v0;
        meta.state.v3 = (meta.state.v3[23:0] ++ meta.state.v3[31:24]) ^ meta.state.v2;
        meta.state.v0 = (meta.state.v0[15:0] ++ meta.state.v0[31:16]) + meta.state.v3;
        meta.state.v2 = meta.state.v2 + meta.state.v1;
        meta.state.v3 = (meta.state.v3[24:0] ++ meta.state.v3[31:25]) ^ meta.state.v0;
        meta.state.v1 = (meta.state.v1[18:0] ++ meta.state.v1[31:19]) ^ meta.state.v2;
        meta.state.v2 = meta.state.v2[15:0] ++ meta.state.v2[31:16];
        meta.state.v0 = meta.state.v0 + meta.state.v1;
        meta.state.v2 = meta.state.v2 + meta.state.v3;
        meta.state.v1 = (meta.state.v1[26:0] ++ meta.state.v1[31:27]) ^ meta.state.v0;
        meta.state.v3 = (meta.state.v3[23:0] ++ meta.state.v3[31:24]) ^ meta.state.v2;
        meta.state.v0 = (meta.state.v0[15:0] ++ meta.state.v0[31:16]) + meta.state.v3;
        meta.state.v2 = meta.state.v2 + meta.state.v1;
        meta.state.v3 = (meta.state.v3[24:0] ++ meta.state.v3[31:25]) ^ meta.state.v0;
        meta.state.v1 = (meta.state.v1[18:0] ++ meta.state.v1[31:19]) ^ meta.state.v2;
        meta.state.v2 = meta.state.v2[15:0] ++ meta.state.v2[31:16];
    }

    @hidden action result() {
        meta.state.v0 = meta.state.v0 + meta.state.v1;
        meta.state.v2 = meta.state.v2 + meta.state.v3;
        meta.state.v1 = (meta.state.v1[26:0] ++ meta.state.v1[31:27]) ^ meta.state.v0;
        meta.state.v3 = (meta.state.v3[23:0] ++ meta.state.v3[31:24]) ^ meta.state.v2;
        meta.state.v0 = (meta.state.v0[15:0] ++ meta.state.v0[31:16]) + meta.state.v3;
        meta.state.v2 = meta.state.v2 + meta.state.v1;
        meta.state.v3 = (meta.state.v3[24:0] ++ meta.state.v3[31:25]) ^ meta.state.v0;
        meta.state.v1 = (meta.state.v1[18:0] ++ meta.state.v1[31:19]) ^ meta.state.v2;
        meta.state.v2 = meta.state.v2[15:0] ++ meta.state.v2[31:16];
        meta.state.v0 = meta.state.v0 + meta.state.v1;
        meta.state.v2 = meta.state.v2 + meta.state.v3;
        meta.state.v1 = (meta.state.v1[26:0] ++ meta.state.v1[31:27]) ^ meta.state.v0;
        meta.state.v3 = (meta.state.v3[23:0] ++ meta.state.v3[31:24]) ^ meta.state.v2;
        meta.state.v0 = (meta.state.v0[15:0] ++ meta.state.v0[31:16]) + meta.state.v3;
        meta.state.v2 = meta.state.v2 + meta.state.v1;
        meta.state.v3 = (meta.state.v3[24:0] ++ meta.state.v3[31:25]) ^ meta.state.v0;
        meta.state.v1 = (meta.state.v1[18:0] ++ meta.state.v1[31:19]) ^ meta.state.v2;
        meta.state.v2 = meta.state.v2[15:0] ++ meta.state.v2[31:16];
        meta.nonce = meta.state.v1 ^ meta.state.v3;
    }

    apply {
        nonce_word.apply(meta, number);
        nonce_word.apply(meta, 0x08000000);  // the length, 8 bytes, in the top byte
        finalize();
        result();
    }
}

#endif

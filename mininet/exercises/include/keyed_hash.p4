// SPDX-License-Identifier: Apache-2.0
// HalfSipHash-2-4 of a tag and a number. A CRC would not do: it is linear, so that a client could compute
// one nonce from others. The state is metadata and each step an action, as in p4src/core/control.
#ifndef EXERCISE_KEYED_HASH_P4
#define EXERCISE_KEYED_HASH_P4

#define SIP_ROUND \
    meta.v0 = meta.v0 + meta.v1; \
    meta.v2 = meta.v2 + meta.v3; \
    meta.v1 = (meta.v1[26:0] ++ meta.v1[31:27]) ^ meta.v0; \
    meta.v3 = (meta.v3[23:0] ++ meta.v3[31:24]) ^ meta.v2; \
    meta.v0 = (meta.v0[15:0] ++ meta.v0[31:16]) + meta.v3; \
    meta.v2 = meta.v2 + meta.v1; \
    meta.v3 = (meta.v3[24:0] ++ meta.v3[31:25]) ^ meta.v0; \
    meta.v1 = (meta.v1[18:0] ++ meta.v1[31:19]) ^ meta.v2; \
    meta.v2 = meta.v2[15:0] ++ meta.v2[31:16];

control KeyedHash(inout metadata_t meta, in bit<32> tag, in bit<32> number, out bit<32> result) {
    @hidden action begin() {
        meta.v0 = meta.k0;
        meta.v1 = meta.k1;
        meta.v2 = 0x6c796765 ^ meta.k0;
        meta.v3 = 0x74656462 ^ meta.k1;
    }

    @hidden action word(bit<32> value) {
        meta.v3 = meta.v3 ^ value;
        SIP_ROUND
        SIP_ROUND
        meta.v0 = meta.v0 ^ value;
    }

    @hidden action finish() {
        meta.v2 = meta.v2 ^ 0xff;
        SIP_ROUND
        SIP_ROUND
    }

    @hidden action two_rounds() {
        SIP_ROUND
        SIP_ROUND
    }

    apply {
        begin();
        word(tag);
        word(number);
        // The length of the message: 8 bytes.
        word(32w0x08000000);
        finish();
        two_rounds();
        result = meta.v1 ^ meta.v3;
    }
}

#endif

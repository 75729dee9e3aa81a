// SPDX-License-Identifier: Apache-2.0
// HalfSipHash-2-4 over 32-bit words, 32 bits of result (docs/wire-format.md, "Keys and derived
// values"). The state is metadata and a word with its two rounds an action: over local variables
// p4c's copy propagation grows without bound. In hardware a round takes 4 stages of Tofino. A word
// is 2 rounds, the end 6; what several messages begin with is hashed once: a tag's two rounds are
// shared by all its numbers, so one range is 18 rounds, about 4 passes.
#ifndef RIVULET_HALF_SIP_HASH_P4
#define RIVULET_HALF_SIP_HASH_P4

#include "../metadata.p4"

#define SIP_ROUND \
    meta.hash.v0 = meta.hash.v0 + meta.hash.v1; \
    meta.hash.v2 = meta.hash.v2 + meta.hash.v3; \
    meta.hash.v1 = (meta.hash.v1[26:0] ++ meta.hash.v1[31:27]) ^ meta.hash.v0; \
    meta.hash.v3 = (meta.hash.v3[23:0] ++ meta.hash.v3[31:24]) ^ meta.hash.v2; \
    meta.hash.v0 = (meta.hash.v0[15:0] ++ meta.hash.v0[31:16]) + meta.hash.v3; \
    meta.hash.v2 = meta.hash.v2 + meta.hash.v1; \
    meta.hash.v3 = (meta.hash.v3[24:0] ++ meta.hash.v3[31:25]) ^ meta.hash.v0; \
    meta.hash.v1 = (meta.hash.v1[18:0] ++ meta.hash.v1[31:19]) ^ meta.hash.v2; \
    meta.hash.v2 = meta.hash.v2[15:0] ++ meta.hash.v2[31:16];

// Begins a message under a key.
control HashKey(inout metadata_t meta, in bit<32> k0, in bit<32> k1) {
    @hidden action begin() {
        meta.hash.v0 = k0;
        meta.hash.v1 = k1;
        meta.hash.v2 = 0x6c796765 ^ k0;
        meta.hash.v3 = 0x74656462 ^ k1;
    }

    apply {
        begin();
    }
}

// The next word of the message.
control HashWord(inout metadata_t meta, in bit<32> word) {
    @hidden action compress() {
        meta.hash.v3 = meta.hash.v3 ^ word;
        SIP_ROUND
        SIP_ROUND
        meta.hash.v0 = meta.hash.v0 ^ word;
    }

    apply {
        compress();
    }
}

// Ends a message of this many bytes, a multiple of four: meta.hash.result.
control HashEnd(inout metadata_t meta, in bit<8> length) {
    HashWord() hash_word;

    @hidden action finalize() {
        meta.hash.v2 = meta.hash.v2 ^ 0xff;
        SIP_ROUND
        SIP_ROUND
    }

    @hidden action result() {
        SIP_ROUND
        SIP_ROUND
        meta.hash.result = meta.hash.v1 ^ meta.hash.v3;
    }

    apply {
        hash_word.apply(meta, length ++ 24w0);
        finalize();
        result();
    }
}

// The state after key and tag, that all numbers of a tag share.
control NonceTag(inout metadata_t meta, in bit<32> k0, in bit<32> k1, in bit<32> tag) {
    HashKey() hash_key;
    HashWord() hash_word;

    apply {
        hash_key.apply(meta, k0, k1);
        hash_word.apply(meta, tag);
    }
}

// From that state to the result for a number.
control NonceNumber(inout metadata_t meta, in bit<32> number) {
    HashWord() hash_word;
    HashEnd() hash_end;

    apply {
        hash_word.apply(meta, number);
        hash_end.apply(meta, 8);
    }
}
#ifndef CHECKS_AT_HOST
// meta.flow.hash of the connection, under the service's slot key: the same for all its packets, and
// unpredictable for clients. Two flows that collide under one key do not collide under another,
// unlike with a CRC. With client affinity the message ends after the client's address, so all its
// connections have one hash: 14 rounds instead of 24, and no further table or access.
control FlowHash(inout metadata_t meta) {
    HashKey() hash_key;
    HashWord() hash_word;
    HashEnd() hash_end;
    bit<8> length;

    apply {
        hash_key.apply(meta, meta.service.slot_key0, meta.service.slot_key1);
        hash_word.apply(meta, meta.flow.client_address[127:96]);
        hash_word.apply(meta, meta.flow.client_address[95:64]);
        hash_word.apply(meta, meta.flow.client_address[63:32]);
        hash_word.apply(meta, meta.flow.client_address[31:0]);
        // A hash of the client under the same key, which the state already holds.
        meta.flow.client_cell = (meta.hash.v1 ^ meta.hash.v3)[11:0];
        length = 16;
        if (meta.service.affinity == affinity_t.FLOW) {
            hash_word.apply(meta, meta.flow.service_address[127:96]);
            hash_word.apply(meta, meta.flow.service_address[95:64]);
            hash_word.apply(meta, meta.flow.service_address[63:32]);
            hash_word.apply(meta, meta.flow.service_address[31:0]);
            hash_word.apply(meta, meta.flow.client_port ++ meta.flow.service_port);
            length = 36;
        }
        hash_end.apply(meta, length);
        meta.flow.hash = meta.hash.result;
    }
}

// meta.cookie.hash of a plain connection under a key of its service's cookies (docs/plain.md). The
// service's address is left out: its key stands for it.
control CookieHash(inout metadata_t meta, in bit<32> k0, in bit<32> k1) {
    HashKey() hash_key;
    HashWord() hash_word;
    HashEnd() hash_end;

    apply {
        hash_key.apply(meta, k0, k1);
        hash_word.apply(meta, meta.flow.client_address[127:96]);
        hash_word.apply(meta, meta.flow.client_address[95:64]);
        hash_word.apply(meta, meta.flow.client_address[63:32]);
        hash_word.apply(meta, meta.flow.client_address[31:0]);
        hash_word.apply(meta, meta.flow.client_port ++ meta.flow.service_port);
        meta.cookie.flow.v0 = meta.hash.v0;
        meta.cookie.flow.v1 = meta.hash.v1;
        meta.cookie.flow.v2 = meta.hash.v2;
        meta.cookie.flow.v3 = meta.hash.v3;
        hash_end.apply(meta, 20);
        meta.cookie.hash = meta.hash.result;
    }
}

// meta.hash.result of the same words and one more.
control PadHash(inout metadata_t meta, in bit<32> word) {
    HashWord() hash_word;
    HashEnd() hash_end;

    apply {
        meta.hash.v0 = meta.cookie.flow.v0;
        meta.hash.v1 = meta.cookie.flow.v1;
        meta.hash.v2 = meta.cookie.flow.v2;
        meta.hash.v3 = meta.cookie.flow.v3;
        hash_word.apply(meta, word);
        hash_end.apply(meta, 24);
    }
}
#endif
// meta.hash.result of a heartbeat, under its replica's key: all of it before the tag.
control HeartbeatHash(in headers_t hdr, inout metadata_t meta) {
    HashKey() hash_key;
    HashWord() hash_word;
    HashEnd() hash_end;

    apply {
        hash_key.apply(meta, meta.heartbeat.key0, meta.heartbeat.key1);
        hash_word.apply(meta, hdr.heartbeat.version ++ hdr.heartbeat.flags ++ hdr.heartbeat.pool);
        hash_word.apply(meta, hdr.heartbeat.replica ++ hdr.heartbeat.key_epoch ++ hdr.heartbeat.load);
        hash_word.apply(meta, hdr.heartbeat.incarnation);
        hash_word.apply(meta, hdr.heartbeat.sequence);
        hash_end.apply(meta, 16);
    }
}

// meta.bridged.tag of the answer to a heartbeat, under the same key.
control AnswerHash(in headers_t hdr, inout metadata_t meta) {
    HashKey() hash_key;
    HashWord() hash_word;
    HashEnd() hash_end;

    apply {
        hash_key.apply(meta, meta.heartbeat.key0, meta.heartbeat.key1);
        hash_word.apply(meta, HEARTBEAT_VERSION ++ meta.bridged.flags ++ hdr.heartbeat.pool);
        hash_word.apply(meta, hdr.heartbeat.replica ++ hdr.heartbeat.key_epoch ++ meta.bridged.tor_id);
        hash_word.apply(meta, hdr.heartbeat.incarnation);
        hash_word.apply(meta, hdr.heartbeat.sequence);
        hash_word.apply(meta, meta.bridged.alive[63:32]);
        hash_word.apply(meta, meta.bridged.alive[31:0]);
        hash_word.apply(meta, meta.bridged.plain[63:32]);
        hash_word.apply(meta, meta.bridged.plain[31:0]);
        hash_end.apply(meta, 32);
        meta.bridged.tag = meta.hash.result;
    }
}
#ifndef CHECKS_AT_HOST
// meta.bridged.tag of the ToR block for a replica beyond the rack, under that replica's block key:
// over the block and the fields of the request that the block refers to.
control BlockTag(in headers_t hdr, inout metadata_t meta) {
    HashKey() hash_key;
    HashWord() hash_word;
    HashEnd() hash_end;
    bit<8> length;

    apply {
        hash_key.apply(meta, meta.keys.block_key0, meta.keys.block_key1);
        hash_word.apply(meta, meta.bridged.clock[47:16]);
        hash_word.apply(meta, meta.bridged.clock[15:0] ++ meta.bridged.tor_id);
        hash_word.apply(meta, meta.bridged.seal_epoch ++ meta.bridged.nonce_epoch);
        hash_word.apply(meta, meta.bridged.flags ++ meta.bridged.key_epoch ++ hdr.proof.range_count ++ hdr.proof.attempt);
        hash_word.apply(meta, hdr.option.class ++ hdr.option.version ++ hdr.option.flags ++ hdr.option.number_low);
        hash_word.apply(meta, hdr.proof.range_kinds);
        length = 28;
        if (hdr.continuation.isValid()) {
            hash_word.apply(meta, hdr.continuation.tag);
            hash_word.apply(meta, hdr.continuation.number);
            hash_word.apply(meta, hdr.continuation.base);
            length = 36;
            if (hdr.entry0.isValid()) {
                hash_word.apply(meta, hdr.entry0.first ++ hdr.entry0.last);
                hash_word.apply(meta, hdr.entry0.sum);
                length = 44;
            }
            if (hdr.entry1.isValid()) {
                hash_word.apply(meta, hdr.entry1.first ++ hdr.entry1.last);
                hash_word.apply(meta, hdr.entry1.sum);
                length = 52;
            }
            if (hdr.entry2.isValid()) {
                hash_word.apply(meta, hdr.entry2.first ++ hdr.entry2.last);
                hash_word.apply(meta, hdr.entry2.sum);
                length = 60;
            }
            if (hdr.entry3.isValid()) {
                hash_word.apply(meta, hdr.entry3.first ++ hdr.entry3.last);
                hash_word.apply(meta, hdr.entry3.sum);
                length = 68;
            }
        } else {
            hash_word.apply(meta, hdr.tcp.sequence);
        }
        hash_end.apply(meta, length);
        meta.bridged.tag = meta.hash.result;
    }
}

// meta.hash.result for eight consecutive numbers of a connection and one attempt, under the same
// key.
control BlockHash(inout metadata_t meta, in bit<32> tag, in bit<32> number, in bit<8> attempt) {
    NonceTag() nonce_tag;
    NonceNumber() nonce_number;

    apply {
        nonce_tag.apply(meta, meta.service.slot_key0, meta.service.slot_key1, tag);
        nonce_number.apply(meta, attempt[2:0] ++ number[31:3]);
    }
}
#endif
#endif

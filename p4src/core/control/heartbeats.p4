// SPDX-License-Identifier: Apache-2.0
// Admits heartbeats: from the port and source address of the replica, under a key that it shares
// with the ToR, and newer than all before. A heartbeat that checks other members (liveness.p4)
// takes several passes; its own fields are read in the first.
#ifndef RIVULET_HEARTBEATS_P4
#define RIVULET_HEARTBEATS_P4

#include "../metadata.p4"
#include <state.p4>
#include "answers.p4"
#include "half_sip_hash.p4"

const bit<32> HEARTBEAT_TABLE_SIZE     = 8192;
const bit<32> HEARTBEAT_KEY_TABLE_SIZE = 16384;

control Heartbeats(in headers_t hdr, inout metadata_t meta) {
    HeartbeatHash() heartbeat_hash;
    Newest() newest_heartbeat;
    HeartbeatCounter() heartbeat_counter;
    bit<1>   remote;
    bit<128> source;
    bit<1>   known;
    newer_t  verdict;

    // readmitted: after how many exclusions, modulo 2^16, the controller lets the replica take
    // plain TCP again.
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

    // newest: no key of this replica is newer. A replaced key stays valid until the replica uses
    // its successor.
    @id(0x01000035)
    action set_heartbeat_key(@secret bit<32> k0, @secret bit<32> k1, bit<1> newest) {
        meta.heartbeat.key0 = k0;
        meta.heartbeat.key1 = k1;
        meta.heartbeat.newest = newest;
        known = 1;
    }

    @id(0x01000036)
    action no_heartbeat_key() {
        known = 0;
    }

    // The keys that each replica shares with the ToRs.
    @id(0x02000019)
    table heartbeat_keys {
        key = {
            hdr.heartbeat.pool      : exact @name("pool");
            hdr.heartbeat.replica   : exact @name("replica");
            hdr.heartbeat.key_epoch : exact @name("key_epoch");
        }
        actions = { set_heartbeat_key; @defaultonly no_heartbeat_key; }
        const default_action = no_heartbeat_key;
        size = HEARTBEAT_KEY_TABLE_SIZE;
    }

    apply {
        meta.heartbeat.judging = meta.carried.judging;
        if (meta.heartbeat.judging == 1) {
            meta.heartbeat.admitted = 1;
        } else {
            remote = 0;
            source = 80w0 ++ hdr.ethernet.src;
            if (hdr.udp.isValid()) {
                remote = 1;
                source = meta.parsed.src;
            }
            heartbeat_sources.apply();
            if (hdr.heartbeat.version != HEARTBEAT_VERSION || (hdr.heartbeat.flags & ~HEARTBEAT_FLAG_READY) != 0
                || hdr.heartbeat.replica >= 64) {
                meta.heartbeat.admitted = 0;
                meta.decided.drop_reason = drop_reason_t.HEARTBEAT_FORM;
            }
        }
        if (meta.heartbeat.admitted == 1) {
            meta.bridged.pool = hdr.heartbeat.pool[9:0];
            meta.bridged.replica = hdr.heartbeat.replica[5:0];
            known = 0;
            heartbeat_keys.apply();
            if (meta.heartbeat.judging == 0) {
                if (known == 0) {
                    meta.decided.drop_reason = drop_reason_t.HEARTBEAT_KEY;
                } else {
                    heartbeat_hash.apply(hdr, meta);
                    if (meta.hash.result != hdr.heartbeat_tag.tag) {
                        meta.decided.drop_reason = drop_reason_t.HEARTBEAT_TAG;
                    }
                }
                if (meta.decided.drop_reason == drop_reason_t.NONE) {
                    newest_heartbeat.apply(meta.bridged.pool ++ meta.bridged.replica, hdr.heartbeat.key_epoch,
                                           meta.heartbeat.newest, hdr.heartbeat.incarnation, hdr.heartbeat.sequence,
                                           verdict);
                    if (verdict == newer_t.OLDER) {
                        meta.decided.drop_reason = drop_reason_t.HEARTBEAT_INCARNATION;
                    } else if (verdict == newer_t.REPLAY) {
                        meta.decided.drop_reason = drop_reason_t.HEARTBEAT_REPLAY;
                    }
                }
                if (meta.decided.drop_reason == drop_reason_t.NONE) {
                    // A member that is not ready counts as one without heartbeats.
                    meta.heartbeat.ready = hdr.heartbeat.flags[0:0];
                    heartbeat_counter.apply(meta.bridged.pool ++ meta.bridged.replica, meta.heartbeat.ready);
                } else {
                    meta.event.pool = hdr.heartbeat.pool;
                    meta.event.replica = hdr.heartbeat.replica;
                }
            }
        }
    }
}

// The answer: the sets of members that are alive and that take plain TCP, under the heartbeat's
// key. It leaves by the port that the heartbeat came in by.
control AnswerHeartbeat(in headers_t hdr, inout metadata_t meta) {
    AnswerHash() answer_hash;

    apply {
        meta.bridged.flags = HEARTBEAT_FLAG_ANSWER;
        if (meta.pool.settled == 1) {
            meta.bridged.flags = HEARTBEAT_FLAG_ANSWER | HEARTBEAT_FLAG_SETTLED;
        }
        meta.bridged.plain = meta.bridged.alive & ~meta.choice.not_readmitted;
        answer_hash.apply(hdr, meta);
        meta.bridged.answer = answer_t.HEARTBEAT;
        meta.decided.egress_port = meta.carried.ingress_port;
        meta.bridged.vlan_out = meta.bridged.vlan;
    }
}

// Turns the heartbeat into its answer.
control AnswerHeartbeatRewrite(inout headers_t hdr, in bridged_t bridged, inout written_t written) {
    apply {
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = bridged.tor_mac;
        hdr.heartbeat.flags = bridged.flags;
        hdr.heartbeat.load = bridged.tor_id;
        hdr.live_sets.setValid();
        hdr.live_sets.alive = bridged.alive;
        hdr.live_sets.plain = bridged.plain;
        hdr.heartbeat_tag.tag = bridged.tag;
        written.truncate_length = HEARTBEAT_ANSWER_BYTES;
        if (hdr.udp.isValid()) {
            bit<16> port = hdr.udp.dst_port;
            hdr.udp.dst_port = hdr.udp.src_port;
            hdr.udp.src_port = port;
            hdr.udp.length = UDP_HEADER_BYTES + HEARTBEAT_ANSWER_BYTES;
            hdr.udp.checksum = 0;  // RFC 768; over IPv6 it is made below
            if (hdr.ipv4.isValid()) {
                bit<32> asked = hdr.ipv4.dst;
                hdr.ipv4.dst = hdr.ipv4.src;
                hdr.ipv4.src = asked;
                hdr.ipv4.ttl = HOP_LIMIT;
                hdr.ipv4.total_length = ((bit<16>)hdr.ipv4.ihl << 2) + hdr.udp.length;
                written.truncate_length = hdr.ipv4.total_length;
            } else {
                bit<128> asked = hdr.ipv6.dst;
                hdr.ipv6.dst = hdr.ipv6.src;
                hdr.ipv6.src = asked;
                hdr.ipv6.hop_limit = HOP_LIMIT;
                hdr.ipv6.payload_length = hdr.udp.length;
                written.truncate_length = IPV6_HEADER_BYTES + hdr.udp.length;
                written.fresh_heartbeat6 = 1;
                written.icmp6_length = 16w0 ++ hdr.udp.length;
            }
        }
    }
}

#endif

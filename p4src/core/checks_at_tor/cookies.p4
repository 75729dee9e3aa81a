// SPDX-License-Identifier: Apache-2.0
// Plain TCP to a stateless service (docs/plain.md). The ToR answers a SYN with a cookie. It drops
// segments that acknowledge no cookie of this rack and bare acknowledgements that complete a
// handshake, meters the rest and sets how the replica is chosen. It keeps no state.
#ifndef RIVULET_COOKIES_P4
#define RIVULET_COOKIES_P4

#include "../metadata.p4"
#include <state.p4>
#include "../control/answers.p4"
#include "../control/half_sip_hash.p4"

// With timestamps the lowest 3 bits of an ISN are the class of the segment size and a zero, without
// them the lowest 10 are bits of the client's sequence number.
const bit<32> STAMPED_LOW    = 0x7;
const bit<32> BARE_LOW       = 0x3ff;
const bit<32> BARE_SEQUENCE  = 0x1fe;
// Bytes after the ISN that can be acknowledged: the highest offset at which an answer may begin,
// plus the longest answer.
const bit<32> STAMPED_REACH  = 522176 + 15360;
const bit<32> BARE_REACH     = 15360 + 2048;
// The same for large answers: a quarter of the sequence space, plus 16 bytes of the last segment.
const bit<32> LARGE_REACH    = 0x40000010;
// Cells of 64 kB that may be in flight of a large answer: an acknowledgement is that far ahead of the
// cell in its timestamp at most (docs/plain.md).
const bit<8>  LARGE_CELLS    = 120;
// Data offset (32-bit words) of a header whose only option is timestamps.
const bit<4>  STAMPS_OFFSET  = 8;
// Segment size of a connection without timestamps.
const bit<16> BARE_SEGMENT   = 1024;
// A unit of the time in a SYN-ACK's timestamp is 2^26 microseconds of the common clock, 67 s.
const bit<8>  MINUTE_SHIFT   = 26;
// Kind of a timestamp, its bits 23 and 22: answers of up to 15 kB, and sockets of a replica's
// kernel; between them large answers.
const bit<2>  STAMP_SMALL    = 0;
const bit<2>  STAMP_KERNEL   = 3;
const bit<16> MSS_MAX        = 1460;
// Without the option (RFC 9293 section 3.7.1), and the smallest of a class.
const bit<16> MSS_DEFAULT    = 536;

// Reads the options of a SYN and prepares the answer in meta.bridged. `answered` 0: a replica
// answers it.
control Welcome(in headers_t hdr, inout metadata_t meta, out bit<1> answered) {
    PadHash() pad_hash;
    bit<16> mss;       // the smaller MSS of both ends
    bit<8>  shift;     // of the client's window
    bit<3>  scale;     // its number in the timestamp
    bit<2>  class;
    bit<1>  stamped;
    bit<32> first;     // sequence number of the client's first byte
    bit<22> minute;

    apply {
        stamped = 1;
        mss = 0;
        shift = 0;
        if (meta.parsed.syn_layout == syn_layout_t.LINUX) {
            mss = hdr.syn20.options[143:128];
            shift = hdr.syn20.options[7:0];
        } else if (meta.parsed.syn_layout == syn_layout_t.FREEBSD) {
            mss = hdr.syn20.options[143:128];
            shift = hdr.syn20.options[103:96];
        } else if (meta.parsed.syn_layout == syn_layout_t.MACOS) {
            mss = hdr.syn24.options[175:160];
            shift = hdr.syn24.options[135:128];
        } else if (meta.parsed.syn_layout != syn_layout_t.NONE) {
            mss = hdr.syn12.options[79:64];
            stamped = 0;
        }
        meta.bridged.mss = meta.cookie.mtu - IPV4_HEADER_BYTES - 20;
        if (hdr.ipv6.isValid()) {
            meta.bridged.mss = meta.cookie.mtu - IPV6_HEADER_BYTES - 20;
        }
        if (meta.bridged.mss > MSS_MAX) {
            meta.bridged.mss = MSS_MAX;
        }
        if (meta.bridged.mss < mss) {
            mss = meta.bridged.mss;
        }

        answered = 1;
        if (meta.parsed.syn_layout == syn_layout_t.NONE || meta.bridged.time_valid == 0 || hdr.ipv4_options.isValid()
            || (stamped == 1 && mss < MSS_DEFAULT)
            || (stamped == 0 && (mss < BARE_SEGMENT || hdr.tcp.window < BARE_SEGMENT))) {
            answered = 0;
        } else {
            first = hdr.tcp.sequence + 1;
            if (stamped == 1) {
                class = 0;
                if (mss >= 1460) {
                    class = 3;
                } else if (mss >= 1440) {
                    class = 2;
                } else if (mss >= 1220) {
                    class = 1;
                }
                meta.bridged.isn = (meta.cookie.hash & ~STAMPED_LOW) | (29w0 ++ class ++ 1w0);
                // The largest shift known that is not above the client's.
                scale = 0;
                if (shift >= 11) {
                    scale = 7;
                } else if (shift >= 9) {
                    scale = 6;
                } else if (shift == 8) {
                    scale = 5;
                } else if (shift == 7) {
                    scale = 4;
                } else if (shift == 6) {
                    scale = 3;
                } else if (shift >= 4) {
                    scale = 2;
                } else if (shift >= 2) {
                    scale = 1;
                }
                minute = (meta.bridged.clock >> MINUTE_SHIFT)[21:0];
                pad_hash.apply(meta, 7w0 ++ minute ++ scale);
                meta.bridged.stamp_value = 10w0 ++ minute[3:0] ++ (first[14:0] ^ meta.hash.result[31:17]) ++ scale;
            } else {
                meta.bridged.isn = (meta.cookie.hash & ~BARE_LOW) | (first & BARE_SEQUENCE);
            }
            meta.bridged.syn_layout = meta.parsed.syn_layout;
            // The packet goes to no replica.
            meta.decided.is_service = 0;
            meta.bridged.answer = answer_t.COOKIE;
            meta.decided.outcome = outcome_t.COOKIE;
            meta.decided.egress_port = meta.carried.ingress_port;
            meta.bridged.vlan_out = meta.bridged.vlan;
        }
    }
}

// Sets meta.cookie.distance to the bytes from the cookie (ISN) to the acknowledged number, under
// either key (the hash under the current one is already computed). `found` 0: neither cookie is
// within reach, or of a large answer not where its timestamp says.
control Distance(in headers_t hdr, inout metadata_t meta, out bit<1> found) {
    CookieHash() cookie_hash;
    bit<32> low;
    bit<32> reach;
    bit<8> slot;   // cell in the timestamp, its lowest bits
    bit<8> cells;  // cells that the acknowledgement may be ahead of it

    apply {
        low = BARE_LOW;
        reach = BARE_REACH;
        slot = 0;
        cells = 255;
        if (hdr.stamps.isValid()) {
            low = STAMPED_LOW;
            reach = STAMPED_REACH;
            if (hdr.stamps.echo[23:22] != STAMP_SMALL) {
                reach = LARGE_REACH;
                slot = hdr.stamps.echo[31:24];
                cells = LARGE_CELLS;
            }
        }
        found = 1;
        meta.cookie.distance = hdr.tcp.acknowledgement - 1 - (meta.cookie.hash & ~low);
        if (meta.cookie.distance >= reach || meta.cookie.distance[23:16] - slot > cells) {
            cookie_hash.apply(meta, meta.cookie.other0, meta.cookie.other1);
            meta.cookie.distance = hdr.tcp.acknowledgement - 1 - (meta.cookie.hash & ~low);
            if (meta.cookie.distance >= reach || meta.cookie.distance[23:16] - slot > cells) {
                found = 0;
            }
        }
    }
}

// Sets decided.drop_reason, or bridged.answer, or flow.by_flow as the replica is to be chosen.
control Cookies(in headers_t hdr, inout metadata_t meta) {
    CookieHash() cookie_hash;
    Welcome() welcome;
    Distance() distance;
    UncookiedMeter() uncookied_meter;
    PlainMeter() plain_meter;
    bit<1> shows;      // the segment must acknowledge a cookie
    bit<1> cookied;    // it acknowledges one
    bit<1> answered;
    bit<1> above;
    bit<32> octets;    // bytes of answers that the client has acknowledged

    // The usable epoch's key and that of the epoch before it, or after it. mtu: of the replicas.
    @id(0x01000038)
    action set_cookie_keys(@secret bit<32> current0, @secret bit<32> current1, @secret bit<32> other0,
                           @secret bit<32> other1, bit<16> mtu) {
        meta.cookie.current0 = current0;
        meta.cookie.current1 = current1;
        meta.cookie.other0 = other0;
        meta.cookie.other1 = other1;
        meta.cookie.mtu = mtu;
    }

    @id(0x01000039)
    action no_cookie_keys(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // Keys of a stateless service's cookies.
    @id(0x0200001b)
    table cookie_keys {
        key = { meta.service.id : exact @name("service") @refers_to(service_config, service); }
        actions = { set_cookie_keys; @defaultonly no_cookie_keys; }
        const default_action = no_cookie_keys(drop_reason_t.SERVICE_UNCONFIGURED);
        size = 4096;
    }

    apply {
        // Segments in the middle of a small answer may go to any replica. Segments of a large
        // answer are spread by block, not by packet: replicas do not know what the others have
        // sent, and spreading single packets would send three times the bytes (docs/plain.md). The
        // first segment of a request, and segments that may belong to a kernel socket, go by flow,
        // because a kernel that adopts the connection must get all of it.
        if (meta.decided.outcome == outcome_t.PLAIN_SEGMENT && hdr.stamps.isValid()
            && (hdr.tcp.flags & TCP_RST) == 0 && hdr.stamps.echo[23:22] != STAMP_KERNEL
            && (hdr.stamps.echo[23:22] != STAMP_SMALL || hdr.stamps.echo[31:24] != 0)) {
            meta.flow.by_flow = 0;
            if (hdr.stamps.echo[23:22] != STAMP_SMALL) {
                meta.flow.by_block = 1;
            }
        }
        if (meta.carried.resubmits == 0) {
            cookie_keys.apply();
        }
        if (meta.carried.resubmits == 0 && meta.decided.drop_reason == drop_reason_t.NONE) {
            shows = 0;
            cookied = 0;
            answered = 0;
            if (meta.decided.outcome == outcome_t.PLAIN_SYN) {
                if ((hdr.tcp.flags & (TCP_FIN | TCP_RST)) != 0) {
                    meta.decided.drop_reason = drop_reason_t.CLASS_FLAGS;
                }
            } else if ((hdr.tcp.flags & TCP_RST) != 0) {
                // It goes to the replica whose kernel may have a socket.
            } else if ((hdr.tcp.flags & (TCP_SYN | TCP_ACK)) != TCP_ACK) {
                meta.decided.drop_reason = drop_reason_t.CLASS_FLAGS;
            } else if (hdr.stamps.isValid() && hdr.stamps.echo[23:22] == STAMP_KERNEL) {
                // Its sequence numbers are those of a kernel socket.
            } else {
                shows = 1;
            }
            if (shows == 1 || meta.parsed.syn_layout != syn_layout_t.NONE) {
                cookie_hash.apply(meta, meta.cookie.current0, meta.cookie.current1);
            }
            if (shows == 1) {
                distance.apply(hdr, meta, cookied);
                octets = meta.cookie.distance & ~STAMPED_LOW;
                if (!hdr.stamps.isValid()) {
                    octets = meta.cookie.distance & ~BARE_SEQUENCE;
                }
                if (cookied == 0) {
                    // Without timestamps it may belong to a kernel socket, whose answers can be
                    // longer.
                    if (hdr.stamps.isValid()) {
                        meta.decided.drop_reason = drop_reason_t.COOKIE;
                    }
                } else if (octets == 0 && meta.parsed.payload_length == 0 && (hdr.tcp.flags & TCP_FIN) == 0
                           && hdr.tcp.data_offset <= STAMPS_OFFSET) {
                    // A SACK block means that the first segment of the answer was lost.
                    meta.decided.drop_reason = drop_reason_t.HANDSHAKE;
                }
            } else if (meta.decided.outcome == outcome_t.PLAIN_SYN && meta.decided.drop_reason == drop_reason_t.NONE) {
                welcome.apply(hdr, meta, answered);
            }
            if (answered == 0 && meta.decided.drop_reason == drop_reason_t.NONE && cookied == 0) {
                uncookied_meter.apply(meta.service.id, above);
                if (above == 1) {
                    meta.decided.drop_reason = drop_reason_t.METER_UNCOOKIED;
                }
            }
            if (answered == 0 && meta.decided.drop_reason == drop_reason_t.NONE) {
                plain_meter.apply(meta.flow.client_cell, above);
                if (above == 1) {
                    meta.decided.drop_reason = drop_reason_t.METER_PLAIN;
                }
            }
        }
    }
}

// Turns the SYN into its SYN-ACK. The options keep their places, so the SYN-ACK is as long as the
// SYN.
control CookieRewrite(inout headers_t hdr, in bridged_t bridged, inout written_t written) {
    apply {
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = bridged.tor_mac;
        bit<16> port = hdr.tcp.dst_port;
        hdr.tcp.dst_port = hdr.tcp.src_port;
        hdr.tcp.src_port = port;
        hdr.tcp.acknowledgement = hdr.tcp.sequence + 1;
        hdr.tcp.sequence = bridged.isn;
        hdr.tcp.reserved = 0;
        hdr.tcp.flags = TCP_SYN | TCP_ACK;  // without ECN
        hdr.tcp.window = 0xffff;
        hdr.tcp.urgent = 0;
        // A window scale exactly where there are timestamps, of no shift.
        if (bridged.syn_layout == syn_layout_t.LINUX) {
            hdr.syn20.options = 16w0x0204 ++ bridged.mss ++ 32w0x0402080a ++ bridged.stamp_value ++ hdr.syn20.options[95:64]
                                ++ 32w0x01030300;
            written.syn_options = hdr.syn20.options ++ 32w0;
        } else if (bridged.syn_layout == syn_layout_t.FREEBSD) {
            hdr.syn20.options = 16w0x0204 ++ bridged.mss ++ 32w0x01030300 ++ 32w0x0402080a ++ bridged.stamp_value
                                ++ hdr.syn20.options[63:32];
            written.syn_options = hdr.syn20.options ++ 32w0;
        } else if (bridged.syn_layout == syn_layout_t.MACOS) {
            hdr.syn24.options = 16w0x0204 ++ bridged.mss ++ 32w0x01030300 ++ 32w0x0101080a ++ bridged.stamp_value
                                ++ hdr.syn24.options[95:64] ++ 32w0x04020000;
            written.syn_options = hdr.syn24.options;
        } else {
            if (bridged.syn_layout == syn_layout_t.WINDOWS) {
                hdr.syn12.options = 16w0x0204 ++ bridged.mss ++ 32w0x01010101 ++ 32w0x01010402;
            } else {
                hdr.syn12.options = 16w0x0204 ++ bridged.mss ++ 32w0x01010402 ++ 32w0x01010101;
            }
            written.syn_options = hdr.syn12.options ++ 96w0;
        }
        written.tcp_length = 10w0 ++ hdr.tcp.data_offset ++ 2w0;
        if (hdr.ipv4.isValid()) {
            bit<32> asked = hdr.ipv4.dst;
            hdr.ipv4.dst = hdr.ipv4.src;
            hdr.ipv4.src = asked;
            hdr.ipv4.tos = hdr.ipv4.tos & 0xfc;
            hdr.ipv4.identification = 0;
            hdr.ipv4.dont_fragment = 1;
            hdr.ipv4.ttl = HOP_LIMIT;
            hdr.ipv4.total_length = IPV4_HEADER_BYTES + written.tcp_length;
            written.truncate_length = hdr.ipv4.total_length;
            written.pseudo_src = 96w0 ++ hdr.ipv4.src;
            written.pseudo_dst = 96w0 ++ hdr.ipv4.dst;
        } else {
            bit<128> asked = hdr.ipv6.dst;
            hdr.ipv6.dst = hdr.ipv6.src;
            hdr.ipv6.src = asked;
            hdr.ipv6.traffic_class = hdr.ipv6.traffic_class & 0xfc;
            hdr.ipv6.hop_limit = HOP_LIMIT;
            hdr.ipv6.payload_length = written.tcp_length;
            written.truncate_length = IPV6_HEADER_BYTES + written.tcp_length;
            written.pseudo_src = hdr.ipv6.src;
            written.pseudo_dst = hdr.ipv6.dst;
        }
        written.fresh_syn_ack = 1;
    }
}

#endif

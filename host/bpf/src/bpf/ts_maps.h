/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Shared by the headers of ts.h: the layout of timestamps, maps, and the parser of TCP options. */
#ifndef TS_MAPS_H
#define TS_MAPS_H

#include "edit.h"
#include "segment.h"
#include "sip.h"
#include "trods.h"

/* Fields of a timestamp with their widths in bits (host/plain/src/object_stamp.rs): index 5, class
 * 2, key 1, constant 11 2, scale 3, object 19. */
#define STAMP_INDEX 27
#define STAMP_CLASS 25
#define STAMP_ODD 24
#define STAMP_KIND (3U << 22)
#define STAMP_SCALE 19
#define STAMP_OBJECT ((1U << 19) - 1)
/* The object number of connections that no replica can resume. It is above all numbers of objects.
 */
#define NOBODYS STAMP_OBJECT
#define INDICES 32
/* How far the index may be ahead of the echoed one: PAWS compares values within half of their
 * range. */
#define AHEAD (INDICES / 2 - 1)
/* Least time between two changes of the index, nanoseconds. */
#define INDEX_STEP (16 * 1000000ULL)
/* "TROD": first word of the ISN's hash. */
#define ISN_DOMAIN 0x54524f44

/* Window and window scale of our SYN-ACKs. */
#define OUR_WINDOW 64240
#define OUR_SCALE 7
#define SYN_ACK_OPTIONS 20
#define SYN_ACK_HEADER (TCP_HEADER + SYN_ACK_OPTIONS)

#define TCP_OPTIONS_MAX 40
/* Most bytes of a request that is parsed, of a head, and of a date. */
#define REQUEST_MAX 1460
/* Most bytes that are parsed of a Host field: the longest name, a port, and spaces. */
#define HOST_MAX 272
#define HEAD_MAX 1024
#define DATE 29
/*
 * Most bytes of data ahead of the client's acknowledgement: sequence numbers compare within half of
 * their range.
 */
#define DATA_AHEAD (1U << 30)
#define NS_PER_MS 1000000ULL
/* Nanoseconds in which another processor may still be creating the socket of a connection that the
 * kernel was given. */
#define TAKEN_FOR (10 * NS_PER_MS)
/* How often a request is received again until its socket exists: longer than the creation of a
 * socket takes. If no socket is created, the bound ends the repetitions. */
#define TIMES_AGAIN 100

/* Four characters as a word in network order. */
#define OF(a, b, c, d) ((__u32)(a) << 24 | (__u32)(b) << 16 | (__u32)(c) << 8 | (__u32)(d))

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ISSUERS + 1);
	__type(key, __u32);
	__type(value, struct issuer);
} issuers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_TARGETS);
	__type(key, struct head_key);
	__type(value, struct heads);
} heads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_ISSUED);
	__type(key, struct flow_key);
	__type(value, struct issued);
} issued SEC(".maps");

_Static_assert(sizeof(struct event) == EVENT_HEADER + EVENT_OCTETS, "events without their octets");

/* Events of connections that timestamps name from now on. The process polls this ring every two
 * milliseconds, so an event need not wake it. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, NAMED_SIZE);
} named SEC(".maps");

/* The last request for an object of the table, in the form of the event that the process gets if it
 * has to record the connection. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_REQUESTS);
	__type(key, struct flow_key);
	__uint(value_size, EVENT_HEADER + REQUEST_MAX);
} requests SEC(".maps");

/* Decision about the next data of a connection. */
enum next_words {
	NAMES, /* timestamps name the response */
	FREES, /* no replica can resume the connection */
	RECORDS, /* the process records the data first */
	RETRIES, /* the process cannot be informed now: the data must be retransmitted */
};

/* Verdict: the connection is handled without timestamps. */
#define PASS 0x7fff

/* Options that a SYN offers. */
struct offer {
	__u32 value; /* TSval */
	__u16 mss;
	__u8 scale;
	bool has_stamps, has_scale, has_sack;
};

/* Options of a TCP header, read one after the other by read_option. */
struct options {
	struct offer offer;
	__u32 at, length;
	__u32 stamps; /* offset of TSval in the header; 0: absent */
};

/* Reads one option from the scratch buffer, which is longer than the options of any header. */
static long read_option(__u32 n __attribute__((unused)), struct options *o)
{
	struct scratch *at = scratch();

	if (!at || o->at >= o->length || o->at >= TCP_OPTIONS_MAX)
		return 1;
	const __u8 *octets = at->event.octets + o->at;
	__u8 kind = octets[0], size = octets[1];
	struct offer *offer = &o->offer;
	if (kind == 1) {
		o->at++;
		return 0;
	}
	if (!kind || size < 2)
		return 1;
	if (kind == 2 && size == 4) {
		offer->mss = octets[2] << 8 | octets[3];
	} else if (kind == 3 && size == 3) {
		offer->scale = octets[2];
		offer->has_scale = true;
	} else if (kind == 4 && size == 2) {
		offer->has_sack = true;
	} else if (kind == 8 && size == 10 && o->at + 10 <= o->length) {
		offer->value = (__u32)octets[2] << 24 | octets[3] << 16 | octets[4] << 8 | octets[5];
		offer->has_stamps = true;
		o->stamps = TCP_HEADER + o->at + 2;
	}
	o->at += size;
	return 0;
}

static __always_inline void read_options(struct __sk_buff *skb, const struct segment *s, struct scratch *at, struct options *o)
{
	__u32 length = s->header - TCP_HEADER;

	asm volatile("" : "+r"(length));
	if (!length || length > TCP_OPTIONS_MAX ||
	    bpf_skb_load_bytes(skb, s->tcp + TCP_HEADER, at->event.octets, length))
		return;
	o->length = length;
	bpf_loop(TCP_OPTIONS_MAX, read_option, o, 0);
}

/* Offset of TSval in the TCP header; 0 without timestamps. */
static __always_inline __u32 stamps_at(struct __sk_buff *skb, const struct segment *s, struct scratch *at)
{
	__be32 begins;
	struct options o = {};

	/* The usual position (RFC 7323, appendix A) needs no parsing. */
	if (s->header >= TCP_HEADER + 12 && load_words(skb, s->tcp + TCP_HEADER, &begins, sizeof(begins)) &&
	    begins == bpf_htonl(OF(1, 1, 8, 10)))
		return TCP_HEADER + 4;
	read_options(skb, s, at, &o);
	return o.stamps;
}

/* Replaces a word of the TCP header. */
static __always_inline bool put_word(struct __sk_buff *skb, const struct segment *s, __u32 at, __be32 before, __be32 now)
{
	return !bpf_l4_csum_replace(skb, s->tcp + TCP_CHECKSUM, before, now, sizeof(now)) &&
	       !bpf_skb_store_bytes(skb, s->tcp + at, &now, sizeof(now), 0);
}

#endif

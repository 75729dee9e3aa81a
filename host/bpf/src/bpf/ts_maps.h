/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the headers of ts.h have together: the form of timestamps, maps, and where options are. */
#ifndef TS_MAPS_H
#define TS_MAPS_H

#include "edit.h"
#include "segment.h"
#include "sip.h"
#include "trods.h"

/* A timestamp (host/plain/src/object_stamp.rs): index 5 | class 2 | key 1 | 11 2 | scale 3 | object 19. */
#define STAMP_INDEX 27
#define STAMP_CLASS 25
#define STAMP_ODD 24
#define STAMP_KIND (3U << 22)
#define STAMP_SCALE 19
#define STAMP_OBJECT ((1U << 19) - 1)
/* The object that nobody can go on with: more than any other. */
#define NOBODYS STAMP_OBJECT
#define INDICES 32
/* How far the index may be ahead of the one that the client echoes: PAWS compares values within half of the range. */
#define AHEAD (INDICES / 2 - 1)
/* Nanoseconds that an index lasts at least. */
#define INDEX_STEP (16 * 1000000ULL)
/* "TROD": what the ISN's hash has in front. */
#define ISN_DOMAIN 0x54524f44

/* What we say in a SYN-ACK: the window, and its scale later on. */
#define OUR_WINDOW 64240
#define OUR_SCALE 7
#define SYN_ACK_OPTIONS 20
#define SYN_ACK_HEADER (TCP_HEADER + SYN_ACK_OPTIONS)

#define TCP_OPTIONS_MAX 40
/* Octets of the longest request and of the longest head that are looked at; of a date. */
#define REQUEST_MAX 1460
/* Octets that are looked at for a host: the longest name, a port, and what stands before it. */
#define HOST_MAX 272
#define HEAD_MAX 1024
#define DATE 29
/* How far data may be ahead of what the client acknowledged: numbers are compared within half of theirs. */
#define DATA_AHEAD (1U << 30)
#define NS_PER_MS 1000000ULL
/* Nanoseconds: for so long after the kernel was given a connection its socket may be in the making on another processor. */
#define TAKEN_FOR (10 * NS_PER_MS)
/* How often what asks for something comes in again until then: longer than a socket takes, and no work where there will be none. */
#define TIMES_AGAIN 100

/* Four octets as they come. */
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

/* Connections that timestamps name from now on. Whoever tells others of them looks every other millisecond: nobody is woken. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, NAMED_SIZE);
} named SEC(".maps");

/* The last request for what is in the table, as the process would be told of it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_REQUESTS);
	__type(key, struct flow_key);
	__uint(value_size, EVENT_HEADER + REQUEST_MAX);
} requests SEC(".maps");

/* What becomes of a connection whose next words are looked at. */
enum next_words {
	NAMES, /* timestamps name them */
	FREES, /* nobody can go on with it */
	RECORDS, /* the process records them first */
	RETRIES, /* the process cannot be told now: they are to come again */
};

/* It is the programs' that know nothing of timestamps. */
#define PASS 0x7fff

/* What a SYN offers. */
struct offer {
	__u32 value; /* TSval */
	__u16 mss;
	__u8 scale;
	bool has_stamps, has_scale, has_sack;
};

/* Options of a TCP header, read one after the other. */
struct options {
	struct offer offer;
	__u32 at, length;
	__u32 stamps; /* where TSval is in the header; 0: nowhere */
};

/* One option of those that lie in the scratch's octets, which have room for more than any. */
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

/* Where TSval stands in the TCP header; 0 if there are no timestamps. */
static __always_inline __u32 stamps_at(struct __sk_buff *skb, const struct segment *s, struct scratch *at)
{
	__be32 begins;
	struct options o = {};

	/* Where nearly all have them (RFC 7323, appendix A). */
	if (s->header >= TCP_HEADER + 12 && load_words(skb, s->tcp + TCP_HEADER, &begins, sizeof(begins)) &&
	    begins == bpf_htonl(OF(1, 1, 8, 10)))
		return TCP_HEADER + 4;
	read_options(skb, s, at, &o);
	return o.stamps;
}

/* Puts another word into the TCP header. */
static __always_inline bool put_word(struct __sk_buff *skb, const struct segment *s, __u32 at, __be32 before, __be32 now)
{
	return !bpf_l4_csum_replace(skb, s->tcp + TCP_CHECKSUM, before, now, sizeof(now)) &&
	       !bpf_skb_store_bytes(skb, s->tcp + at, &now, sizeof(now), 0);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Parses requests, and compares response heads with the table (ts.h). */
#ifndef TS_OBJECT_H
#define TS_OBJECT_H

#include "ts_maps.h"

/* State of the request parser. */
struct parsed {
	const __u8 *octets;
	__u64 target; /* FNV-1a of the target, a space, and the host in lower case */
	__u32 length; /* bytes of the request */
	__u32 last; /* the last four bytes */
	__u32 ends; /* end of the head; 0: not found */
	bool in_target;
	bool has_fields; /* fields that may change the response */
	__u32 host; /* offset after "\nhos" of the field Host; 0: absent */
	__u32 inputs; /* offset after "\nx-t" of a field; 0: absent */
};

/* The value of the field Host. */
struct host {
	const __u8 *octets;
	__u64 target; /* the hash that it is added to */
	__u32 at, length;
	bool begun, bad, ended;
};

static __always_inline __u64 add_octet(__u64 sum, __u8 octet)
{
	return (sum ^ octet) * 0x100000001b3ULL;
}

/* Parses one byte after "
 * hos". Spaces are allowed only before the value. */
static long read_host(__u32 n, struct host *host)
{
	__u32 at = host->at + n;

	if (at >= host->length || at >= REQUEST_MAX)
		return 1;
	__u8 octet = host->octets[at];
	if (octet == '\r') {
		host->ended = true;
		return 1;
	}
	if (octet >= 'A' && octet <= 'Z')
		octet |= 0x20;
	if (n < 2) {
		if (octet != (n ? ':' : 't'))
			host->bad = true;
	} else if (octet == ' ' || octet == '\t') {
		if (host->begun)
			host->bad = true;
	} else {
		host->target = add_octet(host->target, octet);
		host->begun = true;
	}
	return 0;
}

static long read_octet(__u32 n, struct parsed *p)
{
	__u32 at = n + 4;

	if (at >= p->length || at >= REQUEST_MAX)
		return 1;
	__u8 octet = p->octets[at];
	if (p->in_target) {
		if (octet == ' ') {
			p->in_target = false;
		}
		p->target = add_octet(p->target, octet);
		return 0;
	}
	if (octet >= 'A' && octet <= 'Z')
		octet |= 0x20;
	__u32 last = p->last << 8 | octet;
	p->last = last;
	if (last == OF('\r', '\n', '\r', '\n')) {
		p->ends = at + 1;
		return 1;
	}
	/* Range, If-..., Cookie, Authorization, Content-..., Transfer-Encoding and Expect may change the
	 * response. */
	if (last == OF('\n', 'r', 'a', 'n') || last == OF('\n', 'i', 'f', '-') || last == OF('\n', 'c', 'o', 'o') ||
	    last == OF('\n', 'a', 'u', 't') || last == OF('\n', 't', 'r', 'a') || last == OF('\n', 'e', 'x', 'p'))
		p->has_fields = true;
	/* X-TRODS or X_TRODS: the name is changed, or no replica can resume the connection (inputs.h). */
	if (last == OF('\n', 'x', '-', 't') || last == OF('\n', 'x', '_', 't'))
		p->inputs = at + 1;
	if (last == OF('r', 'o', 'd', 's') && at == p->inputs + 3)
		p->has_fields = true;
	/* With two Host fields, the server may use the other one. */
	if (last == OF('\n', 'h', 'o', 's')) {
		if (p->host)
			p->has_fields = true;
		p->host = at + 1;
	}
	/* A folded line continues the field before it. */
	if ((last & 0xffff) == ('\n' << 8 | ' ') || (last & 0xffff) == ('\n' << 8 | '\t'))
		p->has_fields = true;
	return 0;
}

/* Hash of `octets`, which must be padded with zeros to a multiple of eight bytes. */
static __always_inline __u64 sum_words(const __u8 *octets, __u32 length)
{
	__u64 sum = length;

	for (__u32 n = 0; n < HEAD_MAX / 8; n++) {
		if (8 * n >= length)
			break;
		sum = (sum ^ *(const __u64 *)(octets + 8 * n)) * 0x9e3779b97f4a7c15ULL;
		sum ^= sum >> 29;
	}
	return sum;
}

/* Marks the connection and its timestamps: no replica can resume it. Counts the reason unless the
 * connection is over. */
static __always_inline void set_free(struct stamped *st, __u32 why)
{
	if (st->phase == STAMPED_FREE)
		return;
	st->object = NOBODYS;
	st->phase = STAMPED_FREE;
	if (why < COUNTERS)
		count(why);
}

/* Whether the client holds bytes of an object behind a hole. Then only that object, with the same
 * head, may be sent. */
static __always_inline bool is_bound(const struct stamped *st)
{
	return st->phase < STAMPED_NAMED && st->object;
}

/* Hands a connection to the process, with an event for the part that the process does not know yet.
 * Nothing after that part was acknowledged or has left. */
static __always_inline enum next_words hand_over(const struct segment *s, struct stamped *st, struct scratch *at)
{
	bool is_named = st->phase == STAMPED_NAMED || st->phase == STAMPED_ECHOED, is_asked = st->phase == STAMPED_ASKED;
	struct limits limits = st->limits;
	__u32 words[4] = { st->isn, st->base, limits.first + (is_named ? st->total : 0), st->flags & STAMPED_ADOPTED };

	if (is_named)
		limits.ack = st->client_next;
	limits.data = words[2];
	limits.has_fin = 0;
	/* The process must find the limits when it reads the event. */
	if (bpf_map_update_elem(&flows, &s->key, &limits, BPF_ANY))
		return FREES;
	__builtin_memcpy(at->event.octets, words, sizeof(words));
	if (!tell(&at->event, s, EVENT_UNNAMED, 0, limits.ack, sizeof(words))) {
		bpf_map_delete_elem(&flows, &s->key);
		return RETRIES;
	}
	st->phase = STAMPED_RECORDED;
	struct event *request = is_asked ? bpf_map_lookup_elem(&requests, &s->key) : NULL;
	if (!request)
		return RECORDS;
	__u32 length = request->length;
	asm volatile("" : "+r"(length));
	/* If the ring has no room for the event, the client retransmits the request. */
	if (length <= REQUEST_MAX)
		bpf_ringbuf_output(&events, request, EVENT_HEADER + length, 0);
	return RECORDS;
}

/* Handles data that timestamps cannot name: the process records the connection if the service has a
 * store; otherwise this counts the reason. */
static __always_inline enum next_words go_unnamed(const struct segment *s, struct stamped *st, const struct service *service,
						  __u32 why, struct scratch *at)
{
	if (st->phase == STAMPED_FREE)
		return FREES;
	if (is_bound(st))
		return RETRIES;
	enum next_words words = service->records ? hand_over(s, st, at) : FREES;
	if (words != FREES)
		return words;
	set_free(st, service->records ? COUNT_FULL_ISSUED : why);
	return FREES;
}

/* Parses the client's first data, and decides whether it is a request for an object of the table.
 */
static __always_inline enum next_words take_request(struct __sk_buff *skb, const struct segment *s, struct stamped *st,
						    const struct service *service, const struct issuer *issuer,
						    struct scratch *at)
{
	__u32 length = s->length;
	struct parsed p = { .octets = at->event.octets, .target = 0xcbf29ce484222325ULL, .in_target = true };

	asm volatile("" : "+r"(length));
	if (length < 5 || length > REQUEST_MAX ||
	    bpf_skb_load_bytes(skb, s->tcp + s->header, at->event.octets, length) ||
	    *(__u32 *)at->event.octets != bpf_htonl(OF('G', 'E', 'T', ' ')))
		return go_unnamed(s, st, service, COUNT_ASKING, at);
	p.length = length;
	bpf_loop(REQUEST_MAX, read_octet, &p, 0);
	if (p.ends != length)
		return go_unnamed(s, st, service, COUNT_ASKING, at);
	/* The Host field selects the site, on a server with several. */
	struct host host = { .octets = at->event.octets, .target = p.target, .at = p.host, .length = length };
	bpf_loop(HOST_MAX, read_host, &host, 0);
	/* A longer name than HOST_MAX could belong to another site whose name begins alike. */
	if (p.has_fields || !p.host || !host.begun || !host.ended || host.bad)
		return go_unnamed(s, st, service, COUNT_FIELDS, at);
	struct head_key key = { .table = issuer->table, .target = host.target };
	struct heads *found = bpf_map_lookup_elem(&heads, &key);
	if (!found)
		return go_unnamed(s, st, service, COUNT_UNLISTED, at);
	if (service->records) {
		/* The process needs the request if the response has another head. */
		write_event(&at->event, s, EVENT_REQUEST, s->flags & FIN ? EVENT_HAS_FIN : 0, s->seq, length);
		bpf_map_update_elem(&requests, &s->key, &at->event, BPF_ANY);
	}
	st->target = host.target;
	st->table = issuer->table;
	st->client_next = s->seq + length;
	st->phase = STAMPED_ASKED;
	return NAMES;
}

/* Whether the response begins with a head of the table. If so, timestamps name its object from now
 * on. */
static __always_inline bool name_response(struct __sk_buff *skb, const struct segment *s, struct stamped *st,
					  struct scratch *at)
{
	struct limits *limits = &st->limits;
	struct head_key key = { .table = st->table, .target = st->target };
	struct heads *found = bpf_map_lookup_elem(&heads, &key);

	if (!found)
		return false;
	for (int n = 0; n < HEADS; n++) {
		struct head *head = &found->of[n];
		__u32 length = head->length, date = head->date;
		__u8 *octets = at->event.octets;
		asm volatile("" : "+r"(length), "+r"(date));
		if (!length || length > HEAD_MAX || length > s->length || date > HEAD_MAX)
			continue;
		if (is_bound(st) && st->object != head->object)
			continue;
		if (bpf_skb_load_bytes(skb, s->tcp + s->header, octets, length))
			continue;
		for (int i = 0; i < 8; i++)
			octets[length + i] = 0;
		if (date)
			for (int i = 0; i < DATE; i++)
				octets[date + i] = 0;
		if (sum_words(octets, length) != head->sum)
			continue;
		st->object = head->object;
		st->total = head->total;
		st->phase = STAMPED_NAMED;
		limits->fin = limits->first + st->total;
		limits->data = limits->first + (st->total < DATA_AHEAD ? st->total : DATA_AHEAD);
		limits->has_fin = limits->data == limits->fin ? HAS_FIN : 0;
		count(COUNT_NAMED);
		/* A response of a single segment may be lost. Its request then stays unacknowledged, and the
		 * client retransmits it. */
		if (st->total > 1400) {
			write_event(&at->event, s, EVENT_STAMPED, 0, st->client_next, 0);
			bpf_ringbuf_output(&named, &at->event, EVENT_HEADER, BPF_RB_NO_WAKEUP);
		}
		return true;
	}
	return false;
}

#endif

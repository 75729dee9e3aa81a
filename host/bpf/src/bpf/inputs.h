/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The header field X-TRODS, in which a server lists the inputs of a generated response for the
 * replica that resumes it (Lloyd and Freedman, section 7). It passes between servers and agents
 * only: clients must neither set it nor receive it.
 *
 * In a request, the program changes the last letter of the field's name before the server gets the
 * segment, so the server finds an unknown field. It scans requests byte by byte, because TCP may
 * cut them anywhere. A segment that arrives out of order is not scanned. The process reads the
 * request in order, and ends the connection if the name is still there (Reason::Inputs).
 *
 * In a response, the program overwrites the field by one of the same length without a value, in
 * each segment that leaves. The process reads the heads of responses before they may leave, and
 * stores the positions of the fields. The kernel retransmits without the process, in segments of
 * any length, so the program overwrites the field each time. Held frames and records keep the field
 * as the server sent it.
 */
#ifndef INPUTS_H
#define INPUTS_H

#include "segment.h"
#include "edit.h"
#include "trods_maps.h"

/* State of the scan of a request. */
enum scanned {
	SCANNED_NONE, /* a request begins with the next byte */
	SCANNED_HEAD, /* within the head of a GET or HEAD */
	SCANNED_OFF, /* the connection carries something else, which is not changed */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_SCANS);
	__type(key, struct flow_key);
	__type(value, struct scan);
} scans SEC(".maps");

/* The scan of one part of a segment. */
struct scanner {
	struct __sk_buff *skb;
	__u8 *octets;
	__u32 length;
	__u32 at; /* offset of the part in the frame; even distance from the TCP header */
	__u32 checksum; /* offset of the TCP checksum */
	__u32 state;
	__u64 last;
	__u64 failed;
};

/* "\nx-trods" */
#define INPUTS_NAME 0x0a782d74726f6473ULL
/* XORed to the last letter of the name, this turns an s into an x. */
#define RENAMES ('s' ^ 'x')

/* Whether a byte of a field's name, in lower case, is neither a letter nor a digit. */
static __always_inline bool is_sign(__u8 octet)
{
	return octet > ' ' && octet < 0x7f && octet != ':' && !(octet >= 'a' && octet <= 'z') && !(octet >= '0' && octet <= '9');
}

static long scan_octet(__u32 n, struct scanner *scan)
{
	if (n >= scan->length || n >= EVENT_OCTETS)
		return 1;
	__u8 before = scan->octets[n], octet = before;

	if (scan->state == SCANNED_NONE) {
		/* Empty lines before a request are allowed (RFC 9112, 2.2). */
		if (octet != '\r' && octet != '\n')
			scan->state = octet == 'G' || octet == 'H' ? SCANNED_HEAD : SCANNED_OFF;
		scan->last = 0;
		return scan->state == SCANNED_OFF;
	}
	if (octet >= 'A' && octet <= 'Z')
		octet |= 0x20;
	/* CGI passes either spelling as HTTP_X_TRODS (RFC 3875, 4.1.18); lighttpd also accepts any other
	 * sign. */
	if (is_sign(octet))
		octet = '-';
	scan->last = scan->last << 8 | octet;
	if ((scan->last & 0xffff) == 0x0a0a || (scan->last & 0xffffff) == 0x0a0d0a) {
		scan->state = SCANNED_NONE;
		return 0;
	}
	if (scan->last != INPUTS_NAME)
		return 0;
	__u8 after = before ^ RENAMES;
	scan->octets[n] = after;
	scan->failed = !change_byte(scan->skb, scan->checksum, scan->at, n, before, after);
	count(COUNT_INPUTS);
	return scan->failed != 0;
}

/* Begins the scan of a client's segment, in the state in which the scan of the segment before it
 * ended. */
static __always_inline void begin_scan(const struct segment *s, struct scan *scan)
{
	struct scan *before = has_happened(HAPPENED_SCAN) ? bpf_map_lookup_elem(&scans, &s->key) : NULL;
	bool follows = before && before->next == s->seq;

	scan->last = follows ? before->last : 0;
	scan->state = follows ? before->state : SCANNED_NONE;
}

/* Scans the part of a client's segment that begins `done` bytes after the start of its data and was
 * loaded into the scratch event. Changes the name of the field there and in the segment. Returns
 * false if the segment may be changed in part; the caller must drop it then. Not inlined, so that
 * the verifier checks it once. */
__attribute__((noinline)) bool scan_part(struct __sk_buff *skb, const struct segment *s, __u32 done, __u32 length)
{
	struct scratch *at = scratch();

	if (!at || !s)
		return false;
	struct scanner scanner = {
		.skb = skb, .octets = at->event.octets, .length = length, .at = s->tcp + s->header + done,
		.checksum = s->tcp + TCP_CHECKSUM, .state = at->scan.state, .last = at->scan.last,
	};
	if (scanner.state != SCANNED_OFF)
		bpf_loop(EVENT_OCTETS, scan_octet, &scanner, 0);
	at->scan.state = scanner.state;
	at->scan.last = scanner.last;
	return !scanner.failed;
}

/* Stores the scan's state after the process got an event of the segment: the next one continues
 * from here. */
static __always_inline void end_scan(const struct segment *s, struct scan *scan)
{
	if (scan->state == SCANNED_NONE) {
		if (has_happened(HAPPENED_SCAN))
			bpf_map_delete_elem(&scans, &s->key);
		return;
	}
	happens(HAPPENED_SCAN);
	scan->next = s->seq + s->length;
	bpf_map_update_elem(&scans, &s->key, scan, BPF_ANY);
}

/* Fields of responses that are overwritten (struct blanks). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_BLANKS);
	__type(key, struct flow_key);
	__type(value, struct blanks);
} blanks SEC(".maps");

/* "Padding:", then spaces. */
#define BLANK_NAME 0x50616464696e673aULL
#define BLANK_NAME_OCTETS 8
/* Most bytes of a field, and of a head. */
#define FIELD_MAX 2048
/* When a connection has sent this many bytes after a field, the field is removed, because its
 * sequence numbers may be used again soon. */
#define BLANK_BEHIND (1U << 30)

struct blanker {
	struct __sk_buff *skb;
	__u32 seq, length; /* of the segment's data */
	__u32 at; /* offset of the data in the frame; even distance from the TCP header */
	__u32 checksum;
	__u32 from, to;
	__u64 failed;
};

static long blank_octet(__u32 n, struct blanker *b)
{
	__u32 in = b->from + n - b->seq;
	__u8 before, after = ' ';

	if (n >= b->to - b->from)
		return 1;
	if (in >= b->length)
		return 0;
	if (n < BLANK_NAME_OCTETS)
		after = BLANK_NAME >> 8 * (BLANK_NAME_OCTETS - 1 - n);
	b->failed = 1;
	if (bpf_skb_load_bytes(b->skb, b->at + in, &before, sizeof(before)))
		return 1;
	b->failed = !change_byte(b->skb, b->checksum, b->at, in, before, after);
	return b->failed != 0;
}

/* Overwrites the fields in a segment that leaves. Returns false if the segment may be changed in
 * part; the caller must drop it then. Not inlined, so that the verifier checks it once. */
__attribute__((noinline)) bool blank_fields(struct __sk_buff *skb, const struct segment *s)
{
	struct blanks *of = s ? bpf_map_lookup_elem(&blanks, &s->key) : NULL;

	if (!of)
		return true;
	struct blanker b = {
		.skb = skb, .seq = s->seq, .length = s->length, .at = s->tcp + s->header, .checksum = s->tcp + TCP_CHECKSUM,
	};
	for (__u32 n = 0; n < MAX_FIELDS && n < of->count; n++) {
		b.from = of->fields[n].from;
		b.to = of->fields[n].to;
		if (after(s->seq, b.to + BLANK_BEHIND)) {
			bpf_map_delete_elem(&blanks, &s->key);
			return true;
		}
		if (after(b.to, s->seq) && after(s->seq + s->length, b.from))
			bpf_loop(FIELD_MAX, blank_octet, &b, 0);
		if (b.failed)
			return false;
	}
	return true;
}

/* Removes the entries of a former connection with this key. */
static __always_inline void forget_inputs(const struct flow_key *key)
{
	if (has_happened(HAPPENED_SCAN))
		bpf_map_delete_elem(&scans, key);
	if (has_happened(HAPPENED_BLANKS))
		bpf_map_delete_elem(&blanks, key);
}

#endif

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * tcx programs that hold a server's TCP to the state that is stored elsewhere, so that another
 * host can adopt its connections (docs/trods.md).
 *
 * The programs know nothing of HTTP. A connection of a protected service gets limits at the end of
 * its handshake. Acknowledgements and data beyond them do not leave, a FIN leaves at one sequence
 * number only, and a RST never leaves. The client's data is copied to the process that sets the
 * limits. Frames with data beyond the limits go to the process through a TAP, and come back
 * through this program when the limits have moved. So the limits hold whatever the process does.
 * The programs stay attached for a few seconds after the process ends (src/linger.rs).
 *
 * The process writes limits and orphans. The program makes the first limits of a connection and
 * sends the process an event before any data of that connection.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "trods.h"
#include "trods_maps.h"
#include "segment.h"
#include "edit.h"
#include "inputs.h"

/* Parses a segment and looks up its service. NULL: it belongs to no protected service. */
static __always_inline struct service *parse(struct __sk_buff *skb, struct segment *s, bool from_client)
{
	struct service_key key = {};

	if (!read_segment(skb, s, from_client))
		return NULL;
	for (int i = 0; i < 4; i++)
		key.address[i] = s->key.service[i];
	key.port = s->key.service_port;
	return bpf_map_lookup_elem(&services, &key);
}

/* Not inlined, so that the verifier walks its loop once. */
__attribute__((noinline)) bool is_intact(struct __sk_buff *skb, const struct segment *s)
{
	struct scratch *at = scratch();

	return at && s && has_sum(skb, s, at->event.octets);
}

/* Fills in the header of an event that already holds its `length` bytes. */
static __always_inline void write_event(struct event *e, const struct segment *s, __u8 kind, __u8 flags, __u32 seq,
					__u32 length)
{
	__builtin_memcpy(&e->key, &s->key, sizeof(e->key));
	e->seq = seq;
	e->ack = s->ack;
	e->length = length;
	e->kind = kind;
	e->flags = flags;
}

/* Sends the process an event that holds `length` bytes. */
static __always_inline bool tell(struct event *e, const struct segment *s, __u8 kind, __u8 flags, __u32 seq, __u32 length)
{
	/* Always true, but the verifier has to see the bound at the call. */
	asm volatile("" : "+r"(length));
	if (length > EVENT_OCTETS)
		return false;
	write_event(e, s, kind, flags, seq, length);
	return !bpf_ringbuf_output(&events, e, offsetof(struct event, octets) + length, 0);
}

/* Sends an event for a segment without data. If the ring is full, no event is sent until the next
 * such segment. */
static __always_inline void mention(const struct segment *s, __u8 kind, __u8 flags, __u32 seq)
{
	struct scratch *at = scratch();

	if (at)
		tell(&at->event, s, kind, flags, seq, 0);
}

/* Copies the segment's data into events. The name of the field X-TRODS is changed in both (inputs.h). */
static __always_inline bool copy_data(struct __sk_buff *skb, const struct segment *s)
{
	struct scratch *at = scratch();
	__u32 from = s->tcp + s->header, length = s->length;

	if (!at || length > MAX_SEGMENT)
		return false;
	begin_scan(s, &at->scan);
	for (__u32 done = 0; done <= MAX_SEGMENT; done += EVENT_OCTETS) {
		__u32 left = length - done, part = left < EVENT_OCTETS ? left : EVENT_OCTETS;
		asm volatile("" : "+r"(part));
		if (part && part <= EVENT_OCTETS && bpf_skb_load_bytes(skb, from + done, at->event.octets, part))
			return false;
		if (part && !scan_part(skb, s, done, part))
			return false;
		bool last = left <= EVENT_OCTETS;
		__u8 flags = last && s->flags & FIN ? EVENT_HAS_FIN : 0;
		if (!tell(&at->event, s, EVENT_REQUEST, flags, s->seq + done, part))
			return false;
		if (last && length)
			end_scan(s, &at->scan);
		if (last)
			return true;
	}
	return false;
}

/* Sends the process a whole packet if one event has room for it. Otherwise the process gets the
 * client's retransmission. */
static __always_inline void park(struct __sk_buff *skb, const struct segment *s)
{
	__u32 whole = s->tcp - ETH_HLEN + s->header + s->length;
	struct scratch *at = scratch();

	asm volatile("" : "+r"(whole));
	if (at && whole && whole <= EVENT_OCTETS && !bpf_skb_load_bytes(skb, ETH_HLEN, at->event.octets, whole))
		tell(&at->event, s, EVENT_PARKED, 0, s->seq, whole);
}

/*
 * Stores the header of a SYN or SYN-ACK. A connection whose SYN has data (RFC 7413) is not
 * protected.
 */
static __always_inline void note_syn(struct __sk_buff *skb, const struct segment *s, bool from_client)
{
	struct scratch *at = scratch();

	if (!at)
		return;
	struct opening *opening = &at->opening;
	struct opening *before = bpf_map_lookup_elem(&openings, &s->key);
	if (from_client) {
		__builtin_memset(opening, 0, sizeof(*opening));
		opening->has_syn = !s->length && load_header(skb, s, opening->syn);
		opening->client_next = s->seq + 1;
		/* A retransmitted SYN must not reset the entry, because its SYN-ACK may have left already. */
		if (before && before->has_syn && before->client_next == opening->client_next)
			return;
	} else {
		if (!before || !before->has_syn)
			return;
		__builtin_memcpy(opening, before, sizeof(*opening));
		opening->has_syn_ack = s->ack == opening->client_next && load_header(skb, s, opening->syn_ack);
		opening->server_next = s->seq + 1;
	}
	bpf_map_update_elem(&openings, &s->key, opening, BPF_ANY);
}

/* Removes entries of a former connection between the same ports, when a new one begins. */
static __always_inline void forget_former(const struct flow_key *key)
{
	if (has_happened(HAPPENED_PIN))
		bpf_map_delete_elem(&pins, key);
	if (has_happened(HAPPENED_DEATH))
		bpf_map_delete_elem(&dying, key);
	if (has_happened(HAPPENED_WITHHELD))
		bpf_map_delete_elem(&withheld, key);
	forget_inputs(key);
}

static __always_inline struct pin *find_pin(const struct flow_key *key)
{
	return has_happened(HAPPENED_PIN) ? bpf_map_lookup_elem(&pins, key) : NULL;
}

/* Gives a connection its first limits, with the segment that completes its handshake. Returns false
 * if there was no room; the segment is dropped then, and the client retransmits it. */
static __always_inline bool open_flow(const struct segment *s)
{
	struct opening *opening = bpf_map_lookup_elem(&openings, &s->key);

	if (!opening || !opening->has_syn_ack || s->ack != opening->server_next || s->seq != opening->client_next)
		return true;
	struct limits limits = {
		.ack = opening->client_next, .data = opening->server_next, .first = opening->server_next, .acked = s->ack,
	};
	struct scratch *at = scratch();
	forget_former(&s->key);
	if (!at || bpf_map_update_elem(&flows, &s->key, &limits, BPF_NOEXIST)) {
		count(COUNT_FULL);
		return true;
	}
	__builtin_memcpy(at->event.octets, opening->syn, 2 * TCP_HEADER_MAX);
	if (!tell(&at->event, s, EVENT_OPENED, 0, opening->server_next, 2 * TCP_HEADER_MAX)) {
		bpf_map_delete_elem(&flows, &s->key);
		return false;
	}
	bpf_map_delete_elem(&openings, &s->key);
	count(COUNT_OPENED);
	return true;
}

#include "members.h"
#include "beyond.h"
#include "window.h"
#include "ts.h"
#include "refusals.h"

SEC("tcx/ingress")
int trods_ingress(struct __sk_buff *skb)
{
	struct segment s = {};
	struct service *service = parse(skb, &s, true);
	struct lease *lease = service ? bpf_map_lookup_elem(&leases, &service->lease) : NULL;
	struct issuer *issuer = NULL;

	if (!lease)
		return NEXT;
	if (ISSUES && service->issuer) {
		__u32 number = service->issuer;
		issuer = bpf_map_lookup_elem(&issuers, &number);
		int verdict = issuer ? ingress_issued(skb, &s, service, lease, issuer) : NEXT;
		if (verdict != PASS)
			return verdict;
	}
	if (s.flags & SYN) {
		if (!(s.flags & ACK) && is_intact(skb, &s))
			note_syn(skb, &s, true);
		return NEXT;
	}
	struct limits *limits = bpf_map_lookup_elem(&flows, &s.key);
	if (!limits && (!issuer || service->records) && s.flags & ACK && !(s.flags & RST)) {
		if (!open_flow(&s))
			goto lost;
		limits = bpf_map_lookup_elem(&flows, &s.key);
	}
	if (!limits) {
		struct pin *pin = find_pin(&s.key);
		if (pin) {
			/* The holder may be dead. Then this replica adopts the connection, and needs the client's
			 * segments from before the adoption. */
			if (s.length && is_from(skb, pin->tor) && is_intact(skb, &s))
				park(skb, &s);
			return hand_on(skb, pin);
		}
		/* After a replica's death, timestamps identify its connections, including those of which this
		 * replica got no announcement. */
		bool hunts = issuer && bpf_ktime_get_ns() < issuer->hunting && !(s.flags & RST) && !has_socket(skb, &s);
		if (!hunts && !bpf_map_lookup_elem(&orphans, &s.key)) {
			__u32 state = socket_state(skb, &s);
			/*
			 * It completes a handshake without an entry: the SYN had data, or the entry
			 * was evicted.
			 */
			bool records = !issuer || service->records;
			if (records && state == BPF_TCP_NEW_SYN_RECV && !bpf_map_lookup_elem(&openings, &s.key))
				count(COUNT_HANDSHAKE);
			if (s.flags & RST || state)
				return bound_freed(skb, &s) ? NEXT : DROP;
			if (!issuer)
				return second_chance(skb, &s, lease);
			skb->mark = UNKNOWN;
			return NEXT;
		}
		count(COUNT_PARKED);
		/* A segment that another replica handed on is not parked: that replica also gets the client's
		 * retransmission, and two replicas would adopt the connection. */
		if (is_first_hand(skb, lease) && is_intact(skb, &s))
			park(skb, &s);
		return DROP;
	}
	/*
	 * Without a socket the kernel would send a RST. Segments with data are replayed when the
	 * socket exists, and are checked then.
	 */
	if (limits->flags & LIMITS_AWAITED) {
		if (s.length && is_intact(skb, &s))
			park(skb, &s);
		return DROP;
	}
	/*
	 * Marked so that the second chance does not hand it on (host/rivulet/src/second_chance.rs).
	 */
	skb->mark = KNOWN;
	__u32 heard = s.ack;
	if (limits->flags & LIMITS_ADOPTED && !bound_ack(skb, &s, &heard))
		return DROP;
	if (!is_acceptable(&s, heard, limits, 1)) {
		count(COUNT_OUTSIDE);
		return NEXT;
	}
	/*
	 * A FIN that the client got from another replica ends the connection only when this kernel
	 * has sent its FIN, too.
	 */
	bool ended = s.flags & ACK && limits->has_fin && heard == limits->fin + 1;
	/* The client cannot acknowledge bytes that have not left. */
	bool acks = s.flags & ACK && after(s.ack, limits->acked) && !after(s.ack, limits->data + !!limits->has_fin);
	if ((acks || ended || s.length || s.flags & (FIN | RST)) && !is_intact(skb, &s))
		return NEXT;
	if (s.flags & RST) {
		mention(&s, EVENT_RESET, 0, s.seq);
		return NEXT;
	}
	if (acks)
		limits->acked = s.ack;
	if (ended)
		mention(&s, EVENT_ENDED, 0, s.seq);
	if ((s.length || s.flags & FIN) && !copy_data(skb, &s))
		goto lost;
	return NEXT;
lost:
	count(COUNT_LOST);
	return DROP;
}

/* Receives replayed segments that a client sent before its connection was adopted here. */
SEC("tcx/ingress")
int trods_again(struct __sk_buff *skb)
{
	(void)skb;
	return bpf_redirect(watched, BPF_F_INGRESS);
}

/* Stores a frame without data, to be sent when the limits have moved. */
static __always_inline void withhold(struct __sk_buff *skb, const struct segment *s)
{
	struct scratch *at = scratch();
	__u32 length = s->tcp + s->header;

	if (!at)
		return;
	asm volatile("" : "+r"(length));
	if (length < ETH_HLEN || length > WITHHELD_MAX)
		return;
	at->withheld.length = length;
	if (!bpf_skb_load_bytes(skb, 0, at->withheld.frame, length)) {
		happens(HAPPENED_WITHHELD);
		bpf_map_update_elem(&withheld, &s->key, &at->withheld, BPF_ANY);
	}
}

/* Judges a segment of a connection without limits. The mark RELEASED shows a RST by which the
 * process ends a connection that it no longer protects; it also leaves shortly after the exclusion
 * of a replica. */
static __always_inline int egress_free(struct __sk_buff *skb, const struct segment *s, const struct lease *lease, __u64 now)
{
	if (s->flags & SYN) {
		note_syn(skb, s, false);
	} else {
		bool is_pinned = find_pin(&s->key);
		/* Another replica may have adopted the connection. */
		if (now >= lease->until)
			return mute(skb, s, lease, now, is_pinned);
		/* A connection of the previous process ends while its record is searched for: the FIN or RST must
		 * not leave before the search is over. */
		bool is_parked = s->flags & (FIN | RST) && bpf_map_lookup_elem(&orphans, &s->key);
		if ((is_pinned || (is_parked && s->flags & FIN)) && !(s->flags & RST)) {
			count(COUNT_MUTED);
			return swallow();
		}
		/* If the holder itself handed the segment on to this replica, neither has the connection, and the
		 * RST may leave. */
		if (s->flags & RST && (is_pinned || skb->mark != RELEASED) &&
		    (is_parked || refuses_early(s, lease, now, is_pinned))) {
			count(is_pinned ? COUNT_MUTED : COUNT_RESETS);
			return swallow();
		}
	}
	return NEXT;
}

static __always_inline __u8 of_dead(const struct segment *s)
{
	return has_happened(HAPPENED_DEATH) && bpf_map_lookup_elem(&dying, &s->key) ? EVENT_OF_DEAD : 0;
}

/* Whether a FIN may leave at this place. */
static __always_inline bool may_end(const struct limits *limits, const struct segment *s, __u32 end)
{
	if (!limits->has_fin || limits->fin != end)
		return false;
	return limits->has_fin & HAS_FIN_OF_DEAD || !of_dead(s);
}

/* Decides whether a server's segment leaves, and changes it where needed. */
static __always_inline int judge(struct __sk_buff *skb, struct segment *seg, const struct service *service,
				 const struct lease *lease, struct stamped *st, struct scratch *at, __u64 now)
{
	struct segment s = *seg;
	struct limits *limits = st ? limits_of(&s.key, st) : bpf_map_lookup_elem(&flows, &s.key);
	if (!limits)
		return egress_free(skb, &s, lease, now);
	if (now >= lease->until)
		return mute(skb, &s, lease, now, true);
	if (s.flags & RST) {
		count(COUNT_RESETS);
		withhold(skb, &s);
		mention(&s, EVENT_ABORTED, of_dead(&s), s.seq);
		return swallow();
	}
	__u32 end = s.seq + s.length;
	if (s.flags & SYN) {
		/* Either a retransmission, or the SYN-ACK of a new connection between the same ports whose
		 * predecessor's end was not seen. */
		if (s.seq + 1 != limits->first) {
			bpf_map_delete_elem(&flows, &s.key);
			note_syn(skb, &s, false);
		}
		return NEXT;
	}
	if (s.length && after(end, limits->data)) {
		bool is_recorded = !st || st->phase == STAMPED_RECORDED;
		enum next_words words = is_recorded ? RECORDS : may_leave(skb, &s, st, service, at);
		if (words == FREES)
			return NEXT;
		if (words == RETRIES)
			return swallow();
		if (words == RECORDS) {
			count(COUNT_HELD);
			return tap ? bpf_redirect(tap, 0) : swallow();
		}
	}
	__u32 ack = st ? acknowledges(skb, &s, st, limits) : limits->ack;
	if (s.flags & FIN && !may_end(limits, &s, end)) {
		count(COUNT_FINS);
		mention(&s, EVENT_FIN, of_dead(&s), end);
		if (!s.length) {
			withhold(skb, &s);
			return swallow();
		}
		if (!strip_fin(skb, &s))
			return swallow();
	}
	if (st && s.flags & ACK && !after(st->client_next, s.ack))
		st->owed = 0;
	if (s.flags & ACK && after(s.ack, ack)) {
		if (st && !st->told)
			owe(skb, &s, st);
		if (!s.length && !(s.flags & FIN)) {
			count(COUNT_ACKS);
			/* If timestamps name the response, its next segment carries the acknowledgement. */
			if (!st || st->phase == STAMPED_RECORDED)
				withhold(skb, &s);
			return swallow();
		}
		count(COUNT_CLAMPED);
		if (!clamp_ack(skb, &s, ack))
			return swallow();
	}
	return NEXT;
}

SEC("tcx/egress")
int trods_egress(struct __sk_buff *skb)
{
	struct segment s = {};
	struct service *service = parse(skb, &s, false);
	struct lease *lease = service ? bpf_map_lookup_elem(&leases, &service->lease) : NULL;
	struct scratch *at = scratch();
	struct stamped *st = NULL;

	if (!lease || !at)
		return NEXT;
	if (s.flags & SYN && dead) {
		count(COUNT_MUTED);
		return swallow();
	}
	if (ISSUES && service->issuer) {
		/*
		 * The kernel made this SYN-ACK: entries of a former connection between these ports
		 * are obsolete.
		 */
		if (s.flags & SYN)
			bpf_map_delete_elem(&stamped, &s.key);
		if (s.flags & SYN && !service->records)
			return NEXT;
		st = s.flags & SYN ? NULL : bpf_map_lookup_elem(&stamped, &s.key);
	}
	__u64 now = bpf_ktime_get_ns();
	int verdict = judge(skb, &s, service, lease, st, at, now);
	if (has_happened(HAPPENED_BLANKS)) {
		if (s.flags & SYN)
			bpf_map_delete_elem(&blanks, &s.key);
		else if (s.length && verdict == NEXT && !blank_fields(skb, &s))
			return swallow();
	}
	return st && verdict == NEXT ? stamp(skb, &s, st, at, now) : verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * tcx: holds a server's TCP to what was stored elsewhere, so that another host can go on with its connections (docs/trods.md).
 *
 * Nothing here knows HTTP. A connection of a protected service has limits from the end of its handshake: acknowledgements
 * and data beyond them do not leave, a FIN leaves at one place, a RST never. What the client sends is copied to the process
 * that sets the limits; data beyond them goes to it whole, through a TAP, and comes back through this program when the
 * limits have moved. So nothing gets past it, whatever the process does. The programs go a few seconds after the process
 * (src/linger.rs).
 *
 * The process writes limits and orphans; this program makes the first limits of a connection, and tells it before anything
 * that the connection carries.
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

/* What a segment's service stands under, and by which lease; none: it is none of a service. */
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

/* A function of its own to the verifier, which looks at its loop once. */
__attribute__((noinline)) bool is_intact(struct __sk_buff *skb, const struct segment *s)
{
	struct scratch *at = scratch();

	return at && s && has_sum(skb, s, at->event.octets);
}

/* Makes an event whose `length` octets stand in it already. */
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

/* Tells the process; `length` octets stand in the event. */
static __always_inline bool tell(struct event *e, const struct segment *s, __u8 kind, __u8 flags, __u32 seq, __u32 length)
{
	/* Already so; the verifier has to see it at the call. */
	asm volatile("" : "+r"(length));
	if (length > EVENT_OCTETS)
		return false;
	write_event(e, s, kind, flags, seq, length);
	return !bpf_ringbuf_output(&events, e, offsetof(struct event, octets) + length, 0);
}

/* Tells of a segment that carries nothing; if there is no room, of the next one like it. */
static __always_inline void mention(const struct segment *s, __u8 kind, __u8 flags, __u32 seq)
{
	struct scratch *at = scratch();

	if (at)
		tell(&at->event, s, kind, flags, seq, 0);
}

/* Copies the segment's data in as many events as it takes. */
static __always_inline bool copy_data(struct __sk_buff *skb, const struct segment *s)
{
	struct scratch *at = scratch();
	__u32 from = s->tcp + s->header, length = s->length;

	if (!at || length > MAX_SEGMENT)
		return false;
	for (__u32 done = 0; done <= MAX_SEGMENT; done += EVENT_OCTETS) {
		__u32 left = length - done, part = left < EVENT_OCTETS ? left : EVENT_OCTETS;
		asm volatile("" : "+r"(part));
		if (part && part <= EVENT_OCTETS && bpf_skb_load_bytes(skb, from + done, at->event.octets, part))
			return false;
		bool last = left <= EVENT_OCTETS;
		__u8 flags = last && s->flags & FIN ? EVENT_HAS_FIN : 0;
		if (!tell(&at->event, s, EVENT_REQUEST, flags, s->seq + done, part))
			return false;
		if (last)
			return true;
	}
	return false;
}

/* Copies a whole packet, if one event has room for it; a client sends again what it must. */
static __always_inline void park(struct __sk_buff *skb, const struct segment *s)
{
	__u32 whole = s->tcp - ETH_HLEN + s->header + s->length;
	struct scratch *at = scratch();

	asm volatile("" : "+r"(whole));
	if (at && whole && whole <= EVENT_OCTETS && !bpf_skb_load_bytes(skb, ETH_HLEN, at->event.octets, whole))
		tell(&at->event, s, EVENT_PARKED, 0, s->seq, whole);
}

/* One of the two SYNs. The client's comes first; a connection whose SYN has data (RFC 7413) is not protected. */
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
		/* The same SYN again: its answer may have been sent. */
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

/* A connection begins: what others hold, said, or were the processes of was another one between these ports. */
static __always_inline void forget_former(const struct flow_key *key)
{
	if (has_happened(HAPPENED_PIN))
		bpf_map_delete_elem(&pins, key);
	if (has_happened(HAPPENED_DEATH))
		bpf_map_delete_elem(&dying, key);
	if (has_happened(HAPPENED_WITHHELD))
		bpf_map_delete_elem(&withheld, key);
}

static __always_inline struct pin *find_pin(const struct flow_key *key)
{
	return has_happened(HAPPENED_PIN) ? bpf_map_lookup_elem(&pins, key) : NULL;
}

/* The segment that ends a handshake makes its connection a protected one. False: it is to come again. */
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
			/* Who holds it may have said its last word: then this replica goes on, with what its client says until then. */
			if (s.length && is_from(skb, pin->tor) && is_intact(skb, &s))
				park(skb, &s);
			return hand_on(skb, pin);
		}
		/* One whose replica is gone says by itself what it is, where nobody has told of it. */
		bool hunts = issuer && bpf_ktime_get_ns() < issuer->hunting && !(s.flags & RST) && !has_socket(skb, &s);
		if (!hunts && !bpf_map_lookup_elem(&orphans, &s.key)) {
			__u32 state = socket_state(skb, &s);
			/* Its handshake ends, of which nothing is known: its SYN had data, or others pushed it out. */
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
		/* What another replica handed on, since it knows nothing yet, comes to it again: two would go on with it. */
		if (is_first_hand(skb, lease) && is_intact(skb, &s))
			park(skb, &s);
		return DROP;
	}
	/* Without its socket the kernel would reset it. What the client asks comes in again when there is one, and is looked at then. */
	if (limits->flags & LIMITS_AWAITED) {
		if (s.length && is_intact(skb, &s))
			park(skb, &s);
		return DROP;
	}
	/* Nobody hands it on (host/rivulet/src/second_chance.rs). */
	skb->mark = KNOWN;
	__u32 heard = s.ack;
	if (limits->flags & LIMITS_ADOPTED && !bound_ack(skb, &s, &heard))
		return DROP;
	if (!is_acceptable(&s, heard, limits, 1)) {
		count(COUNT_OUTSIDE);
		return NEXT;
	}
	/* Whose end it had from another replica is not over here before the kernel has said it, too. */
	bool ended = s.flags & ACK && limits->has_fin && heard == limits->fin + 1;
	/* What was not let through is not acknowledged. */
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

/* What a client said before its connection stood here. */
SEC("tcx/ingress")
int trods_again(struct __sk_buff *skb)
{
	(void)skb;
	return bpf_redirect(watched, BPF_F_INGRESS);
}

/* Keeps a frame without data, for when the limits have moved. */
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

/*
 * A segment of a connection that has no limits. A RST that was withheld and is sent now ends one that the process gave up: the
 * client is to hear it, however soon after the exclusion of a replica.
 */
static __always_inline int egress_free(struct __sk_buff *skb, const struct segment *s, const struct lease *lease, __u64 now)
{
	if (s->flags & SYN) {
		note_syn(skb, s, false);
	} else {
		bool is_pinned = find_pin(&s->key);
		/* Another may go on with it, of which the kernel, or as yet nobody here, knows. */
		if (now >= lease->until)
			return mute(skb, s, lease, now, is_pinned);
		/* Nor does the end of one that the process before had, before it is known whether a record tells of it. */
		bool is_parked = s->flags & (FIN | RST) && bpf_map_lookup_elem(&orphans, &s->key);
		if ((is_pinned || (is_parked && s->flags & FIN)) && !(s->flags & RST)) {
			count(COUNT_MUTED);
			return swallow();
		}
		/* Where its holder handed it on to here neither has it. */
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

/* Whether a FIN may stand there. */
static __always_inline bool may_end(const struct limits *limits, const struct segment *s, __u32 end)
{
	if (!limits->has_fin || limits->fin != end)
		return false;
	return limits->has_fin & HAS_FIN_OF_DEAD || !of_dead(s);
}

/* What a server says: whether it may leave, perhaps changed. */
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
		/* Of this connection, sent again, or of another one between the same ports: the end of the former was not seen. */
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
			/* Of what is named the next segment says it. */
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
		/* The kernel's own: what is left of another connection between these ports is over. */
		if (s.flags & SYN)
			bpf_map_delete_elem(&stamped, &s.key);
		if (s.flags & SYN && !service->records)
			return NEXT;
		st = s.flags & SYN ? NULL : bpf_map_lookup_elem(&stamped, &s.key);
	}
	__u64 now = bpf_ktime_get_ns();
	int verdict = judge(skb, &s, service, lease, st, at, now);
	return st && verdict == NEXT ? stamp(skb, &s, st, at, now) : verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";

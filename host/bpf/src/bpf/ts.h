/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Connections that can be resumed without a store: the timestamps that their clients echo identify
 * them (docs/trods-stamps.md).
 *
 * The program answers SYNs. The ISN is a hash of both ends, and the kernel gets the connection
 * with the client's acknowledgement, as from a SYN cookie that is valid once. So only timestamps
 * have to be translated later: segments that leave carry timestamps that name the object being
 * sent, and echoes are replaced by the kernel's newest timestamp of that index.
 *
 * An acknowledgement of the request leaves only with a timestamp that names the response, in a
 * segment that the client accepts in order, or after the client has echoed such a timestamp. So a
 * client whose request was acknowledged shows every replica which bytes it lacks.
 */
#ifndef TS_H
#define TS_H

#include "beyond.h"
#include "window.h"
#include "ts_maps.h"
#include "ts_handshake.h"
#include "ts_object.h"
#include "ts_reflect.h"

/* Replaces the echoed timestamp in a client's segment by the kernel's own. */
static __always_inline void hear_echo(struct __sk_buff *skb, const struct segment *s, struct stamped *st, struct scratch *at)
{
	__be32 before;
	__u32 where = stamps_at(skb, s, at);

	/* A coarse clock is enough: idle times are seconds. */
	st->heard = bpf_ktime_get_coarse_ns();
	if (!where || !load_words(skb, s->tcp + where + 4, &before, sizeof(before)))
		return;
	__u32 echo = bpf_ntohl(before), index = echo >> STAMP_INDEX;
	if (((index - st->echo) & (INDICES - 1)) <= ((st->index - st->echo) & (INDICES - 1)))
		st->echo = index;
	/* An index from before the adoption maps to 0, which the kernel ignores. */
	put_word(skb, s, where + 4, before, bpf_htonl(st->originals[index & (INDICES - 1)]));
	if (st->phase == STAMPED_NAMED && (echo & STAMP_OBJECT) == st->object) {
		st->phase = STAMPED_ECHOED;
		st->limits.ack = st->client_next;
	}
}

/* Whether the client acknowledges the whole response. Acknowledgements from before its first byte
 * do not count. */
static __always_inline bool has_whole(const struct segment *s, const struct stamped *st)
{
	__u32 has = s->ack - st->isn - 1;

	return has >= st->total && has - st->total <= BEYOND_MOST;
}

/* Records the client's FIN, and its acknowledgement of our FIN. */
static __always_inline void hear_ends(const struct segment *s, struct stamped *st)
{
	if (s->flags & ACK && s->ack == st->fin + 1 && st->fin)
		st->flags |= STAMPED_FIN_ACKED;
	if (s->flags & FIN)
		st->flags |= STAMPED_CLIENT_FIN;
}

/* Handles a client's segment of a connection with our timestamps. The caller has verified its
 * checksum, unless a damaged segment does no harm. */
static __always_inline enum next_words hear_stamped(struct __sk_buff *skb, const struct segment *s, struct stamped *st,
						    const struct service *service, const struct issuer *issuer,
						    struct scratch *at)
{
	struct limits *limits = &st->limits;
	__u32 first = st->isn + 1;
	enum next_words words = NAMES;
	bool is_ack = s->flags & ACK;

	hear_echo(skb, s, st, at);
	if (st->phase != STAMPED_FREE && is_ack && after(s->ack, limits->acked) && !after(s->ack, limits->data + 1)) {
		limits->acked = s->ack;
		/* Numbers more than half of the number range ahead would compare as being behind. */
		__u32 reach = s->ack - first + DATA_AHEAD;
		if (st->phase >= STAMPED_NAMED && st->total > DATA_AHEAD) {
			limits->data = first + (reach < st->total ? reach : st->total);
			limits->fin = first + st->total;
			limits->has_fin = limits->data == limits->fin ? HAS_FIN : 0;
		}
	}
	bool is_named = st->phase >= STAMPED_NAMED, has_all = is_named && has_whole(s, st);
	if (s->length && st->phase != STAMPED_FREE) {
		if (st->phase == STAMPED_SETUP && s->seq == st->client_next)
			words = take_request(skb, s, st, service, issuer, at);
		else if (after(s->seq + s->length, st->client_next) && is_named && !has_all)
			/* No record has the head of the first response. */
			set_free(st, COUNT_SECOND);
		else if (after(s->seq + s->length, st->client_next))
			words = go_unnamed(s, st, service, is_named ? COUNT_SECOND : COUNT_ASKING, at);
	}
	/* RETRIES: the client retransmits the segment. RECORDS: the process handles it. */
	if (words == RETRIES || words == RECORDS)
		return words;
	/* Without a response in progress there is nothing to resume. */
	if (s->flags & FIN && !is_bound(st) && (st->phase == STAMPED_SETUP || (st->phase >= STAMPED_NAMED && has_all)))
		set_free(st, COUNTERS);
	return words;
}

/* Whether this segment of the client ends the connection. */
static __always_inline bool ends_stamped(const struct segment *s, const struct stamped *st)
{
	bool both = st->flags & STAMPED_CLIENT_FIN && st->flags & STAMPED_FIN_ACKED;

	/* If our FIN was sent first, the client's FIN must still be acknowledged. */
	return both && !(s->flags & FIN);
}

/* Decides about data beyond the limit. If the data begins no known response, either the process
 * records it, or it leaves and no replica can resume the connection. */
static __always_inline enum next_words may_leave(struct __sk_buff *skb, const struct segment *s, struct stamped *st,
						 const struct service *service, struct scratch *at)
{
	__u32 why = st->phase >= STAMPED_NAMED ? COUNT_SECOND : COUNT_ASKING;

	/* If the process is dead, no replica is informed of the response: so the segment is dropped, the
	 * client retransmits its request, and another replica gets it. */
	if (dead && st->phase == STAMPED_ASKED)
		return RETRIES;
	if (st->phase == STAMPED_ASKED && s->seq == st->limits.first) {
		if (!name_response(skb, s, st, at))
			return go_unnamed(s, st, service, COUNT_HEAD, at);
		if (!after(s->seq + s->length, st->limits.data))
			return NAMES;
		why = COUNT_SECOND;
	}
	/* This is not the first byte of the response, and the bytes before it have not left. */
	if (st->phase == STAMPED_ASKED && service->records)
		return go_unnamed(s, st, service, COUNT_HEAD, at);
	if (is_bound(st))
		return RETRIES;
	set_free(st, why);
	return FREES;
}

/* Highest acknowledgement that this segment may carry. */
static __always_inline __u32 acknowledges(const struct __sk_buff *skb, const struct segment *s, struct stamped *st,
					  const struct limits *limits)
{
	/* The client takes the timestamp of the first segment that it accepts, so that segment must be
	 * sent as a single one. */
	bool is_first = st->phase == STAMPED_NAMED && s->length && s->seq == limits->first && skb->gso_segs <= 1;

	if (!is_first)
		return limits->ack;
	st->told = s->flags & ACK && !after(st->client_next, s->ack);
	return st->client_next;
}

/* Writes our timestamp into a segment that leaves. */
static __always_inline int stamp(struct __sk_buff *skb, const struct segment *s, struct stamped *st, struct scratch *at,
				 __u64 now)
{
	__u32 where = stamps_at(skb, s, at);
	__be32 before;

	if (!where || !load_words(skb, s->tcp + where, &before, sizeof(before)))
		return NEXT;
	if (now - st->since >= INDEX_STEP && ((st->index - st->echo) & (INDICES - 1)) < AHEAD) {
		st->index = (st->index + 1) % INDICES;
		st->since = now;
	}
	st->originals[st->index & (INDICES - 1)] = bpf_ntohl(before);
	if (st->phase == STAMPED_RECORDED) {
		/* Until a record is stored, the connection may be resumed by echoed timestamps. */
		struct limits *limits = bpf_map_lookup_elem(&flows, &s->key);
		if (!limits || limits->flags & LIMITS_RECORDED)
			st->object = NOBODYS;
	}
	__u32 value = st->base | (__u32)st->index << STAMP_INDEX | (is_bound(st) ? 0 : st->object);
	if (!put_word(skb, s, where, before, bpf_htonl(value)))
		return DROP;
	if (s->flags & FIN)
		st->fin = s->seq + s->length;
	/* After closing first, the server has now sent its last segment. */
	if (st->flags & STAMPED_CLIENT_FIN && st->flags & STAMPED_FIN_ACKED)
		bpf_map_delete_elem(&stamped, &s->key);
	return NEXT;
}

/* Handles a client's segment to a service with issued handshakes. Returns PASS if the connection
 * has no issued handshake or is recorded. */
static __always_inline int ingress_issued(struct __sk_buff *skb, const struct segment *s, const struct service *service,
					  const struct lease *lease, const struct issuer *issuer)
{
	struct scratch *at = scratch();

	if (!at)
		return DROP;
	if (s->flags & SYN)
		return s->flags & ACK || !is_intact(skb, s) ? NEXT : answer_syn(skb, s, service, lease, issuer, at);
	struct stamped *st = bpf_map_lookup_elem(&stamped, &s->key);
	struct issued *made = find_issued(s, st);
	if (!st && !made)
		return PASS;
	skb->mark = KNOWN;
	if (!is_intact(skb, s))
		return NEXT;
	if (made && st && has_socket(skb, s)) {
		bpf_map_delete_elem(&issued, &s->key);
	} else if (made) {
		/* Another processor is creating the socket. Until it exists the kernel would answer with a RST,
		 * so the segment is received again. */
		if (__sync_val_compare_and_swap(&made->taken, 0, bpf_ktime_get_ns())) {
			if (!s->length || made->again >= TIMES_AGAIN)
				return DROP;
			made->again++;
			return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
		}
		if (!accept_issued(skb, s, made, at)) {
			made->taken = 0;
			count(COUNT_LOST);
			return DROP;
		}
		st = bpf_map_lookup_elem(&stamped, &s->key);
		if (!st)
			return DROP;
	}
	bool is_recorded = st->phase == STAMPED_RECORDED;
	struct limits *limits = is_recorded ? limits_of(&s->key, st) : NULL;
	/* A connection in STAMPED_FREE has no limits. */
	const struct limits *held = is_recorded ? limits : st->phase == STAMPED_FREE ? NULL : &st->limits;
	/* Acknowledgements beyond the data that was sent are lowered further down. */
	if (held && !is_acceptable(s, s->ack, held, st->flags & STAMPED_ADOPTED ? BEYOND_MOST : 1)) {
		count(COUNT_OUTSIDE);
		return NEXT;
	}
	if (is_recorded && s->flags & RST)
		return limits ? PASS : NEXT;
	if (s->flags & RST) {
		mention(s, EVENT_RESET, 0, s->seq);
		if (s->seq == st->client_next)
			bpf_map_delete_elem(&stamped, &s->key);
		return NEXT;
	}
	enum next_words words = RECORDS;
	/* A segment that will be replayed must stay unchanged. */
	if (limits && limits->flags & LIMITS_AWAITED)
		return PASS;
	if (is_recorded)
		hear_echo(skb, s, st, at);
	else
		words = hear_stamped(skb, s, st, service, issuer, at);
	if (words == RETRIES) {
		count(COUNT_LOST);
		return DROP;
	}
	hear_ends(s, st);
	/* The acknowledgement is sent back to the segment's source, and a segment that another member
	 * handed on has that member's address as its source. */
	if (is_owed(s, st) && is_first_hand(skb, lease) && !reflect(skb, s, st))
		return DROP;
	bool is_limited = words == RECORDS && (limits || !is_recorded);
	/* The caller lowers acknowledgements of recorded connections. */
	__u32 heard;
	if (!is_limited && st->flags & STAMPED_ADOPTED && !bound_ack(skb, s, &heard))
		return DROP;
	if (ends_stamped(s, st))
		bpf_map_delete_elem(&stamped, &s->key);
	return is_limited ? PASS : NEXT;
}

#endif

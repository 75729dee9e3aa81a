/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Segments that a replica must not send for now, and RSTs of the kernel for connections that it
 * does not know. After a plain drop the sender would wait for its retransmission timer, which
 * doubles each time. So the server's TCP is made to retry every half second, and the process gets
 * an event for each refused segment, at which it probes the client
 * (host/trods/src/hold/refusals.rs).
 */
#ifndef REFUSALS_H
#define REFUSALS_H

#include "segment.h"
#include "trods_maps.h"

/* Nanoseconds for which RSTs to a client that is unknown here are held back, from the first one on.
 */
#define REFUSED_AFTER 1000000000ULL
/* Nanoseconds without a RST after which the next one counts as the first again: another replica may
 * have had the connection meanwhile, and died. Longer than the pauses between two probes of the
 * process (host/trods/src/hold/refusals.rs), so that probes alone keep the count. */
#define REFUSED_PAUSE 3000000000ULL
/* Nanoseconds after which a RST leaves in any case, also while the connection is searched for or
 * pinned to another replica. */
#define REFUSED_AT_LAST 2000000000ULL
/* Nanoseconds after the end of a lease from which on segments are dropped as local congestion. A
 * lease often returns sooner, and TCP's own timers are faster then. */
#define MUTED_LONG 500000000ULL
/* Most refusal events of one processor in TOLD_IN nanoseconds: enough for the clients of one dead
 * replica. More would be a flood. */
#define TOLD_MOST 32
#define TOLD_IN 50000000ULL

/* Makes a segment vanish while its sender counts it as sent. TCP takes a drop on its own host as
 * congestion, and would halve its window (tcp_enter_cwr). */
static __always_inline int swallow(void)
{
	return bpf_redirect(NOWHERE, 0);
}

/* Sends the process an event for a RST that was held back and that answers a segment with ACK set.
 */
static __always_inline void tell_refusal(const struct segment *s, __u64 now)
{
	struct scratch *at = scratch();

	if (!at || dead || s->flags & ACK)
		return;
	if (now - at->refusals.since >= TOLD_IN) {
		at->refusals.since = now;
		at->refusals.count = 0;
	}
	if (at->refusals.count < TOLD_MOST) {
		at->refusals.count++;
		mention(s, EVENT_REFUSED, 0, s->seq);
	}
}

/* Whether the server's TCP waits for an acknowledgement of data that it has sent. */
static __always_inline bool awaits_ack(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk ? bpf_sk_fullsock(skb->sk) : NULL;
	struct bpf_tcp_sock *tcp = sk ? bpf_tcp_sock(sk) : NULL;

	return !tcp || tcp->packets_out;
}

/* Drops a segment that leaves while the lease does not hold. TCP takes a drop on its own host as
 * local congestion: it retries 500 ms later and does not double its timeout
 * (TCP_RESOURCE_PROBE_INTERVAL), so the server resumes soon after its replica may send again. New
 * data with nothing in flight is the exception: each such drop counts as an unanswered window
 * probe, and the 15th (tcp_retries2) ends the connection without a RST. TCP must count such a
 * segment as sent, so it is swallowed. */
static __always_inline int mute(struct __sk_buff *skb, const struct segment *s, const struct lease *lease, __u64 now, bool is_known)
{
	count(COUNT_MUTED);
	if (s->flags & RST && !is_known)
		tell_refusal(s, now);
	bool is_retried = (s->length || s->flags & FIN) && !(s->flags & RST);
	if (is_retried && now - lease->until >= MUTED_LONG && awaits_ack(skb))
		return DROP;
	return swallow();
}

/* Whether to hold back a RST that the kernel sends because it does not know the connection or has
 * no server. The ToR sends clients here as soon as it excludes another replica, and this replica is
 * informed later. So RSTs are held back while the connection may be searched for, for at least a
 * second after the first. A client that retransmits after that second is reset. */
static __always_inline bool refuses_early(const struct segment *s, const struct lease *lease, __u64 now, bool is_pinned)
{
	struct refusal *before, first = { .at = now, .last = now };

	/*
	 * A RST of a live server also has ACK set (RFC 9293, 3.10.7.1) and is not held back unless
	 * the connection is pinned.
	 */
	if (s->flags & ACK && s->seq)
		return is_pinned;
	before = bpf_map_lookup_elem(&refused, &s->key);
	if (before && now - before->last < REFUSED_PAUSE) {
		__u64 since = now - before->at;

		before->last = now;
		/* In all this time no replica has answered the client. */
		if (since >= REFUSED_AT_LAST)
			return false;
		return is_pinned || now < lease->settling || since < REFUSED_AFTER;
	}
	bpf_map_update_elem(&refused, &s->key, &first, BPF_ANY);
	if (!is_pinned)
		tell_refusal(s, now);
	return true;
}

#endif

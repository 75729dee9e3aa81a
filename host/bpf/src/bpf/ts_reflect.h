/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Acknowledges a request whose response left completely before the client echoed its name (ts.h).
 * The kernel sends no further segment that could carry the acknowledgement, and without it the
 * client would retransmit the request. So the client's acknowledgement of the whole response is
 * turned into ours and sent back.
 */
#ifndef TS_REFLECT_H
#define TS_REFLECT_H

#include "ts_maps.h"

/* A header with timestamps as its only options. */
struct stamped_header {
	__be16 source, dest;
	__be32 seq, ack;
	__be16 flags, window, checksum, urgent;
	__be32 kinds, value, echo;
};

/* Stores the window of an acknowledgement that may not leave yet. */
static __always_inline void owe(struct __sk_buff *skb, const struct segment *s, struct stamped *st)
{
	bpf_skb_load_bytes(skb, s->tcp + TCP_WINDOW, &st->owed, sizeof(st->owed));
}

/* Whether the request is still to be acknowledged, and no other segment will do so. */
static __always_inline bool is_owed(const struct segment *s, const struct stamped *st)
{
	bool is_word = s->flags == ACK && !s->length;

	return st->owed && st->phase == STAMPED_ECHOED && is_word && s->ack - st->isn - 1 >= st->total;
}

/* Swaps source and destination addresses. Checksums stay valid. */
static __always_inline bool turn(struct __sk_buff *skb)
{
	if (!swap(skb, 0, ETH_ALEN))
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return swap(skb, ETH_HLEN + offsetof(struct iphdr, saddr), sizeof(__be32));
	return swap(skb, ETH_HLEN + offsetof(struct ipv6hdr, saddr), sizeof(struct in6_addr));
}

/* Sends the client's segment back to it as an acknowledgement of the kernel, then restores the
 * segment. The egress program writes the timestamp. Returns false if the segment may be changed in
 * part. Not inlined, because its caller reaches it on many paths that the verifier would check one
 * by one. */
__attribute__((noinline)) bool reflect(struct __sk_buff *skb, const struct segment *s, struct stamped *st)
{
	struct stamped_header said;

	if (!s || !st || s->header != sizeof(said) || bpf_skb_load_bytes(skb, s->tcp, &said, sizeof(said)) ||
	    said.kinds != bpf_htonl(OF(1, 1, 8, 10)))
		return true;
	struct stamped_header answer = {
		.source = said.dest,
		.dest = said.source,
		.seq = said.ack,
		.ack = bpf_htonl(st->client_next),
		.flags = said.flags,
		.window = st->owed,
		.checksum = said.checksum,
		.urgent = said.urgent,
		.kinds = said.kinds,
		.value = bpf_htonl(st->originals[st->index & (INDICES - 1)]),
		.echo = said.value,
	};
	__s64 difference = bpf_csum_diff((void *)&said, sizeof(said), (void *)&answer, sizeof(answer), 0);
	if (!turn(skb) || bpf_skb_store_bytes(skb, s->tcp, &answer, sizeof(answer), 0) ||
	    bpf_l4_csum_replace(skb, s->tcp + TCP_CHECKSUM, 0, difference, 0))
		return false;
	st->owed = 0;
	if (!bpf_clone_redirect(skb, skb->ifindex, 0))
		count(COUNT_REFLECTED);
	return turn(skb) && !bpf_skb_store_bytes(skb, s->tcp, &said, sizeof(said), 0);
}

#endif

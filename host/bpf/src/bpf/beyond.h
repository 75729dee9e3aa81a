/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Acknowledgements beyond what this kernel has sent, on an adopted connection. The client may hold
 * data behind holes, and three SACK blocks describe only the latest ones. So the adopter sends
 * everything from the first hole on. When that hole is filled, the client acknowledges more than
 * the adopter has sent. The kernel would discard such segments, as often as they arrive (RFC 9293,
 * 3.10.7.4).
 */
#ifndef BEYOND_H
#define BEYOND_H

#include "edit.h"
#include "members.h"

/* The most bytes that a client can hold behind holes. An acknowledgement further ahead than this
 * comes from a sender that does not know the connection's sequence numbers (RFC 5961, section 5).
 */
#define BEYOND_MOST (1U << 26)

/* Lowers the segment's acknowledgement to the highest number that the kernel has sent, and stores
 * the result in `heard`. The client then receives the bytes after that number twice. Returns false
 * if the segment may be changed in part; the caller must drop it then. */
static __always_inline bool bound_ack(struct __sk_buff *skb, const struct segment *s, __u32 *heard)
{
	struct bpf_tcp_sock *tcp = NULL;
	__u32 sent = s->ack;

	*heard = s->ack;
	if (!(s->flags & ACK) || s->flags & RST)
		return true;
	struct bpf_sock *sk = find_socket(skb, s);
	if (!sk)
		return true;
	if (sk->state != BPF_TCP_LISTEN)
		tcp = bpf_tcp_sock(sk);
	if (tcp)
		sent = tcp->snd_nxt;
	bpf_sk_release(sk);
	/* For an acknowledgement older than `sent` the unsigned difference is large, too. */
	__u32 beyond = s->ack - sent;
	if (!beyond || beyond > BEYOND_MOST)
		return true;
	*heard = sent;
	return clamp_ack(skb, s, sent);
}

/* Like bound_ack, for a connection whose limits were removed because its next request cannot be
 * recorded. */
static __always_inline bool bound_freed(struct __sk_buff *skb, const struct segment *s)
{
	__u32 heard;

	return !has_happened(HAPPENED_FREED) || !bpf_map_lookup_elem(&freed, &s->key) || bound_ack(skb, s, &heard);
}

#endif

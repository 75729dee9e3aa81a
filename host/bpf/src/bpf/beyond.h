/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a client has of a connection that another replica had before, behind holes. Three SACK blocks tell of the holes that came last, and of
 * what is behind others nobody knows. So whoever goes on sends all from the first hole on, and as soon as that is filled the client
 * acknowledges more than was sent here, which the kernel would take for somebody else's word, for as long as it is said (RFC 9293, 3.10.7.4).
 */
#ifndef BEYOND_H
#define BEYOND_H

#include "edit.h"
#include "members.h"

/* No client has more behind its holes, octets; beyond it is a word of whoever does not know the numbers (RFC 5961, section 5). */
#define BEYOND_MOST (1U << 26)

/*
 * The kernel hears that the client has all that was sent, and `heard` is what it hears: what that has more it gets once more. False: half
 * done.
 */
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
	/* Of what was acknowledged long ago it is more, too. */
	__u32 beyond = s->ack - sent;
	if (!beyond || beyond > BEYOND_MOST)
		return true;
	*heard = sent;
	return clamp_ack(skb, s, sent);
}

/* Of one that is held to nothing any more, as its next request cannot be recorded. */
static __always_inline bool bound_freed(struct __sk_buff *skb, const struct segment *s)
{
	__u32 heard;

	return !has_happened(HAPPENED_FREED) || !bpf_map_lookup_elem(&freed, &s->key) || bound_ack(skb, s, &heard);
}

#endif

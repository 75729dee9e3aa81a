/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Changes a segment before it leaves, and its checksum with it. A function that returns false may
 * have changed the segment in part; the caller must drop it. */
#ifndef EDIT_H
#define EDIT_H

#include "segment.h"

/* Swaps two adjacent fields of `half` bytes, such as addresses. Checksums stay valid. */
static __always_inline bool swap(struct __sk_buff *skb, __u32 at, __u32 half)
{
	__u8 both[2 * sizeof(struct in6_addr)];

	return !bpf_skb_load_bytes(skb, at, both, 2 * half) && !bpf_skb_store_bytes(skb, at, both + half, half, 0) &&
	       !bpf_skb_store_bytes(skb, at + half, both, half, 0);
}

/* Removes the FIN flag. The process has got an event for the FIN. */
static __always_inline bool strip_fin(struct __sk_buff *skb, const struct segment *s)
{
	__be16 before, now;
	__u32 at = s->tcp + TCP_OFFSET_AND_FLAGS;

	if (bpf_skb_load_bytes(skb, at, &before, sizeof(before)))
		return false;
	now = before & ~bpf_htons(FIN);
	return !bpf_l4_csum_replace(skb, s->tcp + TCP_CHECKSUM, before, now, sizeof(now)) &&
	       !bpf_skb_store_bytes(skb, at, &now, sizeof(now), 0);
}

/* Lowers the acknowledgement to `limit`. */
static __always_inline bool clamp_ack(struct __sk_buff *skb, const struct segment *s, __u32 limit)
{
	__be32 before = bpf_htonl(s->ack), now = bpf_htonl(limit);

	/* Without BPF_F_PSEUDO_HDR, because a partial checksum does not cover the acknowledgement yet. */
	return !bpf_l4_csum_replace(skb, s->tcp + TCP_CHECKSUM, before, now, sizeof(now)) &&
	       !bpf_skb_store_bytes(skb, s->tcp + TCP_ACK, &now, sizeof(now), 0);
}

/* Changes byte `n` of the data at offset `at`. An even `n` is the upper half of a 16-bit word of
 * the checksum, because a TCP header has an even length. */
static __always_inline bool change_byte(struct __sk_buff *skb, __u32 checksum, __u32 at, __u32 n, __u8 before, __u8 now)
{
	__be16 was = bpf_htons(n & 1 ? before : before << 8), is = bpf_htons(n & 1 ? now : now << 8);

	return !bpf_l4_csum_replace(skb, checksum, was, is, sizeof(is)) &&
	       !bpf_skb_store_bytes(skb, at + n, &now, sizeof(now), 0);
}

#endif

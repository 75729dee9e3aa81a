/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Segments of connections that this replica does not have: from which member or ToR they came, and
 * to which member they are handed on (docs/dataplane.md). */
#ifndef MEMBERS_H
#define MEMBERS_H

#include "segment.h"
#include "trods_maps.h"

/*
 * Most segments of unknown connections that one processor returns to the ToR within TURNED_IN
 * nanoseconds: more than the clients of a drained replica send. If more arrive, their clients
 * retransmit them, or it is a flood. */
#define TURNED 1000
#define TURNED_IN 50000000ULL

/* Whether a frame has this Ethernet source address. */
static __always_inline bool is_from(struct __sk_buff *skb, const __u8 *address)
{
	__u8 difference = 0, source[ETH_ALEN];

	if (bpf_skb_load_bytes(skb, ETH_ALEN, source, ETH_ALEN))
		return false;
	for (int i = 0; i < ETH_ALEN; i++)
		difference |= source[i] ^ address[i];
	return !difference;
}

/* Whether a segment comes from the ToR itself. True if the ToR's address is unknown. */
static __always_inline bool is_first_hand(struct __sk_buff *skb, const struct lease *lease)
{
	__u8 known = 0;

	for (int i = 0; i < ETH_ALEN; i++)
		known |= lease->tor[i];
	return !known || is_from(skb, lease->tor);
}

/* Sends a segment back to the ToR with this Ethernet destination (docs/dataplane.md). */
static __always_inline int turn_around(struct __sk_buff *skb, const __u8 *to)
{
	struct ethhdr ether;

	if (bpf_skb_load_bytes(skb, 0, &ether, sizeof(ether)))
		return DROP;
	__builtin_memcpy(ether.h_source, ether.h_dest, ETH_ALEN);
	__builtin_memcpy(ether.h_dest, to, ETH_ALEN);
	if (bpf_skb_store_bytes(skb, 0, &ether, sizeof(ether), 0))
		return DROP;
	count(COUNT_HANDED_ON);
	return bpf_redirect(skb->ifindex, 0);
}

/* Hands a segment on to the connection's holder, whose number is in the new destination address. A
 * segment that another member handed on is not handed on again. */
static __always_inline int hand_on(struct __sk_buff *skb, const struct pin *pin)
{
	__u8 holder[ETH_ALEN] = { 0x02, 0x52, 0x56, 0, 0, pin->holder };

	return is_from(skb, pin->tor) ? turn_around(skb, holder) : NEXT;
}

/* The kernel's socket for a client's segment, possibly a listener. The caller releases it. */
static __always_inline struct bpf_sock *find_socket(struct __sk_buff *skb, const struct segment *s)
{
	struct bpf_sock_tuple ends = {};

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		ends.ipv4.saddr = s->key.client[3];
		ends.ipv4.daddr = s->key.service[3];
		ends.ipv4.sport = s->key.client_port;
		ends.ipv4.dport = s->key.service_port;
		return bpf_skc_lookup_tcp(skb, &ends, sizeof(ends.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(ends.ipv6.saddr, s->key.client, sizeof(ends.ipv6.saddr));
	__builtin_memcpy(ends.ipv6.daddr, s->key.service, sizeof(ends.ipv6.daddr));
	ends.ipv6.sport = s->key.client_port;
	ends.ipv6.dport = s->key.service_port;
	return bpf_skc_lookup_tcp(skb, &ends, sizeof(ends.ipv6), BPF_F_CURRENT_NETNS, 0);
}

/* State of the connection's socket in the kernel, including TIME-WAIT; 0: there is no socket. */
static __always_inline __u32 socket_state(struct __sk_buff *skb, const struct segment *s)
{
	struct bpf_sock *sk = find_socket(skb, s);

	if (!sk)
		return 0;
	__u32 state = sk->state != BPF_TCP_LISTEN ? sk->state : 0;
	bpf_sk_release(sk);
	return state;
}

static __always_inline bool has_socket(struct __sk_buff *skb, const struct segment *s)
{
	return socket_state(skb, s);
}

/* The second chance of a segment whose connection this replica does not have: the ToR forwards it
 * to the slot's other candidate. Excluded are segments that may complete a handshake, for which the
 * kernel needs no socket. Segments above the bound go to the kernel, and its RST is held back. A
 * flood is dropped before the kernel gets it (host/rivulet/src/second_chance.rs). */
static __always_inline int second_chance(struct __sk_buff *skb, const struct segment *s, const struct lease *lease)
{
	struct scratch *at = scratch();
	__u64 now = bpf_ktime_get_ns();

	/* While the process is dead, segments are not returned: the next process decides. */
	if (at && !dead && is_from(skb, lease->tor) && !bpf_map_lookup_elem(&openings, &s->key)) {
		if (now - at->turned.since >= TURNED_IN) {
			at->turned.since = now;
			at->turned.count = 0;
		}
		if (at->turned.count < TURNED) {
			at->turned.count++;
			return turn_around(skb, lease->tor);
		}
	}
	skb->mark = UNKNOWN;
	return NEXT;
}

#endif

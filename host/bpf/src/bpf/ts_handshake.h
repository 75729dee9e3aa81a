/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Answers SYNs in place of the kernel, and gives the kernel each connection when its handshake is
 * complete (ts.h). */
#ifndef TS_HANDSHAKE_H
#define TS_HANDSHAKE_H

#include "ts_maps.h"

/*
 * From the kernel's linux/tcp.h: the negotiated options of a connection that begins with a SYN
 * cookie.
 */
struct bpf_tcp_req_attrs {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 ecn_ok;
	__u8 wscale_ok;
	__u8 sack_ok;
	__u8 tstamp_ok;
	__u8 usec_ts_ok;
	__u8 reserved[3];
};
#ifdef HANDSHAKES
#define ISSUES true
/* Incomplete type: only pointers to it are used. */
struct sock {
	int unused;
};
extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk, struct bpf_tcp_req_attrs *attrs,
				   int attrs__sz) __ksym;
#else
#define ISSUES false
/* Only trods_ts.c defines HANDSHAKES. Otherwise no ISN is issued, and this macro only lets the code
 * compile. */
#define bpf_sk_assign_tcp_reqsk(skb, sk, attrs, size) ((void)(sk), (void)(attrs), -1)
#endif

/* The largest MSS of the list and the largest window scale that do not exceed the client's, at
 * their bit positions in a timestamp. */
static __always_inline __u32 stamp_base(const struct offer *offer, __u32 odd)
{
	__u32 class = offer->mss >= 1460 ? 3 : offer->mss >= 1440 ? 2 : offer->mss >= 1220 ? 1 : 0;
	__u32 shift = offer->scale;
	__u32 scale = shift >= 11 ? 7 : shift >= 6 ? (shift > 9 ? 6 : shift - 3) : shift / 2;

	return class << STAMP_CLASS | (odd & 1) << STAMP_ODD | STAMP_KIND | scale << STAMP_SCALE;
}

/* ISN: a hash of client and service address and ports. */
static __always_inline __u32 isn_of(const struct issuer *issuer, const struct flow_key *key)
{
	__u32 words[6] = {
		ISN_DOMAIN, bpf_ntohl(key->client[0]), bpf_ntohl(key->client[1]), bpf_ntohl(key->client[2]),
		bpf_ntohl(key->client[3]), (__u32)bpf_ntohs(key->client_port) << 16 | bpf_ntohs(key->service_port),
	};

	return half_sip_hash_words(issuer->key, words, 6);
}

/* The listener of a service, or NULL if the kernel has a connection between these ends. The caller
 * releases it. */
static __always_inline struct bpf_sock *find_listener(struct __sk_buff *skb, const struct segment *s, bool *is_there)
{
	struct bpf_sock *sk = find_socket(skb, s);

	*is_there = sk && sk->state != BPF_TCP_LISTEN;
	if (sk && *is_there) {
		bpf_sk_release(sk);
		return NULL;
	}
	return sk;
}

static __always_inline __u16 sum_of(const struct segment *s, const __u8 *tcp, __u32 length, bool whole)
{
	__be32 rest[2] = { bpf_htonl(length), bpf_htonl(IPPROTO_TCP) };
	__s64 sum = bpf_csum_diff(NULL, 0, (void *)s->key.client, 2 * sizeof(s->key.client), 0);

	sum = bpf_csum_diff(NULL, 0, rest, sizeof(rest), sum);
	if (whole)
		sum = bpf_csum_diff(NULL, 0, (void *)tcp, SYN_ACK_HEADER, sum);
	return fold(sum);
}

/* Turns the SYN into its SYN-ACK. Returns false if the frame may be changed in part; the caller
 * must drop it then. */
static __always_inline bool turn_syn(struct __sk_buff *skb, const struct segment *s, const struct issuer *issuer,
				     const struct issued *made, __u32 echo)
{
	bool is_v4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u32 tcp_at = ETH_HLEN + (is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	__u16 mss = issuer->mss[!is_v4], checksum;
	struct {
		__be16 source, dest;
		__be32 seq, ack;
		__be16 offset, window, checksum, urgent;
		__be32 options[5];
	} tcp = {
		.source = s->key.service_port,
		.dest = s->key.client_port,
		.seq = bpf_htonl(made->isn),
		.ack = bpf_htonl(made->client_next),
		.offset = bpf_htons(SYN_ACK_HEADER / 4 << 12 | SYN | ACK),
		.window = bpf_htons(OUR_WINDOW),
		.options = { bpf_htonl(2 << 24 | 4 << 16 | mss), bpf_htonl(4 << 24 | 2 << 16 | 8 << 8 | 10),
			     bpf_htonl(made->value), bpf_htonl(echo),
			     bpf_htonl(1 << 24 | 3 << 16 | 3 << 8 | OUR_SCALE) },
	};

	if (bpf_skb_load_bytes(skb, s->tcp + TCP_CHECKSUM, &checksum, sizeof(checksum)))
		return false;
	/* A sender on this machine leaves the checksum to hardware, so the answer also has a partial
	 * checksum (segment.h). */
	bool is_partial = checksum == sum_of(s, NULL, s->header, false);
	tcp.checksum = is_partial ? sum_of(s, NULL, SYN_ACK_HEADER, false) :
				    (__u16)~sum_of(s, (__u8 *)&tcp, SYN_ACK_HEADER, true);
	if (bpf_skb_change_tail(skb, tcp_at + SYN_ACK_HEADER, 0) || !swap(skb, 0, ETH_ALEN))
		return false;
	if (is_v4) {
		struct iphdr ip = {
			.version = 4,
			.ihl = 5,
			.tot_len = bpf_htons(sizeof(struct iphdr) + SYN_ACK_HEADER),
			.frag_off = bpf_htons(0x4000),
			.ttl = 64,
			.protocol = IPPROTO_TCP,
			.saddr = s->key.service[3],
			.daddr = s->key.client[3],
		};
		ip.check = ~fold(bpf_csum_diff(NULL, 0, (void *)&ip, sizeof(ip), 0));
		if (bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0))
			return false;
	} else {
		struct ipv6hdr ip = {
			.version = 6,
			.payload_len = bpf_htons(SYN_ACK_HEADER),
			.nexthdr = IPPROTO_TCP,
			.hop_limit = 64,
		};
		__builtin_memcpy(&ip.saddr, s->key.service, sizeof(ip.saddr));
		__builtin_memcpy(&ip.daddr, s->key.client, sizeof(ip.daddr));
		if (bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0))
			return false;
	}
	return !bpf_skb_store_bytes(skb, tcp_at, &tcp, sizeof(tcp), 0);
}

/* Handles a client's SYN. If it returns NEXT or PASS, the kernel answers the SYN. */
static __always_inline int answer_syn(struct __sk_buff *skb, const struct segment *s, const struct service *service,
				      const struct lease *lease, const struct issuer *issuer, struct scratch *at)
{
	struct options options = {};
	struct offer *offer = &options.offer;
	struct issued made = { .at = bpf_ktime_get_ns(), .client_next = s->seq + 1 };
	bool is_there;
	/* The kernel's own connection is recorded from its handshake on if the service has a store;
	 * otherwise it is not protected. */
	int kernels = service->records ? PASS : NEXT;

	/* While the lease does not hold, or the process is dead, no connection may begin. */
	if (dead || made.at >= lease->until) {
		count(COUNT_MUTED);
		return DROP;
	}
	bool is_plain = skb->protocol == bpf_htons(ETH_P_IPV6) || s->tcp == ETH_HLEN + sizeof(struct iphdr);
	if (is_plain && !s->length)
		read_options(skb, s, at, &options);
	if (!offer->has_stamps || !offer->has_scale || !offer->has_sack || offer->scale > 14 || offer->mss < 536) {
		if (!service->records)
			count(COUNT_OPTIONS);
		return kernels;
	}
	struct bpf_sock *sk = find_listener(skb, s, &is_there);
	if (!sk) {
		if (is_there && !service->records)
			count(COUNT_PORTS);
		return kernels;
	}
	bpf_sk_release(sk);
	made.isn = isn_of(issuer, &s->key);
	made.value = stamp_base(offer, issuer->odd);
	made.mss = offer->mss;
	made.scale = offer->scale;
	if (bpf_map_update_elem(&issued, &s->key, &made, BPF_ANY))
		return kernels;
	/* Entries of a former connection are obsolete. Without a store, all limits are in `stamped`. */
	if (service->records && bpf_map_lookup_elem(&flows, &s->key))
		mention(s, EVENT_REPLACED, 0, s->seq);
	if (service->records || bpf_map_lookup_elem(&stamped, &s->key)) {
		bpf_map_delete_elem(&openings, &s->key);
		bpf_map_delete_elem(&flows, &s->key);
		bpf_map_delete_elem(&stamped, &s->key);
	}
	if (has_happened(HAPPENED_WITHHELD))
		bpf_map_delete_elem(&withheld, &s->key);
	return turn_syn(skb, s, issuer, &made, offer->value) ? bpf_redirect(skb->ifindex, 0) : DROP;
}

/* Returns the issued handshake of a segment that may complete it. The socket may not exist yet:
 * while one processor gives the kernel the first segment, another one may get the next segment or a
 * repetition. */
static __always_inline struct issued *find_issued(const struct segment *s, const struct stamped *st)
{
	struct issued *made;

	if (!(s->flags & ACK) || s->flags & RST || (st && s->ack != st->isn + 1))
		return NULL;
	made = bpf_map_lookup_elem(&issued, &s->key);
	if (!made || s->ack != made->isn + 1 || s->seq != made->client_next)
		return NULL;
	return made->taken && bpf_ktime_get_ns() - made->taken >= TAKEN_FOR ? NULL : made;
}

/* Gives the kernel the connection of an issued handshake, with the first segment that completes it.
 * Returns false if the kernel must not get the segment now. */
static __always_inline bool accept_issued(struct __sk_buff *skb, const struct segment *s, const struct issued *made,
					  struct scratch *at)
{
	struct stamped *st = &at->stamped;
	__be32 stamps[2];
	__u32 where = stamps_at(skb, s, at);
	bool is_there;

	if (!where || !load_words(skb, s->tcp + where, stamps, sizeof(stamps)) ||
	    bpf_ntohl(stamps[1]) != made->value)
		return false;
	struct bpf_sock *listener = find_listener(skb, s, &is_there);
	if (!listener)
		return false;
	__u64 now = bpf_ktime_get_ns();
	/* The kernel's timestamps follow its own clock, and the echo must stand for the time of the
	 * SYN-ACK. */
	struct bpf_tcp_req_attrs attrs = {
		.rcv_tsval = bpf_ntohl(stamps[0]),
		.rcv_tsecr = now / NS_PER_MS,
		.mss = made->mss,
		.rcv_wscale = OUR_SCALE,
		.snd_wscale = made->scale,
		.wscale_ok = 1,
		.sack_ok = 1,
		.tstamp_ok = 1,
	};
	struct tcp_sock *sk = bpf_skc_to_tcp_sock(listener);
	long refused = sk ? bpf_sk_assign_tcp_reqsk(skb, (struct sock *)sk, &attrs, sizeof(attrs)) : -1;
	bpf_sk_release(listener);
	if (refused)
		return false;
	__builtin_memset(st, 0, sizeof(*st));
	st->since = st->heard = now;
	st->isn = made->isn;
	st->client_next = s->seq;
	st->base = made->value;
	st->originals[0] = made->at / NS_PER_MS;
	st->limits.ack = s->seq;
	st->limits.data = st->limits.first = st->limits.acked = s->ack;
	forget_former(&s->key);
	/* Without an entry the connection would use the kernel's timestamps, which are lower than that of
	 * the SYN-ACK, so the client would discard its segments. */
	if (bpf_map_update_elem(&stamped, &s->key, st, BPF_ANY)) {
		count(COUNT_FULL_ISSUED);
		return false;
	}
	count(COUNT_ISSUED);
	return true;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Parses TCP segments in tcx programs and verifies their checksums. */
#ifndef SEGMENT_H
#define SEGMENT_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "packet.h"
#include "trods.h"

#define TCP_HEADER 20
/* Highest offset of a header that is read directly. */
#define HEADERS_MAX 255
#define MAX_SEGMENT 0x10000
/* Most bytes of one bpf_csum_diff call. */
#define CSUM_OCTETS 512
#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
/* Offsets in the TCP header. */
#define TCP_ACK 8
#define TCP_OFFSET_AND_FLAGS 12
#define TCP_WINDOW 14
#define TCP_CHECKSUM 16

/* A TCP segment between a client and a service. */
struct segment {
	struct flow_key key;
	__u32 tcp; /* offset of the TCP header in the frame */
	__u32 header; /* bytes of the TCP header */
	__u32 length; /* bytes of data */
	__u32 seq;
	__u32 ack;
	__u8 flags;
};

/* A word that may alias any type. */
typedef __u32 __attribute__((may_alias)) word;

/* Loads whole words of a header. They nearly always lie in the linear part of the frame, and a call
 * of a BPF helper would cost as much as all processing of the words. */
static __always_inline bool load_words(struct __sk_buff *skb, __u32 at, void *to, __u32 octets)
{
	const void *data = (const void *)(long)skb->data, *end = (const void *)(long)skb->data_end;

	/* The verifier has to see the bound at the addition. */
	asm volatile("" : "+r"(at));
	if (at > HEADERS_MAX || data + at + octets > end)
		return !bpf_skb_load_bytes(skb, at, to, octets);
	for (__u32 n = 0; n < octets / sizeof(word); n++)
		((word *)to)[n] = ((const word *)(data + at))[n];
	return true;
}

static __always_inline bool after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/* Parses a frame. Returns false unless the frame holds a whole TCP segment. The service is the
 * segment's destination (`from_client`) or its source. Fragments and packets with extension headers
 * are not parsed: neither clients' TCP nor the kernel sends them. */
static __always_inline bool read_segment(struct __sk_buff *skb, struct segment *s, bool from_client)
{
	struct tcphdr tcp;
	__u32 whole;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;
		if (!load_words(skb, ETH_HLEN, &ip, sizeof(ip)))
			return false;
		if (ip.protocol != IPPROTO_TCP || bpf_ntohs(ip.frag_off) & MORE_FRAGMENTS_OR_OFFSET)
			return false;
		s->tcp = ETH_HLEN + 4 * ip.ihl;
		map_address(s->key.client, from_client ? ip.saddr : ip.daddr);
		map_address(s->key.service, from_client ? ip.daddr : ip.saddr);
		whole = ETH_HLEN + bpf_ntohs(ip.tot_len);
		/* A packet longer than 65,535 bytes (BIG TCP) has total length 0. */
		if (!ip.tot_len)
			whole = skb->len;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;
		if (!load_words(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
			return false;
		s->tcp = ETH_HLEN + sizeof(ip);
		copy_address(s->key.client, from_client ? &ip.saddr : &ip.daddr);
		copy_address(s->key.service, from_client ? &ip.daddr : &ip.saddr);
		whole = s->tcp + bpf_ntohs(ip.payload_len);
		if (!ip.payload_len)
			whole = skb->len;
	} else {
		return false;
	}
	if (!load_words(skb, s->tcp, &tcp, sizeof(tcp)))
		return false;
	s->key.client_port = from_client ? tcp.source : tcp.dest;
	s->key.service_port = from_client ? tcp.dest : tcp.source;
	s->header = 4 * tcp.doff;
	/* No TCP accepts a segment with such lengths. */
	if (s->header < TCP_HEADER || s->tcp + s->header > whole || whole > skb->len)
		return false;
	s->length = whole - s->tcp - s->header;
	s->seq = bpf_ntohl(tcp.seq);
	s->ack = bpf_ntohl(tcp.ack_seq);
	s->flags = ((__u8 *)&tcp)[13];
	return true;
}

static __always_inline __u16 fold(__s64 sum)
{
	__u64 s = (__u32)sum;

	s = (s & 0xffff) + (s >> 16);
	return (s & 0xffff) + (s >> 16);
}

/*
 * Whether the kernel will accept the checksum, which it verifies after the programs ran. A sender
 * on this machine may leave a partial checksum, that of the pseudo header. `octets` is a buffer of
 * CSUM_OCTETS + 4 bytes.
 */
static __always_inline bool has_sum(struct __sk_buff *skb, const struct segment *s, __u8 *octets)
{
	__u32 whole = s->header + s->length;
	__be32 rest[2] = { bpf_htonl(whole), bpf_htonl(IPPROTO_TCP) };

	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return true;
	if (whole > TCP_HEADER_MAX + MAX_SEGMENT)
		return false;
	/* The prefix of an IPv4-mapped address adds 0xffff, which counts as zero in this sum. */
	__s64 sum = bpf_csum_diff(NULL, 0, (void *)s->key.client, 2 * sizeof(s->key.client), 0);
	sum = bpf_csum_diff(NULL, 0, rest, sizeof(rest), sum);
	if (bpf_skb_load_bytes(skb, s->tcp, octets, TCP_HEADER))
		return false;
	if (*(__u16 *)(octets + TCP_CHECKSUM) == fold(sum))
		return true;
	for (__u32 done = 0; done < TCP_HEADER_MAX + MAX_SEGMENT; done += CSUM_OCTETS) {
		__u32 left = whole - done, part = left < CSUM_OCTETS ? left : CSUM_OCTETS;
		asm volatile("" : "+r"(part));
		if (!part || part > CSUM_OCTETS)
			return false;
		/* Pads the data with zeros to whole words. */
		for (int i = 0; i < 4; i++)
			octets[part + i] = 0;
		if (bpf_skb_load_bytes(skb, s->tcp + done, octets, part))
			return false;
		__u32 padded = (part + 3) & ~3U;
		asm volatile("" : "+r"(padded));
		if (padded > CSUM_OCTETS)
			return false;
		sum = bpf_csum_diff(NULL, 0, (void *)octets, padded, sum);
		if (left > CSUM_OCTETS)
			continue;
		/* Informs the kernel that the checksum is verified. */
		return fold(sum) == 0xffff && !bpf_csum_level(skb, BPF_CSUM_LEVEL_INC);
	}
	return false;
}

/* Loads the TCP header; `header` is 20 to 60. */
static __always_inline bool load_header(struct __sk_buff *skb, const struct segment *s, __u8 *to)
{
	__u32 header = s->header;

	asm volatile("" : "+r"(header));
	if (header < TCP_HEADER || header > TCP_HEADER_MAX)
		return false;
	return !bpf_skb_load_bytes(skb, s->tcp, to, header);
}

#endif

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * tcx: holds a server's TCP to what was stored elsewhere, so that another host can go on with its connections (docs/trods.md).
 *
 * Nothing here knows HTTP. A connection of a protected service has limits from the end of its handshake: acknowledgements
 * and data beyond them do not leave, a FIN leaves at one place, a RST never. What the client sends is copied to the process
 * that sets the limits; data beyond them goes to it whole, through a TAP, and comes back through this program when the
 * limits have moved. So nothing gets past it, whatever the process does. The
 * programs go a few seconds after the process (src/linger.rs).
 *
 * The process writes limits and orphans; this program makes the first limits of a connection, and tells it before anything
 * that the connection carries.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "trods.h"

#define MORE_FRAGMENTS_OR_OFFSET 0x3fff
#define TCP_HEADER 20
#define MAX_SEGMENT 0x10000
/* What bpf_csum_diff takes at once. */
#define CSUM_OCTETS 512
#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
/* Offsets in the TCP header. */
#define TCP_ACK 8
#define TCP_OFFSET_AND_FLAGS 12
#define TCP_CHECKSUM 16

/* Go on with the next program, and the kernel. */
#define NEXT TC_ACT_UNSPEC
#define DROP TC_ACT_SHOT

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SERVICE_ADDRESSES);
	__type(key, struct service_key);
	__type(value, __u32); /* its lease */
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_LEASES);
	__type(key, __u32);
	__type(value, struct lease);
} leases SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct limits);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_ORPHANS);
	__type(key, struct flow_key);
	__type(value, __u8);
} orphans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_PINS);
	__type(key, struct flow_key);
	__type(value, struct pin);
} pins SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_OPENING);
	__type(key, struct flow_key);
	__type(value, struct opening);
} openings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_WITHHELD);
	__type(key, struct flow_key);
	__type(value, struct withheld);
} withheld SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS_SIZE);
} events SEC(".maps");

/* One value a processor: softirqs of one processor do not interrupt one another. */
struct scratch {
	struct event event;
	struct opening opening;
	struct withheld withheld;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* Index of the TAP; 0 while there is none: what would be held is dropped, and TCP sends it again. */
volatile __u32 tap SEC(".data.tap");

/* A TCP segment between a client and a service. */
struct segment {
	struct flow_key key;
	__u32 tcp; /* where its header begins in the frame */
	__u32 header; /* octets of it */
	__u32 length; /* octets of data */
	__u32 seq;
	__u32 ack;
	__u8 flags;
};

static __always_inline bool after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

static __always_inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&counters, &what);

	if (counter)
		*counter += 1;
}

static __always_inline struct scratch *scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratches, &zero);
}

static __always_inline void map_address(__u32 *to, __u32 address)
{
	to[0] = to[1] = 0;
	to[2] = bpf_htonl(0xffff);
	to[3] = address;
}

static __always_inline void copy_address(__u32 *to, const struct in6_addr *address)
{
	for (int i = 0; i < 4; i++)
		to[i] = address->in6_u.u6_addr32[i];
}

/*
 * Whether the frame is a TCP segment of a service, and which. `service` is its destination, or its source. What was cut
 * into fragments or has extension headers is none: no client's TCP does it, and the kernel's own does not either.
 */
static __always_inline struct lease *parse(struct __sk_buff *skb, struct segment *s, bool from_client)
{
	struct tcphdr tcp;
	struct service_key key = {};
	__u32 whole;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return NULL;
		if (ip.protocol != IPPROTO_TCP || bpf_ntohs(ip.frag_off) & MORE_FRAGMENTS_OR_OFFSET)
			return NULL;
		s->tcp = ETH_HLEN + 4 * ip.ihl;
		map_address(s->key.client, from_client ? ip.saddr : ip.daddr);
		map_address(s->key.service, from_client ? ip.daddr : ip.saddr);
		whole = ETH_HLEN + bpf_ntohs(ip.tot_len);
		/* Longer than it can say. */
		if (!ip.tot_len)
			whole = skb->len;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
			return NULL;
		s->tcp = ETH_HLEN + sizeof(ip);
		copy_address(s->key.client, from_client ? &ip.saddr : &ip.daddr);
		copy_address(s->key.service, from_client ? &ip.daddr : &ip.saddr);
		whole = s->tcp + bpf_ntohs(ip.payload_len);
		if (!ip.payload_len)
			whole = skb->len;
	} else {
		return NULL;
	}
	if (bpf_skb_load_bytes(skb, s->tcp, &tcp, sizeof(tcp)))
		return NULL;
	s->key.client_port = from_client ? tcp.source : tcp.dest;
	s->key.service_port = from_client ? tcp.dest : tcp.source;
	for (int i = 0; i < 4; i++)
		key.address[i] = s->key.service[i];
	key.port = s->key.service_port;
	__u32 *lease = bpf_map_lookup_elem(&services, &key);
	if (!lease)
		return NULL;
	s->header = 4 * tcp.doff;
	/* What no TCP takes for a segment is none here either. */
	if (s->header < TCP_HEADER || s->tcp + s->header > whole || whole > skb->len)
		return NULL;
	s->length = whole - s->tcp - s->header;
	s->seq = bpf_ntohl(tcp.seq);
	s->ack = bpf_ntohl(tcp.ack_seq);
	s->flags = ((__u8 *)&tcp)[13];
	return bpf_map_lookup_elem(&leases, lease);
}

static __always_inline __u16 fold(__s64 sum)
{
	__u64 s = (__u32)sum;

	s = (s & 0xffff) + (s >> 16);
	return (s & 0xffff) + (s >> 16);
}

/*
 * Whether the kernel will take the segment for undamaged: programs come before it looks. A sender on this machine may have
 * left the sum to hardware that there is not; then it is the pseudo header's.
 */
static __always_inline bool is_intact(struct __sk_buff *skb, const struct segment *s)
{
	__u32 whole = s->header + s->length;
	__be32 rest[2] = { bpf_htonl(whole), bpf_htonl(IPPROTO_TCP) };
	struct scratch *at = scratch();

	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return true;
	if (!at || whole > TCP_HEADER_MAX + MAX_SEGMENT)
		return false;
	/* What maps an IPv4 address is 0xffff, which is nothing in such a sum. */
	__s64 sum = bpf_csum_diff(NULL, 0, (void *)s->key.client, 2 * sizeof(s->key.client), 0);
	sum = bpf_csum_diff(NULL, 0, rest, sizeof(rest), sum);
	if (bpf_skb_load_bytes(skb, s->tcp, at->event.octets, TCP_HEADER))
		return false;
	if (*(__u16 *)(at->event.octets + TCP_CHECKSUM) == fold(sum))
		return true;
	for (__u32 done = 0; done < TCP_HEADER_MAX + MAX_SEGMENT; done += CSUM_OCTETS) {
		__u32 left = whole - done, part = left < CSUM_OCTETS ? left : CSUM_OCTETS;
		asm volatile("" : "+r"(part));
		if (!part || part > CSUM_OCTETS)
			return false;
		/* Whole words. */
		for (int i = 0; i < 4; i++)
			at->event.octets[part + i] = 0;
		if (bpf_skb_load_bytes(skb, s->tcp + done, at->event.octets, part))
			return false;
		__u32 padded = (part + 3) & ~3U;
		asm volatile("" : "+r"(padded));
		if (padded > CSUM_OCTETS)
			return false;
		sum = bpf_csum_diff(NULL, 0, (void *)at->event.octets, padded, sum);
		if (left <= CSUM_OCTETS)
			return fold(sum) == 0xffff;
	}
	return false;
}

/* Tells the process; `length` octets stand in the event. */
static __always_inline bool tell(struct event *e, const struct segment *s, __u8 kind, __u8 flags, __u32 seq, __u32 length)
{
	__builtin_memcpy(&e->key, &s->key, sizeof(e->key));
	e->seq = seq;
	e->ack = s->ack;
	e->kind = kind;
	e->flags = flags;
	/* Already so; the verifier has to see it at the call. */
	asm volatile("" : "+r"(length));
	if (length > EVENT_OCTETS)
		return false;
	e->length = length;
	return !bpf_ringbuf_output(&events, e, offsetof(struct event, octets) + length, 0);
}

/* Tells of a segment that carries nothing; if there is no room, of the next one like it. */
static __always_inline void mention(const struct segment *s, __u8 kind, __u32 seq)
{
	struct scratch *at = scratch();

	if (at)
		tell(&at->event, s, kind, 0, seq, 0);
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

/* Loads the TCP header; `header` is 20 to 60. */
static __always_inline bool load_header(struct __sk_buff *skb, const struct segment *s, __u8 *to)
{
	__u32 header = s->header;

	asm volatile("" : "+r"(header));
	if (header < TCP_HEADER || header > TCP_HEADER_MAX)
		return false;
	return !bpf_skb_load_bytes(skb, s->tcp, to, header);
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
	if (!at || bpf_map_update_elem(&flows, &s->key, &limits, BPF_NOEXIST)) {
		count(COUNT_FULL);
		/* The one between these ports that another holds is over. */
		bpf_map_delete_elem(&pins, &s->key);
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

/*
 * Gives a segment back to the ToR, to the Ethernet address by which the member is named that holds the connection
 * (docs/dataplane.md). What another member handed on goes no further.
 */
static __always_inline int hand_on(struct __sk_buff *skb, const struct pin *pin)
{
	struct ethhdr ether;
	__u8 difference = 0;

	if (bpf_skb_load_bytes(skb, 0, &ether, sizeof(ether)))
		return DROP;
	for (int i = 0; i < ETH_ALEN; i++)
		difference |= ether.h_source[i] ^ pin->tor[i];
	if (difference)
		return NEXT;
	__builtin_memcpy(ether.h_source, ether.h_dest, ETH_ALEN);
	__u8 holder[ETH_ALEN] = { 0x02, 0x52, 0x56, 0, 0, pin->holder };
	__builtin_memcpy(ether.h_dest, holder, ETH_ALEN);
	if (bpf_skb_store_bytes(skb, 0, &ether, sizeof(ether), 0))
		return DROP;
	count(COUNT_HANDED_ON);
	return bpf_redirect(skb->ifindex, 0);
}

SEC("tcx/ingress")
int trods_ingress(struct __sk_buff *skb)
{
	struct segment s = {};

	if (!parse(skb, &s, true))
		return NEXT;
	if (s.flags & SYN) {
		if (!(s.flags & ACK) && is_intact(skb, &s))
			note_syn(skb, &s, true);
		return NEXT;
	}
	struct limits *limits = bpf_map_lookup_elem(&flows, &s.key);
	if (!limits && s.flags & ACK && !(s.flags & RST)) {
		if (!open_flow(&s))
			goto lost;
		limits = bpf_map_lookup_elem(&flows, &s.key);
	}
	if (!limits) {
		struct pin *pin = bpf_map_lookup_elem(&pins, &s.key);
		if (pin)
			return hand_on(skb, pin);
		if (!bpf_map_lookup_elem(&orphans, &s.key))
			return NEXT;
		count(COUNT_PARKED);
		if (is_intact(skb, &s))
			park(skb, &s);
		return DROP;
	}
	bool ended = s.flags & ACK && limits->has_fin && s.ack == limits->fin + 1;
	/* What was not let through is not acknowledged. */
	bool acks = s.flags & ACK && after(s.ack, limits->acked) && !after(s.ack, limits->data + limits->has_fin);
	if ((acks || ended || s.length || s.flags & (FIN | RST)) && !is_intact(skb, &s))
		return NEXT;
	if (s.flags & RST) {
		mention(&s, EVENT_RESET, s.seq);
		return NEXT;
	}
	if (acks)
		limits->acked = s.ack;
	if (ended)
		mention(&s, EVENT_ENDED, s.seq);
	if ((s.length || s.flags & FIN) && !copy_data(skb, &s))
		goto lost;
	return NEXT;
lost:
	count(COUNT_LOST);
	return DROP;
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
	if (!bpf_skb_load_bytes(skb, 0, at->withheld.frame, length))
		bpf_map_update_elem(&withheld, &s->key, &at->withheld, BPF_ANY);
}

/* Takes the FIN out of a segment. What is behind its data was told. */
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

static __always_inline bool clamp_ack(struct __sk_buff *skb, const struct segment *s, __u32 limit)
{
	__be32 before = bpf_htonl(s->ack), now = bpf_htonl(limit);

	/* Not the pseudo header's: a sum that is left to the hardware does not have it yet. */
	return !bpf_l4_csum_replace(skb, s->tcp + TCP_CHECKSUM, before, now, sizeof(now)) &&
	       !bpf_skb_store_bytes(skb, s->tcp + TCP_ACK, &now, sizeof(now), 0);
}

/* A segment of a connection that has no limits. */
static __always_inline int egress_free(struct __sk_buff *skb, const struct segment *s, const struct lease *lease)
{
	if (s->flags & SYN) {
		note_syn(skb, s, false);
	} else if (bpf_ktime_get_ns() >= lease->until || bpf_map_lookup_elem(&pins, &s->key)) {
		/* Another may go on with it, of which the kernel, or as yet nobody here, knows. */
		count(COUNT_MUTED);
		return DROP;
	} else if (s->flags & RST &&
		   (bpf_ktime_get_ns() < lease->settling || bpf_map_lookup_elem(&orphans, &s->key))) {
		count(COUNT_RESETS);
		return DROP;
	}
	return NEXT;
}

SEC("tcx/egress")
int trods_egress(struct __sk_buff *skb)
{
	struct segment s = {};
	struct lease *lease = parse(skb, &s, false);

	if (!lease)
		return NEXT;
	struct limits *limits = bpf_map_lookup_elem(&flows, &s.key);
	if (!limits)
		return egress_free(skb, &s, lease);
	if (bpf_ktime_get_ns() >= lease->until) {
		count(COUNT_MUTED);
		return DROP;
	}
	if (s.flags & RST) {
		count(COUNT_RESETS);
		withhold(skb, &s);
		mention(&s, EVENT_ABORTED, s.seq);
		return DROP;
	}
	__u32 end = s.seq + s.length, ack = limits->ack;
	if (s.flags & SYN) {
		/* Of this connection, sent again, or of another one between the same ports: the end of the former was not seen. */
		if (s.seq + 1 != limits->first) {
			bpf_map_delete_elem(&flows, &s.key);
			note_syn(skb, &s, false);
		}
		return NEXT;
	}
	if (s.length && after(end, limits->data)) {
		count(COUNT_HELD);
		return tap ? bpf_redirect(tap, 0) : DROP;
	}
	if (s.flags & FIN && !(limits->has_fin && limits->fin == end)) {
		count(COUNT_FINS);
		mention(&s, EVENT_FIN, end);
		if (!s.length) {
			withhold(skb, &s);
			return DROP;
		}
		if (!strip_fin(skb, &s))
			return DROP;
	}
	if (s.flags & ACK && after(s.ack, ack)) {
		if (!s.length && !(s.flags & FIN)) {
			count(COUNT_ACKS);
			withhold(skb, &s);
			return DROP;
		}
		count(COUNT_CLAMPED);
		if (!clamp_ack(skb, &s, ack))
			return DROP;
	}
	return NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * XDP: redirects frames that the maps select to an AF_XDP socket; the kernel gets the others. The
 * packet socket's filter (host/pktio/src/filter) selects the same frames, and one table of frames
 * tests both. One VLAN tag is skipped, because the kernel removes one before a packet socket gets
 * the frame.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "packet.h"
#include "redirect.h"

#define IPV4_HEADER 20
#define IPV6_HEADER 40
#define UDP_PORT_GUE 6080 /* draft-ietf-intarea-gue */
#define OPTION_EXPERIMENT 253 /* RFC 4727 */
#define TRIES 4

/* One socket: queue 0. Frames of other queues go to the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	/* 1,024 services with 16 addresses each, twice, for the time of an update. */
	__uint(max_entries, 32768);
	__type(key, struct endpoint);
	__type(value, struct taking);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct tunnel);
	__type(value, __u8);
} tunnels SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u8);
} ethertypes SEC(".maps");

/* An enum local_port for each port. The process writes it without a system call. */
struct local_ports {
	__u8 state[1 << 16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct local_ports);
} local_ports SEC(".maps");

/* An enum redirect_settings. */
volatile __u32 settings SEC(".data.settings");

static __always_inline __u16 half(const __u8 *at)
{
	return bpf_ntohs(*(const __u16 *)at);
}

static __always_inline void copy4(__u8 *to, const __u8 *from)
{
	*(__u32 *)to = *(const __u32 *)from;
}

static __always_inline void copy16(__u8 *to, const __u8 *from)
{
	for (int i = 0; i < 16; i += 4)
		copy4(to + i, from + i);
}

/* Whether local_ports selects segments to this port, with our option or without. */
static __always_inline bool takes_local(__u16 port, bool option)
{
	__u32 zero = 0;
	struct local_ports *ports = bpf_map_lookup_elem(&local_ports, &zero);

	if (!ports)
		return false;
	__u8 state = ports->state[port];
	return state == LOCAL_OPENING || (state == LOCAL_OPEN && option);
}

static __always_inline bool takes(const struct endpoint *to, __u16 port, bool has_option, __u16 exid)
{
	const struct taking *taking = bpf_map_lookup_elem(&endpoints, to);

	if (!taking)
		return false;
	bool option = has_option && taking->exid == exid;
	return taking->how & TAKE_ALL || (taking->how & TAKE_OPTION && option) ||
	       (taking->how & TAKE_LOCAL && takes_local(port, option));
}

static __always_inline bool takes_segment(__u32 has, struct endpoint *to, const __u8 *tcp, const __u8 *end)
{
	if (tcp + 4 > end)
		return false;
	__u16 port = half(tcp + 2), exid = 0;
	/*
	 * Only with a header of 24 bytes or more; otherwise the payload is at the place of options.
	 */
	bool option = tcp + 24 <= end && tcp[12] >= 0x60 && tcp[20] == OPTION_EXPERIMENT;

	if (option)
		exid = half(tcp + 22);
	else if (!(has & PLAIN))
		return false;
	__u32 family = to->port;
	if (has & 1 << SHAPES_SHIFT) {
		to->port = family | port;
		if (takes(to, port, option, exid))
			return true;
	}
	if (has & 2 << SHAPES_SHIFT) {
		to->port = family | ANY_PORT;
		if (takes(to, port, option, exid))
			return true;
	}
	if (!(has & 12 << SHAPES_SHIFT))
		return false;
	struct endpoint any = { .port = ANY_ADDRESS | port };
	if (has & 4 << SHAPES_SHIFT && takes(&any, port, option, exid))
		return true;
	any.port = ANY_ADDRESS | ANY_PORT;
	return has & 8 << SHAPES_SHIFT && takes(&any, port, option, exid);
}

/* IPv4 and IPv6 directly, and GUE. */
static __always_inline bool takes_tunnel(const struct tunnel *tunnel, __u8 protocol, const __u8 *l4, const __u8 *end)
{
	if (protocol == IPPROTO_UDP) {
		if (l4 + 4 > end || half(l4 + 2) != UDP_PORT_GUE)
			return false;
	} else if (protocol != IPPROTO_IPIP && protocol != IPPROTO_IPV6) {
		return false;
	}
	return bpf_map_lookup_elem(&tunnels, tunnel);
}

static __always_inline bool takes_packet(__u32 has, const __u8 *frame, const __u8 *end)
{
	const __u8 *ip = frame + ETH_HLEN;

	if (ip > end)
		return false;
	__u32 ethertype = half(frame + 12);
	if (has & ETHERTYPES && bpf_map_lookup_elem(&ethertypes, &ethertype))
		return true;
	struct endpoint to = {};
	struct tunnel tunnel = {};
	const __u8 *l4;
	__u8 protocol;
	if (ethertype == ETH_P_IP) {
		if (ip + IPV4_HEADER > end || half(ip + 6) & MORE_FRAGMENTS_OR_OFFSET)
			return false;
		protocol = ip[9];
		l4 = ip + 4 * (ip[0] & 0x0f);
		copy4(to.address, ip + 16);
		copy4(tunnel.source, ip + 12);
		copy4(tunnel.destination, ip + 16);
	} else if (ethertype == ETH_P_IPV6) {
		if (ip + IPV6_HEADER > end)
			return false;
		protocol = ip[6];
		l4 = ip + IPV6_HEADER;
		to.port = tunnel.family = IPV6;
		copy16(to.address, ip + 24);
		copy16(tunnel.source, ip + 8);
		copy16(tunnel.destination, ip + 24);
	} else {
		return false;
	}
	if (protocol == IPPROTO_TCP)
		return takes_segment(has, &to, l4, end);
	return has & TUNNELS && takes_tunnel(&tunnel, protocol, l4, end);
}

/* Not static, so that the verifier walks it once and not for each try. */
__noinline int takes_frame(struct xdp_md *ctx, __u32 has)
{
	const __u8 *frame = (const __u8 *)(long)ctx->data, *end = (const __u8 *)(long)ctx->data_end;

	if (frame + ETH_HLEN + 4 <= end) {
		__u16 tag = half(frame + 12);
		if (tag == ETH_P_8021Q || tag == ETH_P_8021AD)
			frame += 4;
	}
	return takes_packet(has, frame, end);
}

SEC("xdp")
int redirect(struct xdp_md *ctx)
{
	__u32 has = settings;

	if (!(has & EVERYTHING)) {
		/*
		 * During an update an entry may leave one map after the lookup in another map
		 * missed its replacement.
		 */
		for (int tries = 0; !takes_frame(ctx, has); tries++) {
			__u32 before = has;

			has = settings;
			if (has == before || tries == TRIES)
				return XDP_PASS;
			if (has & EVERYTHING)
				break;
		}
	}
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "Dual BSD/GPL";

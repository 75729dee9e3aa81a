/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* IP fields and addresses, for all programs. */
#ifndef PACKET_H
#define PACKET_H

#include <linux/in6.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Mask of IPv4's flags and fragment offset that is zero for a whole packet. */
#define MORE_FRAGMENTS_OR_OFFSET 0x3fff

/* Addresses as 128 bits, IPv4 mapped into IPv6 (RFC 4291, 2.5.5.2). */
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

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* HalfSipHash-2-4 of whole words, little-endian, as host/packet/src/nonce.rs has it. */
#ifndef SIP_H
#define SIP_H

#include <linux/types.h>

static __always_inline __u32 rotated(__u32 x, int by)
{
	return x << by | x >> (32 - by);
}

static __always_inline void sip_round(__u32 v[4])
{
	v[0] += v[1];
	v[1] = rotated(v[1], 5) ^ v[0];
	v[0] = rotated(v[0], 16);
	v[2] += v[3];
	v[3] = rotated(v[3], 8) ^ v[2];
	v[0] += v[3];
	v[3] = rotated(v[3], 7) ^ v[0];
	v[2] += v[1];
	v[1] = rotated(v[1], 13) ^ v[2];
	v[2] = rotated(v[2], 16);
}

static __always_inline __u32 half_sip_hash_words(const __u32 key[2], const __u32 *words, int count)
{
	__u32 v[4] = { key[0], key[1], 0x6c796765 ^ key[0], 0x74656462 ^ key[1] };

	for (int n = 0; n <= count; n++) {
		__u32 word = n < count ? words[n] : (__u32)(4 * count) << 24;
		v[3] ^= word;
		sip_round(v);
		sip_round(v);
		v[0] ^= word;
	}
	v[2] ^= 0xff;
	for (int n = 0; n < 4; n++)
		sip_round(v);
	return v[1] ^ v[3];
}

#endif

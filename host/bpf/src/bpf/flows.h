/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps that trods.c and dying.c share. */
#ifndef FLOWS_H
#define FLOWS_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "trods.h"

/* Connections with limits on the segments that may leave. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct limits);
} flows SEC(".maps");

/* Connections with timestamps of this program (ts.h), and their limits. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct stamped);
} stamped SEC(".maps");

/* The limits of a connection, if any. For a connection with timestamps of ours (`st`), the limits
 * are in `flows` once the process records it, and in `stamped` before: each further map costs a
 * cache miss. */
static __always_inline struct limits *limits_of(const struct flow_key *key, struct stamped *st)
{
	if (st->phase == STAMPED_RECORDED)
		return bpf_map_lookup_elem(&flows, key);
	return st->phase == STAMPED_FREE ? NULL : &st->limits;
}

/* Connections that the kernel closed because their process died. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_DYING);
	__type(key, struct flow_key);
	__type(value, __u8);
} dying SEC(".maps");

/* Whether a map that is normally empty ever had an entry. Until then the programs skip its lookup,
 * because each lookup is a cache miss and costs as much as a checksum. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HAPPENED);
	__type(key, __u32);
	__type(value, __u32);
} happened SEC(".maps");

static __always_inline bool has_happened(__u32 what)
{
	__u32 *has = bpf_map_lookup_elem(&happened, &what);

	return !has || *(volatile __u32 *)has;
}

/* Called before the first entry is inserted into such a map. */
static __always_inline void happens(__u32 what)
{
	__u32 *has = bpf_map_lookup_elem(&happened, &what);

	if (has)
		*(volatile __u32 *)has = 1;
}

#endif

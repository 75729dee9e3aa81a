/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps that trods.c and dying.c have together. */
#ifndef FLOWS_H
#define FLOWS_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "trods.h"

/* Connections that are held to limits. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct limits);
} flows SEC(".maps");

/* Connections whose timestamps are made here (ts.h), with limits of their own. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct stamped);
} stamped SEC(".maps");

/*
 * Which limits such a connection has, if any. One that is recorded is the process's, which knows nothing of timestamps; all others are in
 * one map, since each that is looked into is in no processor's cache.
 */
static __always_inline struct limits *limits_of(const struct flow_key *key, struct stamped *st)
{
	if (st->phase == STAMPED_RECORDED)
		return bpf_map_lookup_elem(&flows, key);
	return st->phase == STAMPED_FREE ? NULL : &st->limits;
}

/* Those whose process died. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_DYING);
	__type(key, struct flow_key);
	__type(value, __u8);
} dying SEC(".maps");

/*
 * Whether there ever was something in a map that is empty on a good day: until then nobody looks into it. Its entries are in no
 * processor's cache, and a look costs as much as a checksum.
 */
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

/* To be said before there is something. */
static __always_inline void happens(__u32 what)
{
	__u32 *has = bpf_map_lookup_elem(&happened, &what);

	if (has)
		*(volatile __u32 *)has = 1;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps that trods.c and dying.c have together. */
#ifndef FLOWS_H
#define FLOWS_H

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

/* Those whose process died. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_DYING);
	__type(key, struct flow_key);
	__type(value, __u8);
} dying SEC(".maps");

#endif

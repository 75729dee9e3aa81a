/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The layout of the maps of cm.c, which calls.c shares in part, and which host/bpf/src/cm/state.rs reads. */
#ifndef CM_H
#define CM_H

#include <linux/bpf.h>

#include "macroflow.h"

#define MAX_MACROFLOWS 65536
#define MAX_CLIENTS 4096
/* Of a client's ring: the loader makes them. */
#define RING_OCTETS 65536

/* What flows belong together by. */
struct cm_key {
	/* Cookie of the network namespace. */
	__u64 netns;
	/* IPv4 mapped into IPv6. */
	__u32 destination[4];
	/* Differentiated services code point. */
	__u32 dscp;
	/* 0: TCP, which the kernel sends. Each user's programs have one of their own: uid + 1. */
	__u32 class;
};

struct cm_entry {
	struct bpf_spin_lock lock;
	/* Of one that is nobody's: the next such one, + 1. */
	__u32 next;
	/* When it was made, ns: a flow knows by it that this is still the macroflow that it joined. 0: nobody's. */
	__u64 generation;
	struct macroflow m;
	struct cm_key key;
	/* Forgets it. */
	struct bpf_timer timer;
};

#endif

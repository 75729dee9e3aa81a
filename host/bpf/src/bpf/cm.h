/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The layout of the maps of cm.c, which calls.c shares in part, and which host/bpf/src/cm/state.rs reads. */
#ifndef CM_H
#define CM_H

#include <linux/bpf.h>

#include "macroflow.h"

#define MAX_MACROFLOWS 65536
#define MAX_CLIENTS 4096
/* Bytes of a client's ring, which the loader creates. */
#define RING_OCTETS 65536

/* Key of a macroflow: flows with equal keys share it. */
struct cm_key {
	/* Cookie of the network namespace. */
	__u64 netns;
	/* IPv4 mapped into IPv6. */
	__u32 destination[4];
	/* Differentiated services code point. */
	__u32 dscp;
	/* 0: TCP of the kernel. uid + 1: programs of that user. */
	__u32 class;
};

struct cm_entry {
	struct bpf_spin_lock lock;
	/* Index + 1 of the next free number, while this one is in the free list. */
	__u32 next;
	/* When the macroflow was created, ns. By it a flow recognises the macroflow that it joined. 0:
	 * free. */
	__u64 generation;
	struct macroflow m;
	struct cm_key key;
	/* Deletes the macroflow after a time without connections. */
	struct bpf_timer timer;
};

#endif

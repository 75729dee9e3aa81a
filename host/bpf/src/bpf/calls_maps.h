/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Maps of calls.c, some of which host/bpf/src/cm/calls.rs reads, and settings that the loader
 * writes.
 */
#ifndef CALLS_MAPS_H
#define CALLS_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "cm.h"
#include "share.h"

/* Most grants that one call gives. The timer gives the others, and fires at once. */
#define MOST_GRANTS 256
/* Most requests of one flow that wait for a grant. */
#define MOST_REQUESTS 1024

/* Settings that the loader may change, in the order in which calls.rs writes them. */
const volatile __u64 grant_life = 100 * 1000000ULL;
const volatile __u64 silence = 5 * 1000000000ULL;
const volatile __u32 initial_window = 10;
const volatile __u32 slow_start_limit = 2;
/* Most flows of an account. The history of as many macroflows without flows is kept. */
const volatile __u32 flows_a_user = 1024;

struct cm_shared {
	struct bpf_spin_lock lock;
	/* The macroflow is being deleted, and its timer removes the entry. */
	__u32 gone;
	/* Generation and state stand at the same offsets as in struct cm_entry. */
	__u64 generation;
	struct cm_share s;
	/* When the timer is to fire; 0: not set. */
	__u64 armed;
	/* When the macroflow is deleted unless a flow joins; 0: it has flows. */
	__u64 forget;
	/* Scratch value of any(), under the lock. */
	__u64 any;
	/* Account whose quota counts it. */
	__u64 account;
	struct bpf_timer timer;
};

struct cm_share_key {
	struct cm_key of;
	/* 0: the first macroflow of this key. Otherwise the number of a separate macroflow, which was made
	 * for flows that left the first one. */
	__u64 apart;
};

/* The macroflow and the slot in it of a flow. */
struct cm_place {
	struct cm_share_key key;
	__u64 generation;
	__u64 flow;
	__u32 slot;
	/* The account of the flow's client, as in struct cm_client. */
	__u32 account;
};

/* Key by which egress finds a packet's flow. */
struct cm_tuple {
	__u64 netns;
	__u32 source[4];
	__u32 destination[4];
	__u16 source_port;
	__u16 destination_port;
	/* As in cm_key. */
	__u32 class;
	__u32 protocol;
	__u32 unused;
};

struct cm_flow {
	struct cm_place place;
	struct cm_tuple tuple;
	__u32 uid;
	__u32 client;
};

struct cm_client {
	__u32 uid;
	/* Process at whose exit the daemon removes the client. Written by the daemon. */
	__u32 pid;
	__u64 started;
	/* Requests of the client that wait for a grant. Each becomes an event. */
	__u32 waiting;
	__u32 flows;
	/* User under whose quota the client falls: the owner of a subordinate user id. Written by the
	 * daemon. */
	__u32 account;
	__u32 unused;
};

/* How many flows and macroflows an account has. */
struct cm_user {
	__u32 flows;
	__u32 shares;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_MACROFLOWS);
	__type(key, struct cm_share_key);
	__type(value, struct cm_shared);
} shares SEC(".maps");

/* Macroflows by their numbers, which are their generations. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_MACROFLOWS);
	__type(key, __u64);
	__type(value, struct cm_share_key);
} numbered SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_MACROFLOWS);
	__type(key, __u64);
	__type(value, struct cm_flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_MACROFLOWS);
	__type(key, struct cm_tuple);
	__type(value, struct cm_place);
} tuples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_CLIENTS);
	__type(key, __u32);
	__type(value, struct cm_client);
} clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_CLIENTS);
	__type(key, __u32);
	__type(value, struct cm_user);
} users SEC(".maps");

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_OCTETS);
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_CLIENTS);
	__type(key, __u32);
	__array(values, struct ring);
} rings SEC(".maps");

/* The number that was last given to a flow or a separate macroflow. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps");

/* Zeros from which a new macroflow is initialised: a struct too large for the stack. */
struct blank {
	__u64 zeros[sizeof(struct cm_shared) / 8];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct blank);
} blank SEC(".maps");

#endif

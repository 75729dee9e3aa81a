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

/* Grants of one run: more are given by the timer, at once. */
#define MOST_GRANTS 256
/* Requests of a flow that wait. */
#define MOST_REQUESTS 1024

/* The loader's choice, in the order in which calls.rs writes them. */
const volatile __u64 grant_life = 100 * 1000000ULL;
const volatile __u64 silence = 5 * 1000000000ULL;
const volatile __u32 initial_window = 10;
const volatile __u32 slow_start_limit = 2;
/* An account's flows; as many macroflows more have their history kept. */
const volatile __u32 flows_a_user = 1024;

struct cm_shared {
	struct bpf_spin_lock lock;
	/* Its timer deletes it. */
	__u32 gone;
	/* struct cm_entry has these at the same places. */
	__u64 generation;
	struct cm_share s;
	/* When the timer is to fire; 0: not set. */
	__u64 armed;
	/* When it is forgotten if no flow comes; 0: it has flows. */
	__u64 forget;
	/* Under the lock (any). */
	__u64 any;
	/* Account whose quota counts it. */
	__u64 account;
	struct bpf_timer timer;
};

struct cm_share_key {
	struct cm_key of;
	/*
	 * 0: the first macroflow of this key. Otherwise the number of a separate one, made for
	 * flows that left the first.
	 */
	__u64 apart;
};

/* Where a flow is. */
struct cm_place {
	struct cm_share_key key;
	__u64 generation;
	__u64 flow;
	__u32 slot;
	/* Of its flow: as in cm_client. */
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
	/* Process whose exit ends the client; written by the daemon. */
	__u32 pid;
	__u64 started;
	/* Waiting requests: each becomes an event. */
	__u32 waiting;
	__u32 flows;
	/* The user whose quotas count it: the owner of a subordinate user id. Written by the daemon. */
	__u32 account;
	__u32 unused;
};

/* Numbers of flows and macroflows of an account. */
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

/* Flows and macroflows apart so far. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps");

/* What a new macroflow is copied from: zeros, too many for the stack. */
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

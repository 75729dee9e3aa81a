/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Shared by the headers of trods.c: its maps, the variables that the process sets, and verdicts. */
#ifndef TRODS_MAPS_H
#define TRODS_MAPS_H

#include <linux/pkt_cls.h>

#include "flows.h"
#include "trods.h"

/* Continue with the next program, and then the kernel. */
#define NEXT TC_ACT_UNSPEC
#define DROP TC_ACT_SHOT
/* An interface index that no interface has. */
#define NOWHERE 0

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SERVICE_ADDRESSES);
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_LEASES);
	__type(key, __u32);
	__type(value, struct lease);
} leases SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_ORPHANS);
	__type(key, struct flow_key);
	__type(value, __u8);
} orphans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_PINS);
	__type(key, struct flow_key);
	__type(value, struct pin);
} pins SEC(".maps");

/* Times of the first and the last RST to a client that were dropped, nanoseconds. */
struct refusal {
	__u64 at;
	__u64 last;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_REFUSED);
	__type(key, struct flow_key);
	__type(value, struct refusal);
} refused SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_OPENING);
	__type(key, struct flow_key);
	__type(value, struct opening);
} openings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_WITHHELD);
	__type(key, struct flow_key);
	__type(value, struct withheld);
} withheld SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_FREED);
	__type(key, struct flow_key);
	__type(value, __u8);
} freed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS_SIZE);
} events SEC(".maps");

/* How many segments of unknown connections were returned to the ToR since `since`. */
struct turned {
	__u64 since;
	__u64 count;
};

/* How many refusal events were sent since `since`. */
struct refusals {
	__u64 since;
	__u64 count;
};

/* State of the scan of a connection whose last segment ended within a head (inputs.h). */
struct scan {
	__u64 last; /* the last eight bytes of the head, in lower case */
	__u32 next; /* sequence number after them */
	__u32 state;
};

/* One value for each processor: softirqs of one processor do not interrupt each other. */
struct scratch {
	struct event event;
	struct opening opening;
	struct withheld withheld;
	struct stamped stamped;
	struct turned turned;
	struct refusals refusals;
	struct scan scan;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* Index of the interface on which frames from the TAP are received again. */
volatile __u32 watched SEC(".data.watched");

/* Index of the TAP that gets frames to hold. While it is 0 they are dropped, and TCP retransmits
 * them. */
volatile __u32 tap SEC(".data.tap");

/* Set when the process has died (src/linger.rs). No new connection is accepted then, because no
 * replica would store or resume it. */
volatile __u32 dead SEC(".data.dead");

static __always_inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&counters, &what);

	if (counter)
		*counter += 1;
}

static __always_inline struct scratch *scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratches, &zero);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Part of calls.c: finds, creates and joins macroflows. */
#ifndef CALLS_SHARES_H
#define CALLS_SHARES_H

#include "calls_maps.h"
#include "calls_time.h"

#define CLOCK_MONOTONIC 1

static __always_inline struct cm_shared *find(const struct cm_place *place)
{
	struct cm_shared *e = bpf_map_lookup_elem(&shares, &place->key);

	/* An equal key with another generation is a later macroflow to the same destination. */
	return e && e->generation == place->generation ? e : 0;
}

/* Removes a macroflow that has no timer, because it would never expire, unless another call has
 * initialised it. Kernels from 6.18 on allocate timers without locks, which can fail while memory
 * is available. */
static __always_inline int unmake(struct cm_share_key *key, struct cm_user *user, struct cm_shared *e)
{
	bpf_spin_lock(&e->lock);
	int unused = !e->generation && !e->gone;
	if (unused)
		e->gone = 1;
	bpf_spin_unlock(&e->lock);
	if (unused && !bpf_map_delete_elem(&shares, key))
		less(&user->shares);
	return unused;
}

/* Returns the macroflow of a new flow. If it returns NULL, `result` has the error. */
static __always_inline struct cm_shared *make(struct cm_share_key *key, struct cm_user *user, __u32 account, int *result)
{
	struct cm_shared *e = bpf_map_lookup_elem(&shares, key);
	__u32 zero = 0;
	struct blank *new;
	__u64 armed;

	*result = -ENOSPC;
	if (e)
		return e;
	new = bpf_map_lookup_elem(&blank, &zero);
	if (!new || bpf_map_update_elem(&shares, key, new, BPF_NOEXIST))
		return bpf_map_lookup_elem(&shares, key);
	__sync_fetch_and_add(&user->shares, 1);
	e = bpf_map_lookup_elem(&shares, key);
	if (!e)
		return e;
	/* Set before the timer starts, because the timer reads it. */
	e->account = account;
	if (bpf_timer_init(&e->timer, &shares, CLOCK_MONOTONIC)) {
		*result = -EAGAIN;
		return unmake(key, user, e) ? 0 : e;
	}
	bpf_timer_set_callback(&e->timer, fire);
	/* Another call may have found the macroflow before this field was set. */
	bpf_spin_lock(&e->lock);
	armed = e->armed;
	bpf_spin_unlock(&e->lock);
	if (armed)
		bpf_timer_start(&e->timer, 0, 0);
	return e;
}

/* Initialises a macroflow that was just made. Under the lock. */
static __always_inline void begin(struct cm_shared *e, __u64 number, __u64 now, __u32 mtu)
{
	cm_init(&e->s.m, initial_window, slow_start_limit, mtu);
	e->s.m.active = e->s.busy = now;
	e->generation = number;
}

/* Takes a free slot for a new flow. Returns CM_SLOTS if there is none. Under the lock. */
static __always_inline __u32 take_slot(struct cm_shared *e)
{
	__u64 free = ~e->s.taken;
	/* Index of the lowest bit, without a loop that the verifier would unroll. */
	__u32 at = free ? (__u32)__builtin_popcountll((free & -free) - 1) : CM_SLOTS;

	if (at < CM_SLOTS)
		e->forget = 0;
	return at;
}

#endif

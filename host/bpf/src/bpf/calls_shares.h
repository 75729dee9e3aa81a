/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Of calls.c: macroflows are found, made and taken part in. */
#ifndef CALLS_SHARES_H
#define CALLS_SHARES_H

#include "calls_maps.h"
#include "calls_time.h"

#define CLOCK_MONOTONIC 1

static __always_inline struct cm_shared *find(const struct cm_place *place)
{
	struct cm_shared *e = bpf_map_lookup_elem(&shares, &place->key);

	/* One of the same destination that was made since is another one. */
	return e && e->generation == place->generation ? e : 0;
}

/*
 * One whose timer could not be had goes again, unless somebody else has begun it: nobody would forget it. Newer kernels (6.18) allocate
 * timers without taking locks, which fails now and then for no lack of memory.
 */
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

/* The macroflow of a new flow; none: `result` says why. */
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
	/* Before there is a timer, which reads it. */
	e->account = account;
	if (bpf_timer_init(&e->timer, &shares, CLOCK_MONOTONIC)) {
		*result = -EAGAIN;
		return unmake(key, user, e) ? 0 : e;
	}
	bpf_timer_set_callback(&e->timer, fire);
	/* Somebody else may have found it before it could be set. */
	bpf_spin_lock(&e->lock);
	armed = e->armed;
	bpf_spin_unlock(&e->lock);
	if (armed)
		bpf_timer_start(&e->timer, 0, 0);
	return e;
}

/* Under the lock: of a macroflow that was just made. */
static __always_inline void begin(struct cm_shared *e, __u64 number, __u64 now, __u32 mtu)
{
	cm_init(&e->s.m, initial_window, slow_start_limit, mtu);
	e->s.m.active = e->s.busy = now;
	e->generation = number;
}

/* Under the lock: a slot that is nobody's, for a flow that comes now; CM_SLOTS: there is none. */
static __always_inline __u32 take_slot(struct cm_shared *e)
{
	__u64 free = ~e->s.taken;
	/* Of the lowest bit; without a loop, through which the verifier would go for each. */
	__u32 at = free ? (__u32)__builtin_popcountll((free & -free) - 1) : CM_SLOTS;

	if (at < CM_SLOTS)
		e->forget = 0;
	return at;
}

#endif

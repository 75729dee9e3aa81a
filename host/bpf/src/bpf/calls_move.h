/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Part of calls.c: moves flows to another macroflow, or to a separate one (RFC 3124 section 2.1.5).
 */
#ifndef CALLS_MOVE_H
#define CALLS_MOVE_H

#include <linux/errno.h>

#include "calls_shares.h"
#include "calls_time.h"

/* Finds the new macroflow of a flow and takes a slot in it. If it returns an error, nothing has
 * changed. */
static __always_inline int prepare(struct cm_flow *moved, const struct cm_slot *slot, __u64 *to, struct cm_shared **there)
{
	__u64 now = bpf_ktime_get_ns(), netns = moved->place.key.of.netns, *count;
	__u32 zero = 0, at;
	int result;
	struct cm_share_key *known;
	struct cm_user *user;
	struct cm_shared *e;

	if (*to) {
		known = bpf_map_lookup_elem(&numbered, to);
		/* The number of another user's macroflow gives the same error as an unknown one. */
		if (!known || known->of.class != moved->uid + 1 || known->of.netns != netns)
			return -ESRCH;
		moved->place.key = *known;
		e = bpf_map_lookup_elem(&shares, &moved->place.key);
		if (!e || e->generation != *to)
			return -ESRCH;
	} else {
		count = bpf_map_lookup_elem(&numbers, &zero);
		user = bpf_map_lookup_elem(&users, &moved->place.account);
		if (!count || !user)
			return -ENOENT;
		moved->place.key.apart = *to = __sync_fetch_and_add(count, 1) + 1;
		e = make(&moved->place.key, user, moved->place.account, &result);
		if (!e)
			return result;
		if (bpf_map_update_elem(&numbered, to, &moved->place.key, BPF_ANY))
			return -ENOSPC;
	}
	bpf_spin_lock(&e->lock);
	if (e->gone) {
		bpf_spin_unlock(&e->lock);
		return -ESRCH;
	}
	if (!e->generation)
		begin(e, *to, now, slot->mtu);
	at = take_slot(e);
	if (at < CM_SLOTS) {
		cm_share_open(&e->s, at, now, moved->place.flow, moved->client, slot->mtu);
		cm_share_like(&e->s, at, slot);
		/*
		 * While the flow is in both macroflows it must not be moved again; a close handles
		 * both.
		 */
		cm_slot(&e->s, at)->moves = 1;
	}
	moved->place.generation = e->generation;
	bpf_spin_unlock(&e->lock);
	moved->place.slot = at;
	*there = e;
	return at < CM_SLOTS ? 0 : -ENOSPC;
}

/* Frees a slot: the new one after a failed move, or the old one after a move. */
static __always_inline void give_back(struct cm_shared *e, __u32 at, __u64 number, __u64 now)
{
	bpf_spin_lock(&e->lock);
	if (cm_slot(&e->s, at)->flow == number)
		cm_share_close(&e->s, at, now);
	if (!e->s.m.flows && !e->forget)
		e->forget = now;
	bpf_spin_unlock(&e->lock);
	arm(e, now, now);
}

/* Writes the new macroflow and slot of a flow into the maps. If it returns an error the maps are
 * unchanged, unless the flow is being closed at the same moment. */
static __always_inline int enter(__u64 number, struct cm_flow *moved)
{
	int result = (int)bpf_map_update_elem(&flows, &number, moved, BPF_EXIST);
	const struct cm_place *before;

	if (result)
		return result;
	result = (int)bpf_map_update_elem(&tuples, &moved->tuple, &moved->place, BPF_EXIST);
	before = result ? bpf_map_lookup_elem(&tuples, &moved->tuple) : 0;
	if (before) {
		moved->place = *before;
		bpf_map_update_elem(&flows, &number, moved, BPF_EXIST);
	}
	return result;
}

/*
 * Moves a flow into the macroflow with the number v[0], or into a separate one (0). Returns its
 * number in v[0] and its waiting requests in v[1]; timers give the grants. The flow has a slot in
 * both before the maps name the new one, so packets that leave meanwhile are counted. If the flow
 * is closed at the same moment, the check at the end finds a slot or map entry missing and removes
 * the rest.
 */
static __noinline int move_flow(__u64 number, __u64 *v)
{
	struct cm_flow *flow = bpf_map_lookup_elem(&flows, &number), moved;
	__u64 now = bpf_ktime_get_ns(), target, outstanding = 0;
	struct cm_shared *from, *there = 0;
	struct cm_client *client;
	__u32 at, to, apart, requests = 0;
	int result, gone;

	if (!flow || !v)
		return -ENOENT;
	target = v[0];
	v[1] = 0;
	moved = *flow;
	at = moved.place.slot;
	apart = !!moved.place.key.apart;
	from = find(&moved.place);
	if (!from)
		return -ENOENT;
	if (target == from->generation)
		return 0;
	bpf_spin_lock(&from->lock);
	gone = cm_slot(&from->s, at)->flow != number;
	/* Only one move of a flow at a time. */
	result = gone ? -ENOENT : cm_slot(&from->s, at)->moves ? -EAGAIN : 0;
	if (!result)
		cm_slot(&from->s, at)->moves = 1;
	bpf_spin_unlock(&from->lock);
	if (result)
		return result;
	result = prepare(&moved, cm_slot(&from->s, at), &target, &there);
	if (result || !there) {
		bpf_spin_lock(&from->lock);
		if (cm_slot(&from->s, at)->flow == number)
			cm_slot(&from->s, at)->moves = 0;
		bpf_spin_unlock(&from->lock);
		return result ? result : -ENOENT;
	}
	to = moved.place.slot;
	result = enter(number, &moved);
	bpf_spin_lock(&from->lock);
	gone = cm_slot(&from->s, at)->flow != number;
	if (!gone && result && result != -ENOENT) {
		/* The map has no room: the flow stays where it is. */
		cm_slot(&from->s, at)->moves = 0;
	} else if (!gone) {
		outstanding = cm_slot(&from->s, at)->member.outstanding;
		requests = cm_slot(&from->s, at)->requests;
		cm_share_close(&from->s, at, now);
		if (!from->s.m.flows)
			from->forget = now + (apart ? 0 : CM_FORGET);
	}
	bpf_spin_unlock(&from->lock);
	if (gone || result) {
		give_back(there, to, number, now);
	} else {
		bpf_spin_lock(&there->lock);
		gone = cm_slot(&there->s, to)->flow != number;
		if (!gone) {
			cm_share_bring(&there->s, to, now, outstanding);
			cm_slot(&there->s, to)->moves = 0;
		}
		bpf_spin_unlock(&there->lock);
	}
	client = bpf_map_lookup_elem(&clients, &moved.client);
	if (client)
		__sync_fetch_and_add(&client->waiting, -requests);
	arm(from, now, now);
	arm(there, now, now);
	if (result)
		return result;
	v[0] = target;
	v[1] = requests;
	return gone ? -ENOENT : 0;
}

#endif

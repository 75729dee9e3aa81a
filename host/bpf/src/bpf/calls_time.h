/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Timers of the macroflows of calls.c: grants, events of changes, and expiry. */
#ifndef CALLS_TIME_H
#define CALLS_TIME_H

#include <linux/errno.h>

#include "calls.h"
#include "calls_maps.h"
#include "task.h"

static __always_inline int less(__u32 *count)
{
	return __sync_fetch_and_add(count, (__u32)-1);
}

/* Makes the timer fire at `at` or earlier. Of two concurrent calls, the one with the later time
 * sees that the timer is set to an earlier one, and leaves it. */
static __noinline void arm(struct cm_shared *e, __u64 now, __u64 at)
{
	int sooner;

	bpf_spin_lock(&e->lock);
	sooner = !e->armed || e->armed <= now || at < e->armed;
	if (sooner)
		e->armed = at;
	bpf_spin_unlock(&e->lock);
	if (!sooner)
		return;
	bpf_timer_start(&e->timer, at > now ? at - now : 0, 0);
	bpf_spin_lock(&e->lock);
	sooner = e->armed && e->armed < at;
	at = e->armed;
	bpf_spin_unlock(&e->lock);
	if (sooner)
		bpf_timer_start(&e->timer, at > now ? at - now : 0, 0);
}

/* Whether a reader waits at a ring for an entry that was reserved just now. To wake a reader the
 * kernel sends itself an interrupt, which costs more than the rest of a call, and mostly the reader
 * is the caller and does not wait. A reader that begins to wait after this check finds the entry.
 */
static __always_inline int waited_for(struct bpf_ringbuf_map *ring)
{
	struct wait_queue_head *queue = &ring->rb->waitq;
	__u32 fence = 0;

	if (__sync_fetch_and_add(&fence, 1))
		return 1;
	return queue->head.next != &queue->head;
}

static __always_inline long tell(__u32 client, __u64 flow, __u32 kind)
{
	struct bpf_ringbuf_map *ring = bpf_map_lookup_elem(&rings, &client);
	struct cm_event *event;

	if (!ring)
		return -ENOENT;
	event = bpf_ringbuf_reserve(ring, sizeof(*event), 0);
	if (!event)
		return -ENOSPC;
	event->flow = flow;
	event->kind = kind;
	event->unused = 0;
	bpf_ringbuf_submit(event, waited_for(ring) ? 0 : BPF_RB_NO_WAKEUP);
	return 0;
}

/* The progress of a walk over the flows of a macroflow. */
struct walk {
	struct cm_shared *e;
	__u64 now;
	/* Time of the next action; ~0: never. */
	__u64 next;
	__u32 turned;
	__u32 done;
};

static long settle_one(__u32 i __attribute__((unused)), void *context)
{
	struct walk *walk = context;
	struct cm_shared *e = walk->e;
	__u64 now = walk->now, later, flow = 0, next;
	struct cm_client *state;
	__u32 at, client = 0;

	bpf_spin_lock(&e->lock);
	at = cm_share_settle(&e->s, now, initial_window, &later);
	if (at) {
		flow = cm_slot(&e->s, at - 1)->flow;
		client = cm_slot(&e->s, at - 1)->client;
		if (!e->s.turn)
			e->s.turn = now + cm_life(&e->s, grant_life);
	}
	next = e->s.turn ? e->s.turn : ~0ULL;
	if (later && later < next)
		next = later;
	/* The timer is already set to that time or an earlier one. */
	if (e->armed > now && e->armed <= next)
		next = ~0ULL;
	bpf_spin_unlock(&e->lock);
	if (next < walk->next)
		walk->next = next;
	if (!at) {
		walk->done = 1;
		return 1;
	}
	state = bpf_map_lookup_elem(&clients, &client);
	if (state)
		less(&state->waiting);
	if (!tell(client, flow, CM_EVENT_SEND))
		return 0;
	/* The client's ring has no room for the event, so the grant is declined for it. */
	bpf_spin_lock(&e->lock);
	if (cm_slot(&e->s, at - 1)->flow == flow)
		cm_share_notify(&e->s, at - 1, now, 0);
	bpf_spin_unlock(&e->lock);
	return 0;
}

static long watch_one(__u32 i, void *context)
{
	struct walk *walk = context;
	struct cm_shared *e = walk->e;
	__u64 flow = 0;
	__u32 client = 0;
	int due = 0;

	bpf_spin_lock(&e->lock);
	if (e->s.taken & (1ULL << (i & (CM_SLOTS - 1))))
		due = cm_share_watch(&e->s, i);
	if (due) {
		flow = cm_slot(&e->s, i)->flow;
		client = cm_slot(&e->s, i)->client;
	}
	bpf_spin_unlock(&e->lock);
	if (!due || !tell(client, flow, CM_EVENT_UPDATE))
		return 0;
	/* The client's ring is full. A later event will have the same effect. */
	bpf_spin_lock(&e->lock);
	if (cm_slot(&e->s, i)->flow == flow)
		cm_slot(&e->s, i)->due = 0;
	bpf_spin_unlock(&e->lock);
	return 0;
}

static long expire_one(__u32 i, void *context)
{
	struct walk *walk = context;
	struct cm_shared *e = walk->e;
	struct cm_slot *slot;
	__u64 at = 0;

	bpf_spin_lock(&e->lock);
	if (e->s.taken & (1ULL << (i & (CM_SLOTS - 1)))) {
		cm_share_expire(&e->s, i, walk->now, walk->turned, silence);
		slot = cm_slot(&e->s, i);
		if (slot->member.outstanding)
			at = slot->heard + cm_patience(&e->s, silence);
		if (slot->grants)
			walk->done = 0;
	}
	bpf_spin_unlock(&e->lock);
	if (at && at < walk->next)
		walk->next = at;
	return 0;
}

/* Returns the value after passing it through a map, which makes it unknown to the verifier. The
 * verifier then checks the following code once and not for each possible value. Under the lock. */
static __always_inline __u64 any(struct cm_shared *e, __u64 value)
{
	e->any = value;
	return *(volatile __u64 *)&e->any;
}

/* The time at which a flow's outstanding packets count as lost if no feedback arrives; ~0 if the
 * timer fires by then anyway. Under the lock. */
static __always_inline __u64 unheard(struct cm_shared *e, __u32 at, __u64 now)
{
	struct cm_slot *slot = cm_slot(&e->s, at);
	__u64 lost = slot->heard + cm_patience(&e->s, silence);

	if (!slot->member.outstanding || (e->armed > now && e->armed <= lost))
		return ~0ULL;
	return lost;
}

/* Gives the grants that the window allows, and sets the timer for the next action. */
static __noinline void settle(struct cm_shared *e, __u64 now, __u64 next, int watch)
{
	struct walk walk = { .e = e, .now = now, .next = next };

	bpf_loop(MOST_GRANTS, settle_one, &walk, 0);
	if (!walk.done)
		walk.next = now;
	if (watch)
		bpf_loop(CM_SLOTS, watch_one, &walk, 0);
	if (walk.next != ~0ULL)
		arm(e, now, walk.next);
}

/* Like settle, for the timer. Not static, because the verifier would otherwise check it for every
 * state of its caller. */
__noinline int cm_settle(struct cm_share_key *key, __u64 now, __u64 next, int watch)
{
	struct cm_shared *e = key ? bpf_map_lookup_elem(&shares, key) : 0;

	if (e)
		settle(e, now, next, watch);
	return 0;
}

/* The timer: expires grants and packets without feedback, gives paced grants, drops old history. */
static int fire(void *map, struct cm_share_key *key, struct cm_shared *e)
{
	__u64 now = bpf_ktime_get_ns(), forget, number = e->generation;
	struct walk walk = { .e = e, .now = now, .next = ~0ULL, .done = 1 };
	struct cm_share_key of;
	struct cm_user *user;
	__u32 account = (__u32)e->account;
	int gone, watch;

	bpf_spin_lock(&e->lock);
	e->armed = 0;
	gone = e->forget && e->forget <= now;
	if (gone)
		e->gone = 1;
	forget = e->forget;
	watch = e->s.watching > 0;
	walk.turned = e->s.turn && e->s.turn <= now;
	bpf_spin_unlock(&e->lock);
	if (gone) {
		user = bpf_map_lookup_elem(&users, &account);
		if (user)
			less(&user->shares);
		bpf_map_delete_elem(&numbered, &number);
		bpf_map_delete_elem(map, key);
		return 0;
	}
	if (forget)
		walk.next = forget;
	bpf_loop(CM_SLOTS, expire_one, &walk, 0);
	if (walk.turned) {
		bpf_spin_lock(&e->lock);
		e->s.turn = walk.done ? 0 : now + cm_life(&e->s, grant_life);
		bpf_spin_unlock(&e->lock);
	}
	/* A copy, because a pointer into the map must not be passed on. */
	of = *key;
	return cm_settle(&of, now, walk.next, watch);
}

#endif

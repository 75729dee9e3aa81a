/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The grants of one macroflow: host/cm/src/manager in C, for a single macroflow. The rules are
 * explained there. A test compiles this file natively and compares grants and numbers with the Rust
 * code after each step. It uses integers only and calls nothing, because it runs under a BPF spin
 * lock. One difference: of an unused grant only its age relative to the last clock tick is kept, so
 * it lives for one to two ticks.
 */
#ifndef SHARE_H
#define SHARE_H

#include "macroflow.h"

/* Flows of one macroflow. */
#define CM_SLOTS 64
/* manager/state.rs: windows for which the fate of packets is kept. */
#define CM_FATE 16
/* Highest rate that is reported, bytes a second: higher ones would overflow when multiplied with
 * factors. */
#define CM_MAX_RATE (1ULL << 40)
/* Factors are multiples of 1/65536; this is 1. */
#define CM_ONE 65536
/* scheduler/weighted.rs: cost of a turn for weight 1, and the largest weight. Small enough that
 * products with rates do not overflow. */
#define CM_STRIDE (720720ULL << 8)
#define CM_MAX_WEIGHT 65535
/* A threshold that no rate or round trip time reaches. */
#define CM_NEVER 0xffffffffU

struct cm_slot {
	/* Number of the flow; 0: free. */
	__u64 flow;
	struct member member;
	/* Time of the last feedback, or of the first outstanding packet. */
	__u64 heard;
	/* Rate and round trip time that were last reported to the client; rate 0: none yet. */
	__u64 told_rate;
	__u64 told_rtt;
	/* The flow's share so far, in turns divided by weight, while it waits. */
	__u64 had;
	/* Thresholds of the rate and the round trip time, as factors. */
	__u32 rate_down;
	__u32 rate_up;
	__u32 rtt_down;
	__u32 rtt_up;
	__u32 client;
	__u32 mtu;
	__u32 weight;
	__u32 requests;
	/* Grants that are neither used nor declined, and how many of these were given since the last clock
	 * tick. */
	__u32 grants;
	__u32 fresh;
	/* Index + 1 of the next flow in the queue of waiting flows, which begins with the least share. */
	__u8 next;
	__u8 prev;
	/* Whether the flow waits, or has grants or outstanding packets. */
	__u8 active;
	/* Whether the client wants events of changes, and whether it has yet to read the last one. */
	__u8 watches;
	__u8 due;
	/* Whether the flow is being moved to another macroflow. */
	__u8 moves;
	__u8 unused[6];
};

struct cm_share {
	struct macroflow m;
	/* Bytes for which grants are given and not used. */
	__u64 reserved;
	/* Last time that a packet was outstanding or granted. */
	__u64 busy;
	/* When the next grant may be given (pace.rs). */
	__u64 pace_until;
	__u64 pace_next;
	__u64 pace_time;
	__u64 pace_bytes;
	/* Bytes whose fate became known lately, and how many of them were lost. */
	__u64 resolved;
	__u64 lost;
	/* Next clock tick, which ages grants; 0: there are no grants. */
	__u64 turn;
	/* Share of the flow that had the last turn; a new flow begins with it. */
	__u64 passed;
	/* Slots in use, as bits. */
	__u64 taken;
	/* Sum of the weights of active flows, and number of flows that want events of changes. */
	__u32 active;
	__u32 watching;
	/* Index + 1 of the first and last waiting flow. */
	__u8 head;
	__u8 tail;
	__u8 unused[6];
	struct cm_slot slots[CM_SLOTS];
};

struct cm_status {
	__u64 rate;
	__u64 rtt;
	__u64 deviation;
	__u64 loss;
};

CM_INLINE struct cm_slot *cm_slot(struct cm_share *s, __u32 at)
{
	return &s->slots[at & (CM_SLOTS - 1)];
}

/* Inserts a flow into the queue, behind all flows with the same share. With equal weights that is
 * the end, so the search begins there. */
CM_INLINE void cm_enqueue(struct cm_share *s, __u32 at, __u64 from)
{
	struct cm_slot *slot = cm_slot(s, at);
	__u32 after = s->tail;

	slot->had = from + CM_STRIDE / (slot->weight ? slot->weight : 1);
#pragma unroll 1
	for (int i = 0; i < CM_SLOTS && after && cm_slot(s, after - 1)->had > slot->had; i++)
		after = cm_slot(s, after - 1)->prev;
	slot->prev = (__u8)after;
	slot->next = after ? cm_slot(s, after - 1)->next : s->head;
	if (slot->next)
		cm_slot(s, slot->next - 1)->prev = (__u8)(at + 1);
	else
		s->tail = (__u8)(at + 1);
	if (after)
		cm_slot(s, after - 1)->next = (__u8)(at + 1);
	else
		s->head = (__u8)(at + 1);
}

CM_INLINE void cm_dequeue(struct cm_share *s, __u32 at)
{
	struct cm_slot *slot = cm_slot(s, at);

	if (slot->prev)
		cm_slot(s, slot->prev - 1)->next = slot->next;
	else
		s->head = slot->next;
	if (slot->next)
		cm_slot(s, slot->next - 1)->prev = slot->prev;
	else
		s->tail = slot->prev;
	slot->next = slot->prev = 0;
}

CM_INLINE __u64 cm_pace_time(const struct cm_share *s, __u64 bytes)
{
	return bytes * s->pace_time / (s->pace_bytes ? s->pace_bytes : 1);
}

CM_INLINE void cm_pace_end(struct cm_share *s)
{
	s->pace_until = s->pace_next = s->pace_time = s->pace_bytes = 0;
}

CM_INLINE void cm_pace_begin(struct cm_share *s, __u64 now, __u64 window, __u64 srtt, __u64 burst)
{
	__u64 ago;

	cm_pace_end(s);
	if (window <= burst)
		return;
	s->pace_time = srtt;
	s->pace_bytes = window;
	s->pace_until = now + srtt;
	ago = cm_pace_time(s, burst);
	s->pace_next = now > ago ? now - ago : 0;
}

/* When a grant may be given; 0: now. */
CM_INLINE __u64 cm_pace_wait(struct cm_share *s, __u64 now)
{
	if (now >= s->pace_until)
		cm_pace_end(s);
	return s->pace_next > now ? s->pace_next : 0;
}

CM_INLINE void cm_refresh(struct cm_share *s, struct cm_slot *slot)
{
	int waits = slot->requests > 0;
	__u8 active = waits || slot->grants || slot->member.outstanding;

	if (active && !slot->active)
		s->active += slot->weight;
	else if (!active && slot->active)
		s->active -= slot->weight;
	slot->active = active;
	cm_set(&s->m, &slot->member, slot->member.outstanding, waits);
}

/* Sets the outstanding bytes of a flow; `heard` restarts its timeout for feedback. */
CM_INLINE void cm_set_outstanding(struct cm_share *s, struct cm_slot *slot, __u64 now, __u64 bytes, int heard)
{
	if (heard)
		slot->heard = now;
	cm_set(&s->m, &slot->member, bytes, slot->member.hungry);
	s->busy = now;
}

/* Ends `count` grants of a flow, the oldest first. */
CM_INLINE void cm_consume(struct cm_share *s, struct cm_slot *slot, __u32 count)
{
	if (count > slot->grants)
		count = slot->grants;
	slot->grants -= count;
	if (slot->fresh > slot->grants)
		slot->fresh = slot->grants;
	s->reserved -= (__u64)count * slot->mtu;
}

/* Initialises a flow's slot, which is zero before. Its thresholds are those of a client that wants
 * every change of the rate. */
CM_INLINE void cm_share_open(struct cm_share *s, __u32 at, __u64 now, __u64 flow, __u32 client, __u32 mtu)
{
	struct cm_slot *slot = cm_slot(s, at);

	s->taken |= 1ULL << (at & (CM_SLOTS - 1));
	slot->flow = flow;
	slot->client = client;
	slot->mtu = mtu;
	slot->weight = 1;
	slot->requests = slot->grants = slot->fresh = 0;
	slot->next = slot->prev = 0;
	slot->active = slot->watches = slot->due = slot->moves = 0;
	slot->told_rate = slot->told_rtt = 0;
	slot->rate_down = slot->rate_up = CM_ONE;
	slot->rtt_down = 0;
	slot->rtt_up = CM_NEVER;
	cm_join(&s->m, &slot->member, mtu);
	slot->heard = now;
	cm_set_mtu(&s->m, mtu);
}

CM_INLINE void cm_share_close(struct cm_share *s, __u32 at, __u64 now)
{
	struct cm_slot *slot = cm_slot(s, at);
	struct cm_report report = { .flow = slot->flow };

	cm_consume(s, slot, slot->grants);
	if (slot->requests)
		cm_dequeue(s, at);
	slot->requests = 0;
	report.resolved = slot->member.outstanding;
	cm_set_outstanding(s, slot, now, 0, 0);
	cm_report(&s->m, now, &report);
	cm_refresh(s, slot);
	cm_leave(&s->m, &slot->member);
	if (slot->watches)
		s->watching--;
	slot->watches = 0;
	slot->flow = 0;
	s->taken &= ~(1ULL << (at & (CM_SLOTS - 1)));
}

CM_INLINE void cm_share_request(struct cm_share *s, __u32 at, __u32 count)
{
	struct cm_slot *slot = cm_slot(s, at);

	if (!count)
		return;
	if (!slot->requests)
		cm_enqueue(s, at, s->passed);
	slot->requests += count;
	cm_refresh(s, slot);
}

/* Copies the settings of the same flow in another macroflow (manager::set_macroflow). */
CM_INLINE void cm_share_like(struct cm_share *s, __u32 at, const struct cm_slot *from)
{
	struct cm_slot *slot = cm_slot(s, at);

	slot->weight = from->weight;
	slot->rate_down = from->rate_down;
	slot->rate_up = from->rate_up;
	slot->rtt_down = from->rtt_down;
	slot->rtt_up = from->rtt_up;
	slot->watches = from->watches;
	s->watching += slot->watches;
}

/* Takes over the flow's outstanding packets. Its grants end, and the caller repeats its requests.
 */
CM_INLINE void cm_share_bring(struct cm_share *s, __u32 at, __u64 now, __u64 outstanding)
{
	struct cm_slot *slot = cm_slot(s, at);

	if (!outstanding)
		return;
	cm_charge(&s->m, now, outstanding);
	cm_set_outstanding(s, slot, now, slot->member.outstanding + outstanding, 1);
	cm_refresh(s, slot);
}

/* Sets a flow's weight, from its next turn on. */
CM_INLINE void cm_share_weigh(struct cm_share *s, __u32 at, __u32 weight)
{
	struct cm_slot *slot = cm_slot(s, at);

	if (slot->active)
		s->active += weight - slot->weight;
	slot->weight = weight;
}

/* Counts `nsent` bytes that a flow has sent; 0 declines a grant. */
CM_INLINE void cm_share_notify(struct cm_share *s, __u32 at, __u64 now, __u32 nsent)
{
	struct cm_slot *slot = cm_slot(s, at);
	__u64 outstanding = slot->member.outstanding;
	__u32 mtu = slot->mtu ? slot->mtu : 1;

	cm_consume(s, slot, (__u32)cm_max(((__u64)nsent + mtu - 1) / mtu, 1));
	if (nsent) {
		cm_charge(&s->m, now, nsent);
		cm_set_outstanding(s, slot, now, outstanding + nsent, !outstanding);
	}
	cm_refresh(s, slot);
}

CM_INLINE int cm_limited(const struct cm_share *s, __u32 mtu)
{
	__u64 used = cm_outstanding(&s->m) + s->reserved;

	return cm_slow_start(&s->m) ? 2 * used >= s->m.cwnd : used + mtu > s->m.cwnd;
}

CM_INLINE void cm_share_update(struct cm_share *s, __u32 at, __u64 now, __u64 nsent, __u64 nrecd,
			       enum cm_congestion congestion, __u64 rtt)
{
	struct cm_slot *slot = cm_slot(s, at);
	__u64 before = slot->member.outstanding;
	struct cm_report report = {
		.flow = slot->flow,
		.resolved = cm_min(nsent, before),
		.rtt = rtt,
		.congestion = congestion,
		.limited = (__u8)cm_limited(s, slot->mtu),
	};

	report.acked = cm_min(nrecd, report.resolved);
	cm_set_outstanding(s, slot, now, before - report.resolved, 1);
	cm_report(&s->m, now, &report);
	s->resolved += report.resolved;
	if (congestion != CM_NONE)
		s->lost += report.resolved - report.acked;
	if (s->resolved > CM_FATE * s->m.cwnd) {
		s->resolved /= 2;
		s->lost /= 2;
	}
	cm_refresh(s, slot);
}

/* Gives the next grant and returns index + 1 of its flow. Returns 0 if it gives none; `*later` is
 * then the time of the next grant, or 0 if unknown. `initial`: packets of a first window. */
CM_INLINE __u32 cm_share_settle(struct cm_share *s, __u64 now, __u32 initial, __u64 *later)
{
	__u32 at = s->head;
	struct cm_slot *slot;
	__u64 used = cm_outstanding(&s->m) + s->reserved;

	*later = 0;
	if (!at)
		return 0;
	slot = cm_slot(s, at - 1);
	if (!used) {
		cm_age(&s->m, now);
		if (s->m.srtt && now >= s->busy + s->m.srtt)
			cm_pace_begin(s, now, s->m.cwnd, s->m.srtt, (__u64)initial * slot->mtu);
	} else if (used + slot->mtu > s->m.cwnd) {
		return 0;
	}
	*later = cm_pace_wait(s, now);
	if (*later)
		return 0;
	slot->requests--;
	s->passed = slot->had;
	cm_dequeue(s, at - 1);
	if (slot->requests)
		cm_enqueue(s, at - 1, s->passed);
	if (s->pace_until)
		s->pace_next += cm_pace_time(s, slot->mtu);
	s->reserved += slot->mtu;
	s->busy = now;
	slot->grants++;
	slot->fresh++;
	cm_refresh(s, slot);
	return at;
}

/* How long a grant lives (manager/timers.rs). */
CM_INLINE __u64 cm_life(const struct cm_share *s, __u64 least)
{
	return cm_max(s->m.srtt, least);
}

CM_INLINE __u64 cm_patience(const struct cm_share *s, __u64 least)
{
	return cm_max(2 * cm_timeout(&s->m), least);
}

/* Handles the timeouts of one flow. `turned`: a clock tick has passed, so grants are one tick
 * older. */
CM_INLINE void cm_share_expire(struct cm_share *s, __u32 at, __u64 now, int turned, __u64 silence)
{
	struct cm_slot *slot = cm_slot(s, at);

	if (turned && slot->grants) {
		cm_consume(s, slot, slot->grants - slot->fresh);
		slot->fresh = 0;
		cm_refresh(s, slot);
	}
	if (slot->member.outstanding && now >= slot->heard + cm_patience(s, silence))
		cm_share_update(s, at, now, ~0ULL, 0, CM_PERSISTENT, 0);
}

/* Whether there is a status: it needs a round trip time. */
CM_INLINE int cm_share_query(struct cm_share *s, __u32 at, struct cm_status *status)
{
	struct cm_slot *slot = cm_slot(s, at);
	__u64 all = s->active + (slot->active ? 0 : slot->weight);

	if (!s->m.srtt)
		return 0;
	status->rate = cm_min(s->m.cwnd * 1000000000ULL / s->m.srtt, CM_MAX_RATE) * slot->weight / (all ? all : 1);
	status->rtt = s->m.srtt;
	status->deviation = s->m.rttvar;
	status->loss = s->lost * 1000000 / cm_max(s->resolved, 1);
	return 1;
}

CM_INLINE int cm_outside(__u64 told, __u64 now, __u32 down, __u32 up)
{
	/* told times a factor, whose product may have more than 64 bits: downwards rounded down, upwards up. */
	__u64 high = (told >> 16), low = told & 0xffff;

	if (now == told)
		return 0;
	if (now <= high * down + ((low * down) >> 16))
		return 1;
	return up != CM_NEVER && now >= high * up + ((low * up + 0xffff) >> 16);
}

/*
 * Whether to send the client an event of a change. It stays due until the client reads the status
 * (cm_share_told).
 */
CM_INLINE int cm_share_watch(struct cm_share *s, __u32 at)
{
	struct cm_slot *slot = cm_slot(s, at);
	struct cm_status status;

	if (!slot->watches || slot->due || !cm_share_query(s, at, &status))
		return 0;
	if (slot->told_rtt && !cm_outside(slot->told_rate, status.rate, slot->rate_down, slot->rate_up) &&
	    !cm_outside(slot->told_rtt, status.rtt, slot->rtt_down, slot->rtt_up))
		return 0;
	slot->due = 1;
	return 1;
}

CM_INLINE void cm_share_told(struct cm_slot *slot, const struct cm_status *status)
{
	slot->due = 0;
	slot->told_rate = status->rate;
	slot->told_rtt = status->rtt;
}

#endif

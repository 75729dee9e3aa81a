// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Exports the functions of share.h to share.rs, compiled for this machine. */
#include "share.h"

#define EXPORT(name) rivulet_test_share_##name

__u64 EXPORT(size)(void)
{
	return sizeof(struct cm_share);
}

void EXPORT(init)(struct cm_share *s, __u64 now, __u32 initial, __u32 limit, __u32 mtu)
{
	cm_init(&s->m, initial, limit, mtu);
	s->m.active = s->busy = now;
}

void EXPORT(open)(struct cm_share *s, __u32 at, __u64 now, __u64 flow, __u32 mtu)
{
	cm_share_open(s, at, now, flow, 1, mtu);
}

void EXPORT(close)(struct cm_share *s, __u32 at, __u64 now)
{
	cm_share_close(s, at, now);
}

void EXPORT(request)(struct cm_share *s, __u32 at, __u32 count)
{
	cm_share_request(s, at, count);
}

void EXPORT(weigh)(struct cm_share *s, __u32 at, __u32 weight)
{
	cm_share_weigh(s, at, weight);
}

void EXPORT(notify)(struct cm_share *s, __u32 at, __u64 now, __u32 nsent)
{
	cm_share_notify(s, at, now, nsent);
}

void EXPORT(update)(struct cm_share *s, __u32 at, __u64 now, const __u64 *v)
{
	cm_share_update(s, at, now, v[0], v[1], (enum cm_congestion)v[2], v[3]);
}

/* Returns the flow that is granted a packet; 0: none. */
__u64 EXPORT(settle)(struct cm_share *s, __u64 now, __u32 initial)
{
	__u64 later;
	__u32 at = cm_share_settle(s, now, initial, &later);

	return at ? cm_slot(s, at - 1)->flow : 0;
}

void EXPORT(expire)(struct cm_share *s, __u32 at, __u64 now, int turned, __u64 silence)
{
	cm_share_expire(s, at, now, turned, silence);
}

int EXPORT(query)(struct cm_share *s, __u32 at, __u64 now, struct cm_status *status)
{
	cm_age(&s->m, now);
	return cm_share_query(s, at, status);
}

void EXPORT(thresh)(struct cm_share *s, __u32 at, const __u32 *factors)
{
	struct cm_slot *slot = cm_slot(s, at);

	s->watching += !slot->watches;
	slot->watches = 1;
	slot->rate_down = factors[0];
	slot->rate_up = factors[1];
	slot->rtt_down = factors[2];
	slot->rtt_up = factors[3];
}

int EXPORT(watch)(struct cm_share *s, __u32 at)
{
	return cm_share_watch(s, at);
}

int EXPORT(due)(struct cm_share *s, __u32 at)
{
	return cm_slot(s, at)->due;
}

void EXPORT(reported)(struct cm_share *s, __u32 at, const struct cm_status *status)
{
	cm_share_told(cm_slot(s, at), status);
}

/* Stores the window, the outstanding bytes, the granted bytes, and grants and requests of a flow.
 */
void EXPORT(look)(const struct cm_share *s, __u32 at, __u64 *out)
{
	const struct cm_slot *slot = &s->slots[at];

	out[0] = s->m.cwnd;
	out[1] = cm_outstanding(&s->m);
	out[2] = s->reserved;
	out[3] = slot->grants;
	out[4] = slot->requests;
	out[5] = s->active;
}

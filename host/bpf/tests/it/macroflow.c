// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Exports the functions of macroflow.h to macroflow.rs, compiled for this machine. */
#include "macroflow.h"

#define EXPORT(name) rivulet_test_cm_##name

_Static_assert(sizeof(struct macroflow) == 160, "what macroflow.rs allocates");
_Static_assert(sizeof(struct member) == 24, "what macroflow.rs allocates");

void EXPORT(init)(struct macroflow *m, __u32 initial, __u32 limit, __u32 mtu)
{
	cm_init(m, initial, limit, mtu);
}

void EXPORT(set_mtu)(struct macroflow *m, __u32 mtu)
{
	cm_set_mtu(m, mtu);
}

void EXPORT(charge)(struct macroflow *m, __u64 now, __u64 bytes)
{
	cm_charge(m, now, bytes);
}

void EXPORT(age)(struct macroflow *m, __u64 now)
{
	cm_age(m, now);
}

void EXPORT(report)(struct macroflow *m, __u64 now, const __u64 *r)
{
	struct cm_report report = {
		.flow = r[0],
		.resolved = r[1],
		.acked = r[2],
		.rtt = r[3],
		.congestion = (enum cm_congestion)r[4],
		.limited = (__u8)r[5],
		.old = (__u8)r[6],
	};

	cm_report(m, now, &report);
}

void EXPORT(undo)(struct macroflow *m, __u64 reduction)
{
	cm_undo(m, reduction);
}

__u64 EXPORT(next_threshold)(const struct macroflow *m, int old)
{
	return cm_next_threshold(m, old);
}

void EXPORT(join)(struct macroflow *m, struct member *member, __u32 mss)
{
	cm_join(m, member, mss);
}

void EXPORT(leave)(struct macroflow *m, struct member *member)
{
	cm_leave(m, member);
}

void EXPORT(set)(struct macroflow *m, struct member *member, __u64 outstanding, int hungry)
{
	cm_set(m, member, outstanding, hungry);
}

__u64 EXPORT(part)(const struct macroflow *m, const struct member *member, __u64 window)
{
	return cm_part(m, member, window);
}

__u32 EXPORT(packets)(const struct macroflow *m, struct member *member, __u64 window, __u32 mss, int next)
{
	return cm_packets(m, member, window, mss, next);
}

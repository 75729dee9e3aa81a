/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The window of a macroflow and its parts: host/cm/src/controller/aimd.rs, rtt.rs and
 * host/cm/src/group.rs in C, line by line. The rules are explained there. A test compiles this file
 * natively and compares its numbers with those of the Rust code after each step.
 *
 * It uses integers only, has no loops and calls nothing, because it runs under a BPF spin lock.
 */
#ifndef MACROFLOW_H
#define MACROFLOW_H

#include <linux/types.h>

#define CM_INLINE static inline __attribute__((always_inline))
#define CM_LIKELY(condition) __builtin_expect(!!(condition), 1)

/* Constants of rules.rs: nanoseconds and bytes. */
#define CM_LEAST 2
#define CM_MAX_WINDOW (1ULL << 30)
#define CM_INITIAL_RTO 1000000000ULL
#define CM_MIN_RTO 200000000ULL
#define CM_MAX_RTO (60 * 1000000000ULL)
#define CM_MIN_STEP 1000000000ULL
#define CM_FORGET (600 * 1000000000ULL)
#define CM_MAX_STEPS 32
/* group.rs */
#define CM_SPREAD 0x9e3779b9ULL

/* enum Congestion */
enum cm_congestion { CM_NONE, CM_TRANSIENT, CM_PERSISTENT, CM_ECN };

struct macroflow {
	__u64 cwnd;
	__u64 ssthresh;
	__u64 credit;
	__u64 sent;
	__u64 reported;
	__u64 recover;
	__u64 reductions;
	__u64 prior_cwnd;
	__u64 prior_ssthresh;
	__u64 srtt;
	__u64 rttvar;
	__u64 active;
	__u64 arrived;
	__u64 arrived_by;
	__u64 arrived_other;
	/* State of the group (group.rs). */
	__u64 joined;
	__u64 aside;
	__u32 flows;
	__u32 hungry;
	/* Settings of the window's rules. */
	__u32 mtu;
	__u32 initial;
	__u32 limit;
	__u8 collapsed;
	__u8 silent;
	__u8 unused[2];
};

struct member {
	__u64 outstanding;
	__u64 carry;
	__u8 hungry;
};

struct cm_report {
	__u64 flow;
	__u64 resolved;
	__u64 acked;
	__u64 rtt;
	enum cm_congestion congestion;
	__u8 limited;
	__u8 old;
};

CM_INLINE __u64 cm_min(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

CM_INLINE __u64 cm_max(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

CM_INLINE void cm_set_mtu(struct macroflow *m, __u32 mtu)
{
	m->mtu = (__u32)cm_min(cm_max(mtu, 1), 65535);
}

CM_INLINE __u64 cm_initial(const struct macroflow *m)
{
	return cm_min(cm_max(m->initial, 1) * m->mtu, CM_MAX_WINDOW);
}

/* Initialises a macroflow. All of its bytes are zero before. */
CM_INLINE void cm_init(struct macroflow *m, __u32 initial, __u32 limit, __u32 mtu)
{
	m->initial = initial;
	m->limit = limit;
	cm_set_mtu(m, mtu);
	m->cwnd = cm_initial(m);
	m->ssthresh = CM_MAX_WINDOW;
}

CM_INLINE __u64 cm_outstanding(const struct macroflow *m)
{
	return m->sent - m->reported;
}

CM_INLINE int cm_recovering(const struct macroflow *m)
{
	return m->reported < m->recover;
}

CM_INLINE int cm_slow_start(const struct macroflow *m)
{
	return m->cwnd < m->ssthresh;
}

CM_INLINE void cm_sample(struct macroflow *m, __u64 rtt)
{
	rtt = cm_min(rtt, CM_MAX_RTO);
	if (!rtt)
		return;
	if (!m->srtt) {
		m->srtt = rtt;
		m->rttvar = rtt / 2;
		return;
	}
	m->rttvar = (3 * m->rttvar + (m->srtt > rtt ? m->srtt - rtt : rtt - m->srtt)) / 4;
	m->srtt = cm_max((7 * m->srtt + rtt) / 8, 1);
}

CM_INLINE __u64 cm_timeout(const struct macroflow *m)
{
	if (!m->srtt)
		return CM_INITIAL_RTO;
	return cm_min(cm_max(m->srtt + 4 * m->rttvar, CM_MIN_RTO), CM_MAX_RTO);
}

CM_INLINE __u64 cm_half(const struct macroflow *m)
{
	return cm_max(m->cwnd / 2, (__u64)CM_LEAST * m->mtu);
}

CM_INLINE __u64 cm_next_threshold(const struct macroflow *m, int old)
{
	return cm_recovering(m) || old ? cm_min(m->ssthresh, m->cwnd) : cm_half(m);
}

CM_INLINE void cm_reduce(struct macroflow *m)
{
	m->prior_cwnd = m->cwnd;
	m->prior_ssthresh = m->ssthresh;
	m->reductions++;
	m->ssthresh = cm_half(m);
	m->cwnd = cm_min(m->cwnd, m->ssthresh);
	m->recover = m->sent;
	m->collapsed = 0;
	m->credit = 0;
}

CM_INLINE void cm_collapse(struct macroflow *m, int recovering)
{
	if (!recovering && !m->silent)
		cm_reduce(m);
	m->cwnd = m->mtu;
	m->collapsed = 1;
	m->silent = 1;
	m->credit = 0;
}

CM_INLINE void cm_undo(struct macroflow *m, __u64 reduction)
{
	if (!reduction || reduction != m->reductions || !m->prior_cwnd)
		return;
	m->cwnd = cm_max(m->cwnd, m->prior_cwnd);
	m->ssthresh = cm_max(m->ssthresh, m->prior_ssthresh);
	m->recover = m->reported;
	m->prior_cwnd = 0;
	m->prior_ssthresh = 0;
	m->credit = 0;
}

CM_INLINE void cm_grow(struct macroflow *m, __u64 acked)
{
	if (m->cwnd < m->ssthresh) {
		m->cwnd = cm_min(m->cwnd + cm_min(acked, (__u64)m->limit * m->mtu), m->ssthresh);
		return;
	}
	m->credit += cm_min(acked, m->cwnd);
	if (m->credit >= m->cwnd) {
		m->credit -= m->cwnd;
		m->cwnd = cm_min(m->cwnd + m->mtu, CM_MAX_WINDOW);
	}
}

CM_INLINE void cm_forget(struct macroflow *m)
{
	m->cwnd = cm_initial(m);
	m->ssthresh = CM_MAX_WINDOW;
	m->credit = 0;
	m->recover = m->reported;
	m->prior_cwnd = 0;
	m->prior_ssthresh = 0;
	m->collapsed = 0;
	m->silent = 0;
	m->srtt = 0;
	m->rttvar = 0;
	m->arrived = 0;
	m->arrived_by = 0;
	m->arrived_other = 0;
}

CM_INLINE void cm_age(struct macroflow *m, __u64 now)
{
	__u64 idle = now > m->active ? now - m->active : 0;
	__u64 step, steps, first;

	if (CM_LIKELY(cm_outstanding(m) || !m->sent))
		return;
	if (idle >= CM_FORGET) {
		cm_forget(m);
		m->active = now;
		return;
	}
	step = cm_max(cm_timeout(m), CM_MIN_STEP);
	steps = cm_min(idle / step, CM_MAX_STEPS);
	if (!steps)
		return;
	m->active += steps * step;
	first = cm_initial(m);
	m->ssthresh = cm_max(m->ssthresh, m->cwnd / 4 * 3);
	m->ssthresh = m->ssthresh > CM_MAX_WINDOW >> steps ? CM_MAX_WINDOW : m->ssthresh << steps;
	if (m->cwnd > first)
		m->cwnd = cm_max(m->cwnd >> steps, first);
	else if (m->cwnd > first >> steps)
		m->cwnd = first;
	else
		m->cwnd <<= steps;
	m->credit = 0;
	m->prior_cwnd = 0;
	m->prior_ssthresh = 0;
}

/* Charges packets that are sent. The caller has aged the window before. */
CM_INLINE void cm_send(struct macroflow *m, __u64 now, __u64 bytes)
{
	m->sent += cm_min(bytes, 0xffffffffULL);
	m->active = now;
}

CM_INLINE void cm_charge(struct macroflow *m, __u64 now, __u64 bytes)
{
	cm_age(m, now);
	cm_send(m, now, bytes);
}

CM_INLINE void cm_note_arrival(struct macroflow *m, __u64 now, __u64 flow)
{
	if (m->arrived_by != flow) {
		m->arrived_other = m->arrived;
		m->arrived_by = flow;
	}
	m->arrived = now;
	m->silent = 0;
}

CM_INLINE void cm_report(struct macroflow *m, __u64 now, const struct cm_report *report)
{
	__u64 resolved = cm_min(report->resolved, cm_outstanding(m));
	__u64 acked = cm_min(report->acked, resolved);
	int recovering = cm_recovering(m) || report->old;

	cm_sample(m, report->rtt);
	m->reported += resolved;
	if (resolved)
		m->active = now;
	if (CM_LIKELY(report->congestion == CM_NONE)) {
		/* The report has neither a loss nor an ECN mark. */
	} else if (report->congestion == CM_PERSISTENT) {
		__u64 sibling = m->arrived_by == report->flow ? m->arrived_other : m->arrived;
		__u64 since = now > sibling ? now - sibling : 0;

		if (!sibling || since > cm_timeout(m))
			cm_collapse(m, recovering);
		else if (!recovering)
			cm_reduce(m);
	} else if (!recovering) {
		cm_reduce(m);
	}
	if (!acked)
		return;
	cm_note_arrival(m, now, report->flow);
	if ((!cm_recovering(m) || m->collapsed) && report->limited && report->congestion == CM_NONE)
		cm_grow(m, acked);
}

/* Adds a member. Its bytes are zero before, or those of a member that left. */
CM_INLINE void cm_join(struct macroflow *m, struct member *member, __u32 mss)
{
	__u64 turn = (m->joined * CM_SPREAD) & 0xffffffffULL;

	m->flows++;
	m->joined++;
	member->outstanding = 0;
	member->hungry = 0;
	member->carry = turn * mss >> 32;
}

CM_INLINE void cm_set(struct macroflow *m, struct member *member, __u64 outstanding, int hungry)
{
	if (member->hungry)
		m->hungry--;
	else
		m->aside -= member->outstanding;
	if (hungry)
		m->hungry++;
	else
		m->aside += outstanding;
	member->outstanding = outstanding;
	member->hungry = !!hungry;
}

CM_INLINE void cm_leave(struct macroflow *m, struct member *member)
{
	cm_set(m, member, 0, 0);
	if (m->flows)
		m->flows--;
}

CM_INLINE __u64 cm_part(const struct macroflow *m, const struct member *member, __u64 window)
{
	__u64 aside = m->aside;
	__u64 eaters = m->hungry;

	if (!member->hungry) {
		aside -= member->outstanding;
		eaters++;
	}
	/* Cannot happen. The check shows the verifier and the compiler that the divisor is not zero. */
	if (!eaters)
		eaters = 1;
	if (window <= aside)
		return 0;
	/* A single member is common, and divisions are slow. */
	return eaters == 1 ? window - aside : (window - aside) / eaters;
}

CM_INLINE __u32 cm_packets(const struct macroflow *m, struct member *member, __u64 window, __u32 mss, int next)
{
	__u64 part, packets;

	if (!mss)
		mss = 1;
	window -= window % mss;
	part = cm_part(m, member, window) + member->carry;
	packets = part / mss;
	if (next)
		member->carry = part - packets * mss;
	return (__u32)cm_min(cm_max(packets, 1), 0xffffffffULL);
}

#endif

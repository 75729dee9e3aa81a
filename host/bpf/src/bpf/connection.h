/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A connection of cm.c: what it keeps in its socket, and what it tells its macroflow. */
#ifndef CONNECTION_H
#define CONNECTION_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "cm.h"
#include "sockets.h"

/* Rounds in which the first window after a pause is paced: until the last of it is acknowledged. */
#define OPENING 2
/* Times a window that the macroflow is told of acknowledgements in avoidance. */
#define BATCHES 8

/* What a connection keeps: icsk_ca_priv. */
struct flow {
	/* Of the macroflow that it joined; 0: none. */
	__u64 generation;
	/* The reduction that it caused last. */
	__u64 reduction;
	/* tp->data_segs_out and tp->delivered of which the macroflow knows. */
	__u32 sent;
	__u32 delivered;
	/* tp->delivered from which on it tells again, whatever happens. */
	__u32 due;
	/* struct member */
	__u32 outstanding;
	__u32 carry;
	/* The macroflow's. */
	__u32 number;
	/* Its number in the macroflow. */
	__u32 id;
	/* snd_nxt when its round began. */
	__u32 round;
	/* Reductions that it knows of, and snd_nxt when it heard of the last one: what is lost before that is no other congestion. */
	__u32 known;
	__u32 recover;
	__u8 hungry;
	/* Rounds that are left of its opening. */
	__u8 opening;
	/* This program has it paced. */
	__u8 paces;
	__u8 unused;
};
_Static_assert(sizeof(struct flow) <= 104, "it is in icsk_ca_priv");

/* What a connection has to tell. All counts of packets are in full ones, as in TCP's own window. */
struct seen {
	__u64 now;
	__u64 charged;
	__u64 outstanding;
	struct cm_report report;
	__u32 mss;
	/* The window holds it back: in avoidance, and in slow start, where half of it used is enough. */
	__u8 limited;
	__u8 limited_slowly;
	__u8 hungry;
	/* A round trip of it has passed. */
	__u8 next;
	/* Packets in flight, and those that were charged and will be sent. */
	__u32 flying;
	__u32 ahead;
	/* Bytes that wait to be sent, the first time or again. */
	__u32 waiting;
	/* Packets that it may have at most in flight after this; 0: TCP asks nobody now. */
	__u32 most;
};

static __always_inline struct flow *flow_of(struct tcp_sock *tp)
{
	return (struct flow *)tp->inet_conn.icsk_ca_priv;
}

static __always_inline int before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

static __always_inline __u32 clamp(struct tcp_sock *tp, __u32 packets)
{
	return packets < tp->snd_cwnd_clamp ? packets : tp->snd_cwnd_clamp;
}

static __always_inline __u32 in_flight(const struct tcp_sock *tp)
{
	return tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
}

/*
 * Packets that may be in flight in fast recovery, of a window: no faster than in slow start (RFC 6937), and what is known to be
 * lost first goes at once.
 */
static __always_inline __u32 in_recovery(const struct tcp_sock *tp, __u32 window, __u32 acked)
{
	__u32 flying = in_flight(tp);

	if (window > flying + acked + 1)
		window = flying + acked + 1;
	return window <= flying && tp->lost_out && !tp->retrans_out ? flying + 1 : window;
}

/* What TCP makes of a window, for pacing and for how much it gives the device at once (tcp_update_pacing_rate). */
static __always_inline void set_rate(struct tcp_sock *tp)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u32 packets = tp->snd_cwnd > tp->packets_out ? tp->snd_cwnd : tp->packets_out;
	__u32 percent = tp->snd_cwnd < tp->snd_ssthresh / 2 ? 200 : 120;
	/* srtt_us is in eighths. */
	__u64 rate = (__u64)packets * tp->mss_cache * percent * (8 * 1000000 / 100);

	if (tp->srtt_us)
		rate /= tp->srtt_us;
	sk->sk_pacing_rate = rate < sk->sk_max_pacing_rate ? rate : sk->sk_max_pacing_rate;
}

/* What happened since the macroflow was told last; `goes_on`: what was charged and not sent yet will be. */
static __always_inline void look(struct tcp_sock *tp, struct seen *seen, int goes_on)
{
	struct flow *flow = flow_of(tp);
	__u32 mss = tp->mss_cache;
	__s32 sent = (__s32)(tp->data_segs_out - flow->sent);
	__u64 known;

	/* When the acknowledgement came or the timer fired that TCP is about. */
	seen->now = tp->tcp_clock_cache;
	seen->mss = mss;
	seen->flying = in_flight(tp);
	seen->waiting = tp->write_seq - tp->snd_nxt;
	if (tp->lost_out > tp->retrans_out)
		seen->waiting += (tp->lost_out - tp->retrans_out) * mss;
	seen->ahead = goes_on && sent < 0 ? (__u32)-sent : 0;
	/* A last one that is not full may wait for more. */
	if ((__u64)seen->ahead * mss > seen->waiting)
		seen->ahead = seen->waiting / mss;
	seen->outstanding = ((__u64)seen->flying + seen->ahead) * mss;
	seen->charged = sent > 0 ? (__u64)sent * mss : 0;
	known = flow->outstanding + seen->charged;
	if (seen->outstanding > known) {
		/* A packet was cut in two. */
		seen->charged += seen->outstanding - known;
		known = seen->outstanding;
	}
	seen->report.flow = flow->id;
	seen->report.resolved = known - seen->outstanding;
	seen->report.acked = (__u64)(tp->delivered - flow->delivered) * mss;
	/* That of the newest packet that arrived. */
	seen->report.rtt = seen->report.acked ? (__u64)tp->rack.rtt_us * 1000 : 0;
	seen->report.congestion = CM_NONE;
	seen->report.limited = 0;
	seen->report.old = 0;
	seen->limited = 0;
	seen->limited_slowly = 0;
	seen->most = 0;
	seen->hungry = seen->outstanding && flow->hungry;
	seen->next = !before(tp->snd_una, flow->round);
}

/*
 * Whether the macroflow need not hear of an acknowledgement yet: in avoidance it is told of an eighth of a window at once, which
 * changes nothing but when within its round trip a window grows. Whoever has it for itself, or is held back by it, has a part
 * that does not depend on what is in flight; what changes that is told at once.
 */
static __always_inline int quiet(struct tcp_sock *tp, __u8 state, int limited)
{
	struct flow *flow = flow_of(tp);

	if (state != TCP_CA_Open)
		return 0;
	if (tp->delivered == flow->delivered)
		return 1;
	return before(tp->delivered, flow->due) && before(tp->snd_una, flow->round) && flow->hungry == limited &&
	       tp->packets_out && !flow->opening;
}

/*
 * Tells it, and takes the connection's part of the window, packets; with `threshold` of what that will be after a loss.
 *
 * What it sends at once is charged at once: were it only known at its next acknowledgement, a group of small windows would have
 * a large part of what it sent unknown when one of them loses something, and be halved again for the same queue that was full.
 */
static __always_inline __u32 tell(struct tcp_sock *tp, struct cm_entry *e, struct seen *seen, int threshold)
{
	struct flow *flow = flow_of(tp);
	struct member member = {
		.outstanding = flow->outstanding,
		.carry = flow->carry,
		.hungry = flow->hungry,
	};
	__u32 packets, batch = 0, ahead = seen->ahead, more;
	__u64 before_it, reductions;
	int old;

	bpf_spin_lock(&e->lock);
	cm_age(&e->m, seen->now);
	if (seen->charged)
		cm_send(&e->m, seen->now, seen->charged);
	cm_set_mtu(&e->m, seen->mss);
	before_it = e->m.reductions;
	old = flow->known != (__u32)before_it || before(tp->snd_una, flow->recover);
	seen->report.old = (__u8)old;
	seen->report.limited = cm_slow_start(&e->m) ? seen->limited_slowly : seen->limited;
	cm_report(&e->m, seen->now, &seen->report);
	reductions = e->m.reductions;
	packets = cm_packets(&e->m, &member, threshold ? cm_next_threshold(&e->m, old) : e->m.cwnd, seen->mss,
			     seen->next);
	if (seen->most) {
		if (packets > seen->most)
			packets = seen->most;
		if (!cm_slow_start(&e->m) && !cm_recovering(&e->m) && (seen->hungry || e->m.flows == 1))
			batch = packets / BATCHES;
		more = packets + batch;
		more = more > seen->flying ? more - seen->flying : 0;
		if ((__u64)more * seen->mss > seen->waiting)
			more = seen->waiting / seen->mss;
		if (more > ahead) {
			cm_send(&e->m, seen->now, (__u64)(more - ahead) * seen->mss);
			ahead = more;
		}
	}
	cm_set(&e->m, &member, ((__u64)seen->flying + ahead) * seen->mss, seen->hungry);
	bpf_spin_unlock(&e->lock);

	flow->sent = tp->data_segs_out + ahead;
	flow->delivered = tp->delivered;
	flow->due = tp->delivered + batch;
	flow->outstanding = (__u32)member.outstanding;
	flow->carry = (__u32)member.carry;
	flow->hungry = member.hungry;
	if (reductions != before_it)
		flow->reduction = reductions;
	if (flow->known != (__u32)reductions) {
		flow->known = (__u32)reductions;
		flow->recover = tp->snd_nxt;
	} else if (!old) {
		/* So that it stays near. */
		flow->recover = tp->snd_una;
	}
	if (seen->next) {
		flow->round = tp->snd_nxt;
		if (flow->opening)
			flow->opening--;
	}
	if (!flow->opening && flow->paces) {
		flow->paces = 0;
		tp->inet_conn.icsk_inet.sk.sk_pacing_status = SK_PACING_NONE;
	}
	return packets;
}

#endif

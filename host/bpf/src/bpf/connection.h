/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A TCP connection of cm.c: its state in the socket, and its reports to the macroflow. */
#ifndef CONNECTION_H
#define CONNECTION_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "cm.h"
#include "sockets.h"

/* Round trips over which the first window after a pause is paced: until all of it is acknowledged.
 */
#define OPENING 2
/* In congestion avoidance a connection reports acknowledgements this often in each window. */
#define BATCHES 8

/* State of a connection in icsk_ca_priv. */
struct flow {
	/* Generation of the macroflow that the connection joined; 0: none. */
	__u64 generation;
	/* Number of the last reduction that this connection caused. */
	__u64 reduction;
	/* tp->data_segs_out and tp->delivered at the last report. */
	__u32 sent;
	__u32 delivered;
	/* tp->delivered at which the next report is due in any case. */
	__u32 due;
	/* Bytes that the connection has charged to the macroflow, as in struct member. */
	__u32 outstanding;
	__u32 carry;
	/* Number of the macroflow. */
	__u32 number;
	/* Number of the connection within its macroflow. */
	__u32 id;
	/* snd_nxt when the connection's current round trip began. */
	__u32 round;
	/* Number of reductions of the macroflow that this connection has applied, and snd_nxt at the last
	 * one: losses before that sequence number belong to the same congestion. */
	__u32 known;
	__u32 recover;
	__u8 hungry;
	/* Round trips left of the paced first window after a pause. */
	__u8 opening;
	/* Whether this program turned on pacing. */
	__u8 paces;
	__u8 unused;
};
_Static_assert(sizeof(struct flow) <= 104, "it is in icsk_ca_priv");

/* A connection's report to the macroflow. Packets count as full-sized, as in TCP's window. */
struct seen {
	__u64 now;
	__u64 charged;
	__u64 outstanding;
	struct cm_report report;
	__u32 mss;
	/* Whether the window limited the connection: in congestion avoidance, and in slow start, where it
	 * is enough to use half of the window. */
	__u8 limited;
	__u8 limited_slowly;
	__u8 hungry;
	/* Whether a round trip of the connection has passed since the last report. */
	__u8 next;
	/* Packets in flight, including charged ones that are not sent yet. */
	__u32 flying;
	__u32 ahead;
	/* Bytes waiting for transmission or retransmission. */
	__u32 waiting;
	/* Most packets in flight after this report; 0: TCP decides by itself from now on. */
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

/* Packets of a window that may be in flight in fast recovery: as in slow start at most (RFC 6937),
 * and the first lost packet is retransmitted at once. */
static __always_inline __u32 in_recovery(const struct tcp_sock *tp, __u32 window, __u32 acked)
{
	__u32 flying = in_flight(tp);

	if (window > flying + acked + 1)
		window = flying + acked + 1;
	return window <= flying && tp->lost_out && !tp->retrans_out ? flying + 1 : window;
}

/*
 * Sets the pacing rate from the window, as tcp_update_pacing_rate does; it also bounds the size of
 * bursts to the device.
 */
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

/* Collects the events since the last report. `goes_on`: charged packets will still be sent. */
static __always_inline void look(struct tcp_sock *tp, struct seen *seen, int goes_on)
{
	struct flow *flow = flow_of(tp);
	__u32 mss = tp->mss_cache;
	__s32 sent = (__s32)(tp->data_segs_out - flow->sent);
	__u64 known;

	/* Time of the acknowledgement or timer that TCP is handling. */
	seen->now = tp->tcp_clock_cache;
	seen->mss = mss;
	seen->flying = in_flight(tp);
	seen->waiting = tp->write_seq - tp->snd_nxt;
	if (tp->lost_out > tp->retrans_out)
		seen->waiting += (tp->lost_out - tp->retrans_out) * mss;
	seen->ahead = goes_on && sent < 0 ? (__u32)-sent : 0;
	/* TCP may keep back the last packet while it is not full, to wait for more data. */
	if ((__u64)seen->ahead * mss > seen->waiting)
		seen->ahead = seen->waiting / mss;
	seen->outstanding = ((__u64)seen->flying + seen->ahead) * mss;
	seen->charged = sent > 0 ? (__u64)sent * mss : 0;
	known = flow->outstanding + seen->charged;
	if (seen->outstanding > known) {
		/* TCP cut a packet in two, so more packets are outstanding. */
		seen->charged += seen->outstanding - known;
		known = seen->outstanding;
	}
	seen->report.flow = flow->id;
	seen->report.resolved = known - seen->outstanding;
	seen->report.acked = (__u64)(tp->delivered - flow->delivered) * mss;
	/* Round trip time of the newest packet that arrived. */
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

/* Whether a report of an acknowledgement can wait. In congestion avoidance one report covers an
 * eighth of a window; that only shifts the growth of the window within a round trip. If the
 * connection is alone in the macroflow, or limited by its part, its part does not depend on the
 * packets in flight. Changes of that are reported at once. */
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

/* Reports to the macroflow and returns the connection's part of the window, in packets; with
 * `threshold`, the part after a loss. Packets that the connection will send in answer to this
 * acknowledgement are charged now. If they were charged at the next one, a group of small windows
 * would have many uncharged packets when one of them loses a packet, and the window would be halved
 * twice for one full queue. */
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
		/* Keeps the number within half of the sequence range of the newest one, so that it compares as
		 * older. */
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

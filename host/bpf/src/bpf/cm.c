// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The Congestion Manager's TCP: a congestion control whose connections to one destination have one window
 * (docs/congestion-manager.md).
 *
 * A socket is only ever written by its own acknowledgements and transmissions, so nobody is granted anything: each connection
 * tells the macroflow what became of its packets, and takes its part of the window. Recovery, retransmission timers and pacing
 * stay TCP's own. A connection for which there is no macroflow, since the table is full, is Reno's.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "cm.h"
#include "packet.h"
#include "sockets.h"

#define CLOCK_MONOTONIC 1
/* RFC 6928: what any connection may send at once. */
#define TCP_INIT_CWND 10
/* Rounds in which the first window after a pause is paced: until the last of it is acknowledged. */
#define OPENING 2

/* What a connection keeps: icsk_ca_priv. */
struct flow {
	struct cm_key key;
	/* Of the macroflow that it joined; 0: none. */
	__u64 generation;
	/* The reduction that it caused last. */
	__u64 reduction;
	/* tp->data_segs_out and tp->delivered of which the macroflow knows. */
	__u32 sent;
	__u32 delivered;
	/* struct member */
	__u32 outstanding;
	__u32 carry;
	/* Its number in the macroflow. */
	__u32 id;
	/* snd_nxt when its round began. */
	__u32 round;
	/* The newest round trip time, us; 0: none since it was reported. */
	__u32 rtt;
	__u8 hungry;
	/* Rounds that are left of its opening. */
	__u8 opening;
	/* This program has it paced. */
	__u8 paces;
	__u8 unused;
};
_Static_assert(sizeof(struct flow) <= 104, "it is in icsk_ca_priv");

/* The loader's choice: rules.rs. Whole acknowledgements count in slow start: TCP has checked them, and hosts merge segments. */
const volatile __u32 initial_window = 10;
const volatile __u32 slow_start_limit = 65535;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_MACROFLOWS);
	__type(key, struct cm_key);
	__type(value, struct cm_entry);
} macroflows SEC(".maps");

/* What a new macroflow is copied from: zeros, too many for the stack. */
struct blank {
	__u64 zeros[sizeof(struct cm_entry) / 8];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct blank);
} blank SEC(".maps");

extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

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
	/* Packets that it may have at most in flight after this, and that wait to be sent; 0: TCP asks nobody now. */
	__u32 most;
	__u32 waiting;
};

static __always_inline struct flow *flow_of(struct tcp_sock *tp)
{
	return (struct flow *)tp->inet_conn.icsk_ca_priv;
}

static __always_inline int before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

static __always_inline __u32 in_flight(const struct tcp_sock *tp)
{
	return tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
}

static __always_inline struct cm_entry *find(struct tcp_sock *tp)
{
	struct flow *flow = flow_of(tp);
	struct cm_key key = flow->key;
	struct cm_entry *e;

	if (!flow->generation)
		return 0;
	e = bpf_map_lookup_elem(&macroflows, &key);
	/* One of the same destination that was made since is another one. */
	return e && e->generation == flow->generation ? e : 0;
}

static int forget(void *map, struct cm_key *key, struct cm_entry *e)
{
	__u64 now = bpf_ktime_get_ns();
	int gone;

	bpf_spin_lock(&e->lock);
	gone = !e->m.flows && now - e->m.active >= CM_FORGET;
	if (gone)
		e->generation = 0;
	bpf_spin_unlock(&e->lock);
	if (gone)
		bpf_map_delete_elem(map, key);
	else
		bpf_timer_start(&e->timer, CM_FORGET, 0);
	return 0;
}

static __always_inline void set_key(struct tcp_sock *tp, struct cm_key *key)
{
	struct inet_sock *inet = &tp->inet_conn.icsk_inet;
	struct sock_common *common = &inet->sk.__sk_common;

	key->netns = common->skc_net.net->net_cookie;
	if (common->skc_family == AF_INET6) {
		copy_address(key->destination, &common->skc_v6_daddr);
		key->dscp = inet->pinet6 ? inet->pinet6->tclass >> 2 : 0;
	} else {
		map_address(key->destination, common->skc_daddr);
		key->dscp = inet->tos >> 2;
	}
}

/* A connection joins the macroflow of its destination, with what it has outstanding. */
static __always_inline void join(struct tcp_sock *tp)
{
	struct flow *flow = flow_of(tp);
	struct cm_key key = {};
	struct member member = {};
	__u32 zero = 0, mss = tp->mss_cache, sent = tp->data_segs_out, delivered = tp->delivered;
	__u64 now = bpf_ktime_get_ns(), bytes = (__u64)in_flight(tp) * mss, generation;
	struct cm_entry *e;
	struct blank *new;
	__u32 id;

	set_key(tp, &key);
	flow->key = key;
	flow->generation = 0;
	flow->paces = 0;
	e = bpf_map_lookup_elem(&macroflows, &key);
	if (!e) {
		new = bpf_map_lookup_elem(&blank, &zero);
		if (!new)
			return;
		bpf_map_update_elem(&macroflows, &key, new, BPF_NOEXIST);
		e = bpf_map_lookup_elem(&macroflows, &key);
		if (!e)
			return;
		/* Whoever comes second finds it done. */
		if (!bpf_timer_init(&e->timer, &macroflows, CLOCK_MONOTONIC)) {
			bpf_timer_set_callback(&e->timer, forget);
			bpf_timer_start(&e->timer, CM_FORGET, 0);
		}
	}
	bpf_spin_lock(&e->lock);
	if (!e->generation) {
		cm_init(&e->m, initial_window, slow_start_limit, mss);
		e->m.active = now;
		e->generation = now;
	}
	cm_age(&e->m, now);
	cm_join(&e->m, &member, mss);
	if (bytes)
		cm_charge(&e->m, now, bytes);
	cm_set(&e->m, &member, bytes, bytes > 0);
	generation = e->generation;
	id = (__u32)e->m.joined;
	bpf_spin_unlock(&e->lock);
	flow->generation = generation;
	flow->reduction = 0;
	flow->sent = sent;
	flow->delivered = delivered;
	flow->outstanding = (__u32)bytes;
	flow->carry = (__u32)member.carry;
	flow->hungry = member.hungry;
	flow->id = id;
	flow->round = tp->snd_nxt;
}

/* What happened since the macroflow was told last. */
static __always_inline void look(struct tcp_sock *tp, struct seen *seen)
{
	struct flow *flow = flow_of(tp);
	__u32 mss = tp->mss_cache;
	__s32 sent = (__s32)(tp->data_segs_out - flow->sent);
	__u64 known;

	seen->now = bpf_ktime_get_ns();
	seen->mss = mss;
	seen->outstanding = (__u64)in_flight(tp) * mss;
	/* What was charged when a pause ended may not be counted yet. */
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
	seen->report.rtt = (__u64)flow->rtt * 1000;
	seen->report.congestion = CM_NONE;
	seen->report.limited = 0;
	seen->limited = 0;
	seen->limited_slowly = 0;
	seen->most = 0;
	seen->waiting = 0;
	seen->hungry = seen->outstanding && flow->hungry;
	seen->next = !before(tp->snd_una, flow->round);
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
	__u32 packets, ahead = 0, flying = (__u32)seen->outstanding / (seen->mss ? seen->mss : 1);
	__u64 before_it, reductions;

	bpf_spin_lock(&e->lock);
	if (seen->charged)
		cm_charge(&e->m, seen->now, seen->charged);
	cm_set_mtu(&e->m, seen->mss);
	before_it = e->m.reductions;
	seen->report.limited = cm_slow_start(&e->m) ? seen->limited_slowly : seen->limited;
	cm_report(&e->m, seen->now, &seen->report);
	reductions = e->m.reductions;
	cm_set(&e->m, &member, seen->outstanding, seen->hungry);
	packets = cm_packets(&e->m, &member, threshold ? cm_next_threshold(&e->m) : e->m.cwnd, seen->mss,
			     seen->next);
	if (seen->most) {
		if (packets > seen->most)
			packets = seen->most;
		ahead = packets > flying ? packets - flying : 0;
		if (ahead > seen->waiting)
			ahead = seen->waiting;
		cm_charge(&e->m, seen->now, (__u64)ahead * seen->mss);
		cm_set(&e->m, &member, seen->outstanding + (__u64)ahead * seen->mss, seen->hungry);
	}
	bpf_spin_unlock(&e->lock);

	flow->sent = tp->data_segs_out + ahead;
	flow->delivered = tp->delivered;
	flow->outstanding = (__u32)member.outstanding;
	flow->carry = (__u32)member.carry;
	flow->hungry = member.hungry;
	flow->rtt = 0;
	if (reductions != before_it)
		flow->reduction = reductions;
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

static __always_inline __u32 clamp(struct tcp_sock *tp, __u32 packets)
{
	return packets < tp->snd_cwnd_clamp ? packets : tp->snd_cwnd_clamp;
}

SEC("struct_ops")
void cm_tcp_init(unsigned long long *ctx)
{
	join((struct tcp_sock *)ctx[0]);
}

SEC("struct_ops")
void cm_tcp_release(unsigned long long *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct flow *flow = flow_of(tp);
	struct member member = {
		.outstanding = flow->outstanding,
		.carry = flow->carry,
		.hungry = flow->hungry,
	};
	struct cm_report report = { .flow = flow->id, .resolved = flow->outstanding };
	struct cm_entry *e = find(tp);
	__u64 now = bpf_ktime_get_ns();

	if (!e)
		return;
	bpf_spin_lock(&e->lock);
	cm_report(&e->m, now, &report);
	cm_leave(&e->m, &member);
	bpf_spin_unlock(&e->lock);
	flow->generation = 0;
}

/* An acknowledgement outside of recovery. */
SEC("struct_ops")
void cm_tcp_cong_avoid(unsigned long long *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	__u32 acked = (__u32)ctx[2];
	struct cm_entry *e = find(tp);
	struct seen seen;

	if (!e) {
		if (!flow_of(tp)->generation) {
			tcp_reno_cong_avoid((struct sock *)ctx[0], (__u32)ctx[1], acked);
			return;
		}
		join(tp);
		e = find(tp);
		if (!e)
			return;
	}
	look(tp, &seen);
	seen.limited = BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited);
	seen.limited_slowly = seen.limited || tp->snd_cwnd < 2 * tp->max_packets_out;
	/* One that has nothing more to send leaves its part to the others. */
	seen.hungry = seen.outstanding || tp->write_seq != tp->snd_nxt;
	seen.hungry = seen.hungry && (seen.limited || flow_of(tp)->opening);
	/* No faster than in slow start, whoever left. */
	seen.most = clamp(tp, tp->snd_cwnd + acked);
	/* A last one that is not full may wait for more. */
	seen.waiting = (tp->write_seq - tp->snd_nxt) / (seen.mss ? seen.mss : 1);
	tp->snd_cwnd = tell(tp, e, &seen, 0);
}

/* Every acknowledgement, before what follows from it. In recovery TCP asks nobody, but others want to know. */
SEC("struct_ops")
void cm_tcp_pkts_acked(unsigned long long *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct ack_sample *sample = (struct ack_sample *)ctx[1];
	__u8 state = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	struct cm_entry *e;
	struct seen seen;

	if (sample->rtt_us > 0)
		flow_of(tp)->rtt = (__u32)sample->rtt_us;
	if (state != TCP_CA_CWR && state != TCP_CA_Recovery)
		return;
	e = find(tp);
	if (!e)
		return;
	look(tp, &seen);
	/* Recovery's own window holds it back; whether the macroflow's may grow that knows. */
	seen.limited = seen.limited_slowly = 1;
	tell(tp, e, &seen, 0);
}

/* What the window will be once set_state has told that something was lost. */
SEC("struct_ops")
__u32 cm_tcp_ssthresh(unsigned long long *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct cm_entry *e = find(tp);
	struct seen seen;

	if (!e)
		return tcp_reno_ssthresh((struct sock *)ctx[0]);
	look(tp, &seen);
	return tell(tp, e, &seen, 1);
}

SEC("struct_ops")
void cm_tcp_set_state(unsigned long long *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	__u8 state = (__u8)ctx[1];
	struct cm_entry *e;
	struct seen seen;

	if (state != TCP_CA_CWR && state != TCP_CA_Recovery && state != TCP_CA_Loss)
		return;
	e = find(tp);
	if (!e)
		return;
	look(tp, &seen);
	seen.report.congestion = state == TCP_CA_CWR ? CM_ECN : state == TCP_CA_Recovery ? CM_TRANSIENT : CM_PERSISTENT;
	tell(tp, e, &seen, 0);
}

/* A pause ends: what the connection may send is what the others left, over a round trip. */
SEC("struct_ops")
void cm_tcp_cwnd_event(unsigned long long *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct flow *flow = flow_of(tp);
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u32 mss = tp->mss_cache, packets;
	struct cm_entry *e;
	struct member member;
	__u64 now = bpf_ktime_get_ns(), srtt, first;

	if ((__u32)ctx[1] != CA_EVENT_TX_START)
		return;
	e = find(tp);
	if (!e) {
		if (!flow->generation)
			return;
		join(tp);
		e = find(tp);
		if (!e)
			return;
	}
	member.outstanding = flow->outstanding;
	member.carry = flow->carry;
	member.hungry = flow->hungry;
	/* The packet that is being sent, unless it was charged when the last one was acknowledged: nothing ages any more. */
	first = before(tp->data_segs_out, flow->sent) ? 0 : mss;
	bpf_spin_lock(&e->lock);
	cm_charge(&e->m, now, first);
	cm_set(&e->m, &member, member.outstanding + first, 1);
	packets = cm_packets(&e->m, &member, e->m.cwnd, mss, 0);
	srtt = e->m.srtt;
	bpf_spin_unlock(&e->lock);
	flow->outstanding = (__u32)member.outstanding;
	flow->hungry = 1;
	if (first)
		flow->sent = tp->data_segs_out + 1;
	flow->round = tp->snd_nxt;
	flow->opening = OPENING;
	/* After a timeout nothing is in flight either: that is no pause. */
	if (BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state) != TCP_CA_Open && packets > tp->snd_cwnd)
		packets = tp->snd_cwnd;
	tp->snd_cwnd = clamp(tp, packets);
	if (packets > TCP_INIT_CWND && srtt && sk->sk_pacing_status == SK_PACING_NONE) {
		sk->sk_pacing_rate = (__u64)packets * mss * 1000000000ULL / srtt;
		sk->sk_pacing_status = SK_PACING_NEEDED;
		flow->paces = 1;
	}
}

/* Nothing was lost after all. */
SEC("struct_ops")
__u32 cm_tcp_undo_cwnd(unsigned long long *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct cm_entry *e = find(tp);
	struct seen seen;
	__u32 packets;
	__u64 reduction = flow_of(tp)->reduction;

	if (!e)
		return tcp_reno_undo_cwnd((struct sock *)ctx[0]);
	look(tp, &seen);
	bpf_spin_lock(&e->lock);
	cm_undo(&e->m, reduction);
	bpf_spin_unlock(&e->lock);
	packets = tell(tp, e, &seen, 0);
	return packets > tp->snd_cwnd ? packets : tp->snd_cwnd;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops cm = {
	.name = "cm",
	.init = cm_tcp_init,
	.release = cm_tcp_release,
	.ssthresh = cm_tcp_ssthresh,
	.cong_avoid = cm_tcp_cong_avoid,
	.set_state = cm_tcp_set_state,
	.cwnd_event = cm_tcp_cwnd_event,
	.pkts_acked = cm_tcp_pkts_acked,
	.undo_cwnd = cm_tcp_undo_cwnd,
	.flags = TCP_CONG_NON_RESTRICTED,
};

char _license[] SEC("license") = "Dual BSD/GPL";

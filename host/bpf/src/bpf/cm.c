// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The Congestion Manager's TCP: a congestion control in which connections to one destination share
 * a window (docs/congestion-manager.md). A socket can only be changed while it handles its own
 * acknowledgements and transmissions, so there are no grants: each connection reports the fate of
 * its packets to the macroflow and takes its part of the window. Recovery, retransmission timers
 * and pacing stay TCP's. Without a macroflow, because the table is full, a connection uses Reno.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "cm.h"
#include "connection.h"
#include "packet.h"

#define CLOCK_MONOTONIC 1
/* Initial window of RFC 6928. */
#define TCP_INIT_CWND 10
/* Attempts to change the pool of free numbers while other processors change it. */
#define TRIES 32

/*
 * Set by the loader from rules.rs. Slow start counts all acknowledged packets: TCP has verified
 * them, and hosts merge segments.
 */
const volatile __u32 initial_window = 10;
const volatile __u32 slow_start_limit = 65535;

/*
 * Macroflows by number: a connection finds its macroflow at each acknowledgement without a call,
 * because array lookups are inlined. The number of a destination is looked up only for a new
 * connection.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_MACROFLOWS);
	__type(key, __u32);
	__type(value, struct cm_entry);
} macroflows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_MACROFLOWS);
	__type(key, struct cm_key);
	__type(value, __u32);
} destinations SEC(".maps");

/* The pool of free macroflow numbers. */
struct pool {
	/* Head of the free list, + 1; the upper half counts changes. */
	__u64 free;
	/* Numbers from here on were never used. */
	__u32 used;
	__u32 unused;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pool);
} pools SEC(".maps");

extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

static __always_inline struct cm_entry *find(struct tcp_sock *tp)
{
	struct flow *flow = flow_of(tp);
	__u32 number = flow->number;
	struct cm_entry *e;

	if (!flow->generation)
		return 0;
	e = bpf_map_lookup_elem(&macroflows, &number);
	/* Another generation is a later macroflow under the same number. */
	return e && e->generation == flow->generation ? e : 0;
}

/* Takes a free number. Returns it + 1, or 0 if there is none. */
static __always_inline __u32 take_number(void)
{
	__u32 zero = 0, number;
	struct pool *pool = bpf_map_lookup_elem(&pools, &zero);
	struct cm_entry *e;
	__u64 free;

	if (!pool)
		return 0;
	for (int i = 0; i < TRIES; i++) {
		free = *(volatile __u64 *)&pool->free;
		if (!(__u32)free)
			break;
		number = (__u32)free - 1;
		e = bpf_map_lookup_elem(&macroflows, &number);
		if (!e)
			return 0;
		if (__sync_val_compare_and_swap(&pool->free, free, ((free >> 32) + 1) << 32 | e->next) == free)
			return number + 1;
	}
	number = pool->used;
	if (!bpf_map_lookup_elem(&macroflows, &number))
		return 0;
	return __sync_fetch_and_add(&pool->used, 1) + 1;
}

static __always_inline void give_number(struct cm_entry *e, __u32 number)
{
	__u32 zero = 0;
	struct pool *pool = bpf_map_lookup_elem(&pools, &zero);
	__u64 free;

	if (!pool)
		return;
	for (int i = 0; i < TRIES; i++) {
		free = *(volatile __u64 *)&pool->free;
		e->next = (__u32)free;
		if (__sync_val_compare_and_swap(&pool->free, free, ((free >> 32) + 1) << 32 | (number + 1)) == free)
			return;
	}
}

/* Deletes a macroflow that had no connections for `idle` ns. Returns whether it did. */
static __always_inline int end(struct cm_entry *e, __u32 number, __u64 now, __u64 idle)
{
	struct cm_key key = {};
	int gone;

	bpf_spin_lock(&e->lock);
	gone = e->generation && !e->m.flows && now - e->m.active >= idle;
	if (gone) {
		key = e->key;
		e->generation = 0;
	}
	bpf_spin_unlock(&e->lock);
	if (!gone)
		return 0;
	bpf_map_delete_elem(&destinations, &key);
	give_number(e, number);
	return 1;
}

static int forget(void *map __attribute__((unused)), __u32 *number, struct cm_entry *e)
{
	if (!end(e, *number, bpf_ktime_get_ns(), CM_FORGET) && e->generation)
		bpf_timer_start(&e->timer, CM_FORGET, 0);
	return 0;
}

static long forget_one(void *map __attribute__((unused)), struct cm_key *key __attribute__((unused)), __u32 *at, __u32 *count)
{
	__u32 number = *at;
	struct cm_entry *e = bpf_map_lookup_elem(&macroflows, &number);

	if (e)
		*count += end(e, number, ~0ULL, 0);
	return 0;
}

/*
 * Called by an administrator: deletes all macroflows without connections and returns their number.
 */
SEC("syscall")
int cm_tcp_forget(void *context __attribute__((unused)))
{
	__u32 count = 0;

	bpf_for_each_map_elem(&destinations, forget_one, &count, 0);
	return (int)count;
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

static __always_inline int same(const struct cm_key *a, const struct cm_key *b)
{
	return a->netns == b->netns && a->destination[0] == b->destination[0] &&
	       a->destination[1] == b->destination[1] && a->destination[2] == b->destination[2] &&
	       a->destination[3] == b->destination[3] && a->dscp == b->dscp && a->class == b->class;
}

/* Creates the macroflow of a destination. Does nothing if another call has created it meanwhile or
 * if there is no room. */
static __noinline void make(struct cm_key *key, __u32 mss, __u64 now)
{
	__u32 number = take_number();
	struct cm_entry *e;
	long failed;

	if (!key || !number)
		return;
	number--;
	e = bpf_map_lookup_elem(&macroflows, &number);
	if (!e)
		return;
	bpf_spin_lock(&e->lock);
	__builtin_memset(&e->m, 0, sizeof(e->m));
	cm_init(&e->m, initial_window, slow_start_limit, mss);
	e->m.active = now;
	e->key = *key;
	e->generation = now;
	bpf_spin_unlock(&e->lock);
	/*
	 * The timer exists already if another destination had the number before. From Linux 6.18 on
	 * its allocation can fail; without a timer the macroflow would never expire.
	 */
	failed = bpf_timer_init(&e->timer, &macroflows, CLOCK_MONOTONIC);
	if (!failed || failed == -EBUSY)
		failed = bpf_map_update_elem(&destinations, key, &number, BPF_NOEXIST);
	if (failed) {
		e->generation = 0;
		give_number(e, number);
		return;
	}
	bpf_timer_set_callback(&e->timer, forget);
	bpf_timer_start(&e->timer, CM_FORGET, 0);
}

/* Adds a connection, with its outstanding bytes, to the macroflow of its destination. */
static __noinline void join(struct tcp_sock *tp)
{
	struct flow *flow = flow_of(tp);
	struct cm_key key = {};
	struct member member = {};
	__u32 mss = tp->mss_cache, sent = tp->data_segs_out, number, id, *known;
	__u64 now = bpf_ktime_get_ns(), bytes = (__u64)in_flight(tp) * mss, generation, reductions;
	struct cm_entry *e;

	set_key(tp, &key);
	flow->generation = 0;
	flow->delivered = flow->due = tp->delivered;
	flow->paces = 0;
	known = bpf_map_lookup_elem(&destinations, &key);
	if (!known) {
		make(&key, mss, now);
		known = bpf_map_lookup_elem(&destinations, &key);
		if (!known)
			return;
	}
	number = *known;
	e = bpf_map_lookup_elem(&macroflows, &number);
	if (!e)
		return;
	bpf_spin_lock(&e->lock);
	generation = e->generation;
	if (!generation || !same(&e->key, &key)) {
		/* The macroflow is being deleted. */
		bpf_spin_unlock(&e->lock);
		return;
	}
	cm_age(&e->m, now);
	cm_join(&e->m, &member, mss);
	if (bytes)
		cm_charge(&e->m, now, bytes);
	cm_set(&e->m, &member, bytes, bytes > 0);
	id = (__u32)e->m.joined;
	reductions = e->m.reductions;
	bpf_spin_unlock(&e->lock);
	flow->number = number;
	flow->generation = generation;
	flow->reduction = 0;
	flow->sent = sent;
	flow->outstanding = (__u32)bytes;
	flow->carry = (__u32)member.carry;
	flow->hungry = member.hungry;
	flow->id = id;
	flow->round = tp->snd_nxt;
	flow->known = (__u32)reductions;
	flow->recover = tp->snd_una;
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

/* Runs Reno for a connection without a macroflow. */
static __noinline void alone(struct tcp_sock *tp, int reducing)
{
	struct flow *flow = flow_of(tp);
	__u32 acked = tp->delivered - flow->delivered;

	flow->delivered = flow->due = tp->delivered;
	if (reducing)
		tp->snd_cwnd = in_recovery(tp, tp->snd_ssthresh, acked);
	else if (acked)
		tcp_reno_cong_avoid(&tp->inet_conn.icsk_inet.sk, tp->snd_una, acked);
}

/* Called for every acknowledgement, after TCP has updated delivered and lost packets. */
SEC("struct_ops")
void cm_tcp_cong_control(unsigned long long *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	__u8 state = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	int limited = BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited);
	int reducing = state == TCP_CA_CWR || state == TCP_CA_Recovery;
	struct cm_entry *e;
	struct seen seen;
	__u32 acked, packets;

	if (quiet(tp, state, limited))
		return;
	e = find(tp);
	if (!e && flow_of(tp)->generation) {
		join(tp);
		e = find(tp);
	}
	if (!e) {
		alone(tp, reducing);
		set_rate(tp);
		return;
	}
	acked = tp->delivered - flow_of(tp)->delivered;
	look(tp, &seen, 1);
	if (reducing) {
		/*
		 * Limited by recovery's window; the macroflow decides whether its window may grow.
		 */
		seen.limited = seen.limited_slowly = 1;
		seen.most = in_recovery(tp, ~0U, acked);
	} else {
		seen.limited = limited;
		seen.limited_slowly = limited || tp->snd_cwnd < 2 * tp->max_packets_out;
		/* A connection without data to send leaves its part of the window to the others. */
		seen.hungry = seen.outstanding || tp->write_seq != tp->snd_nxt;
		seen.hungry = seen.hungry && (limited || flow_of(tp)->opening);
		/* The window grows at most as fast as in slow start, even if other connections left. */
		seen.most = clamp(tp, tp->snd_cwnd + acked);
	}
	packets = tell(tp, e, &seen, 0);
	tp->snd_cwnd = reducing ? in_recovery(tp, packets, acked) : packets;
	set_rate(tp);
}

/* Returns the connection's window after set_state has reported a loss. */
SEC("struct_ops")
__u32 cm_tcp_ssthresh(unsigned long long *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct cm_entry *e = find(tp);
	struct seen seen;

	if (!e)
		return tcp_reno_ssthresh((struct sock *)ctx[0]);
	look(tp, &seen, 0);
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
	look(tp, &seen, 0);
	seen.report.congestion = state == TCP_CA_CWR ? CM_ECN : state == TCP_CA_Recovery ? CM_TRANSIENT : CM_PERSISTENT;
	tell(tp, e, &seen, 0);
}

/* After a pause, the connection may send the part of the window that the others left, paced over a
 * round trip. */
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
	/* The size of the packet being sent; 0 if it was charged at the last acknowledgement. */
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
	/* After a retransmission timeout nothing is in flight either, but the connection was not paused.
	 */
	if (BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state) != TCP_CA_Open && packets > tp->snd_cwnd)
		packets = tp->snd_cwnd;
	tp->snd_cwnd = clamp(tp, packets);
	if (packets > TCP_INIT_CWND && srtt && sk->sk_pacing_status == SK_PACING_NONE) {
		sk->sk_pacing_rate = (__u64)packets * mss * 1000000000ULL / srtt;
		sk->sk_pacing_status = SK_PACING_NEEDED;
		flow->paces = 1;
	}
}

/* TCP found that a reduction was spurious: nothing was lost. */
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
	look(tp, &seen, 0);
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
	.set_state = cm_tcp_set_state,
	.cwnd_event = cm_tcp_cwnd_event,
	.cong_control = cm_tcp_cong_control,
	.undo_cwnd = cm_tcp_undo_cwnd,
	.flags = TCP_CONG_NON_RESTRICTED,
};

char _license[] SEC("license") = "Dual BSD/GPL";

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The Congestion Manager's calls for users' programs (docs/congestion-manager.md). A process that
 * received the descriptors of `cm_open`, `cm_call` and `cm_calls` runs them by BPF_PROG_RUN,
 * without privileges. Flows belong to users; flows of one user to one destination form a macroflow,
 * apart from other users'. Packets are counted when they leave (`cm_egress`), and grants are
 * written into the client's ring. State is in maps, and each macroflow has a timer, so no process
 * has to run.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "calls.h"
#include "calls_move.h"
#include "calls_shares.h"
#include "calls_time.h"
#include "cm.h"
#include "packet.h"
#include "share.h"
#include "task.h"

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
/* Attempts to count a datagram while its flow is being moved to another macroflow. */
#define TRIES 4

/* The effective uid: new sockets get it, and a Unix socket reports it as its peer's. */
static __always_inline __u32 caller(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return task->cred->euid.val;
}

static __always_inline __u64 netns_cookie(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return task->nsproxy->net_ns->net_cookie;
}

/* Copies the tuple, because after a move a map entry that was looked up earlier may belong to
 * another flow. */
static __noinline int delete_flow(__u64 number)
{
	struct cm_flow *flow = bpf_map_lookup_elem(&flows, &number);
	struct cm_tuple tuple;

	if (!flow)
		return -ENOENT;
	tuple = flow->tuple;
	bpf_map_delete_elem(&tuples, &tuple);
	return (int)bpf_map_delete_elem(&flows, &number);
}

/*
 * Closes a flow. Map entries may be reused after a deletion, so the flow's number is compared with
 * its slot; of two concurrent closes, one finds it. -EAGAIN: the flow moved since it was looked up.
 * Not static, so that the verifier walks it once for each program.
 */
__noinline int cm_close_flow(__u64 number)
{
	struct cm_flow *flow = bpf_map_lookup_elem(&flows, &number);
	__u64 now = bpf_ktime_get_ns(), forget = ~0ULL;
	__u32 requests, many, at, account, id;
	struct cm_client *client;
	struct cm_shared *e;
	struct cm_user *user;

	if (!flow)
		return -ENOENT;
	at = flow->place.slot;
	account = flow->place.account;
	id = flow->client;
	e = find(&flow->place);
	if (!e)
		return -EAGAIN;
	user = bpf_map_lookup_elem(&users, &account);
	client = bpf_map_lookup_elem(&clients, &id);
	many = !user || user->shares > flows_a_user || flow->place.key.apart;
	bpf_spin_lock(&e->lock);
	if (cm_slot(&e->s, at)->flow != number) {
		bpf_spin_unlock(&e->lock);
		return -EAGAIN;
	}
	requests = cm_slot(&e->s, at)->requests;
	cm_share_close(&e->s, at, now);
	if (!e->s.m.flows) {
		/*
		 * No history is kept beyond the quota, nor for a separate macroflow, which no new
		 * flow joins.
		 */
		e->forget = now + (many ? 0 : CM_FORGET);
		forget = e->forget;
	}
	bpf_spin_unlock(&e->lock);
	delete_flow(number);
	if (client) {
		__sync_fetch_and_add(&client->waiting, -requests);
		less(&client->flows);
	}
	if (user)
		less(&user->flows);
	settle(e, now, forget, 0);
	return 0;
}

static __always_inline int open_flow(struct cm_opening *o, __u32 uid, __u64 netns, __u64 *number)
{
	__u32 zero = 0, at;
	struct cm_client *client = bpf_map_lookup_elem(&clients, &o->client);
	__u32 account = client ? client->account : 0;
	struct cm_user *user = bpf_map_lookup_elem(&users, &account);
	__u64 now = bpf_ktime_get_ns(), *count = bpf_map_lookup_elem(&numbers, &zero);
	struct cm_flow flow = {};
	struct cm_shared *e;
	int result = -ENOMEM, fresh;

	if (!client || client->uid != uid || !user || !count)
		return -ENOENT;
	if (!o->mtu || o->mtu > 65535 || o->dscp > 63 || o->protocol != IPPROTO_UDP)
		return -EINVAL;
	if (__sync_fetch_and_add(&user->flows, 1) >= flows_a_user) {
		less(&user->flows);
		return -EMFILE;
	}
	__sync_fetch_and_add(&client->flows, 1);
	flow.uid = uid;
	flow.client = o->client;
	flow.place.account = account;
	flow.tuple.netns = flow.place.key.of.netns = netns;
	flow.tuple.class = flow.place.key.of.class = uid + 1;
	flow.tuple.protocol = o->protocol;
	flow.tuple.source_port = o->source_port;
	flow.tuple.destination_port = o->destination_port;
	for (int i = 0; i < 4; i++) {
		flow.tuple.source[i] = o->source[i];
		flow.tuple.destination[i] = flow.place.key.of.destination[i] = o->destination[i];
	}
	flow.place.key.of.dscp = o->dscp;
	flow.place.flow = *number = __sync_fetch_and_add(count, 1) + 1;

	e = make(&flow.place.key, user, account, &result);
	if (!e)
		goto fail;
	bpf_spin_lock(&e->lock);
	if (e->gone) {
		/* The macroflow is being deleted. */
		bpf_spin_unlock(&e->lock);
		result = -EAGAIN;
		goto fail;
	}
	fresh = !e->generation;
	if (fresh)
		begin(e, *number, now, o->mtu);
	at = take_slot(e);
	if (at < CM_SLOTS)
		cm_share_open(&e->s, at, now, *number, o->client, o->mtu);
	flow.place.generation = e->generation;
	bpf_spin_unlock(&e->lock);
	if (fresh)
		bpf_map_update_elem(&numbered, number, &flow.place.key, BPF_ANY);
	flow.place.slot = at;
	if (at >= CM_SLOTS) {
		result = -ENOSPC;
		goto fail;
	}
	result = (int)bpf_map_update_elem(&flows, number, &flow, BPF_NOEXIST);
	if (!result) {
		result = (int)bpf_map_update_elem(&tuples, &flow.tuple, &flow.place, BPF_NOEXIST);
		/* When a client exits, the daemon closes its flows. A flow that the daemon could not see yet is
		 * closed here. */
		if (!result)
			return bpf_map_lookup_elem(&clients, &o->client) ? 0 : cm_close_flow(*number) ?: -ENOENT;
		bpf_map_delete_elem(&flows, number);
	}
	bpf_spin_lock(&e->lock);
	cm_share_close(&e->s, at, now);
	if (!e->s.m.flows)
		e->forget = now;
	bpf_spin_unlock(&e->lock);
	arm(e, now, now);
fail:
	less(&client->flows);
	less(&user->flows);
	return result;
}

SEC("syscall")
int cm_open(struct cm_opening *context)
{
	struct cm_opening opening = *context;
	__u64 number = 0;

	context->result = open_flow(&opening, caller(), netns_cookie(), &number);
	context->flow = number;
	return 0;
}

/* The daemon opens a flow for a client that may not use bpf(2). */
SEC("syscall")
int cm_open_for(struct cm_opening_for *context)
{
	struct cm_opening opening = context->opening;
	__u64 number = 0;

	context->opening.result = open_flow(&opening, context->uid, context->netns, &number);
	context->opening.flow = number;
	return 0;
}

static __always_inline int check_request(struct cm_client *client, __u32 id, __u64 count)
{
	void *ring = bpf_map_lookup_elem(&rings, &id);
	__u64 room, used;

	if (!ring || count > MOST_REQUESTS)
		return -EAGAIN;
	/*
	 * Every request becomes an event. The ring has room for them, for unread events, and for
	 * one change of each flow.
	 */
	room = bpf_ringbuf_query(ring, BPF_RB_RING_SIZE);
	used = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) + client->flows * CM_EVENT_ROOM;
	if (used + (client->waiting + count) * CM_EVENT_ROOM > room)
		return -EAGAIN;
	__sync_fetch_and_add(&client->waiting, (__u32)count);
	return 0;
}

/* Applies one operation of a user's program. */
__noinline int cm_apply(struct cm_op *op, __u32 uid)
{
	__u64 now = bpf_ktime_get_ns(), number, next = ~0ULL;
	struct cm_status status = {};
	struct cm_client *client = 0;
	struct cm_flow *flow;
	struct cm_shared *e;
	struct cm_slot *slot;
	__u32 kind, id, at;
	int result = 0, watch = 0;

	if (!op)
		return -EINVAL;
	kind = op->op;
	if (kind == CM_OP_NONE)
		return 0;
	number = op->flow;
	flow = bpf_map_lookup_elem(&flows, &number);
	if (!flow || flow->uid != uid)
		return -ENOENT;
	if (kind == CM_OP_CLOSE)
		return cm_close_flow(number);
	if (kind == CM_OP_MOVE)
		return move_flow(number, &op->v[0]);
	at = flow->place.slot;
	id = flow->client;
	e = find(&flow->place);
	if (!e)
		return -ENOENT;
	if (kind == CM_OP_REQUEST) {
		client = bpf_map_lookup_elem(&clients, &id);
		if (!client)
			return -ENOENT;
		result = check_request(client, id, op->v[0]);
		if (result)
			return result;
	}
	bpf_spin_lock(&e->lock);
	slot = cm_slot(&e->s, at);
	if (slot->flow != number) {
		result = -ENOENT;
	} else if (kind == CM_OP_REQUEST) {
		if (slot->requests + op->v[0] > MOST_REQUESTS)
			result = -EAGAIN;
		else
			cm_share_request(&e->s, at, (__u32)op->v[0]);
	} else if (kind == CM_OP_NOTIFY) {
		if (!op->v[0])
			cm_share_notify(&e->s, at, now, 0);
	} else if (kind == CM_OP_UPDATE) {
		if (op->v[2] > CM_ECN) {
			result = -EINVAL;
		} else {
			cm_share_update(&e->s, at, now, op->v[0], op->v[1], (enum cm_congestion)op->v[2],
					op->v[3]);
			watch = e->s.watching > 0;
		}
	} else if (kind == CM_OP_QUERY || kind == CM_OP_TAKE) {
		cm_age(&e->s.m, now);
		if (!cm_share_query(&e->s, at, &status))
			result = -EAGAIN;
		else if (kind == CM_OP_TAKE)
			cm_share_told(slot, &status);
	} else if (kind == CM_OP_MTU) {
		status.rate = slot->mtu;
	} else if (kind == CM_OP_MACROFLOW) {
		status.rate = e->generation;
	} else if (kind == CM_OP_WATCH) {
		if (op->v[0] && !slot->watches)
			e->s.watching++;
		else if (!op->v[0] && slot->watches)
			e->s.watching--;
		slot->watches = !!op->v[0];
		slot->due = 0;
		slot->told_rate = slot->told_rtt = 0;
		watch = slot->watches;
	} else if (kind == CM_OP_THRESH) {
		if (op->v[0] > CM_ONE || op->v[1] < CM_ONE || op->v[1] > CM_NEVER || op->v[2] > CM_ONE ||
		    op->v[3] < CM_ONE || op->v[3] > CM_NEVER) {
			result = -EINVAL;
		} else {
			slot->rate_down = (__u32)op->v[0];
			slot->rate_up = (__u32)op->v[1];
			slot->rtt_down = (__u32)op->v[2];
			slot->rtt_up = (__u32)op->v[3];
		}
	} else if (kind == CM_OP_WEIGH) {
		if (!op->v[0] || op->v[0] > CM_MAX_WEIGHT)
			result = -EINVAL;
		else
			cm_share_weigh(&e->s, at, (__u32)op->v[0]);
	} else if (kind == CM_OP_SET_MTU) {
		if (!op->v[0] || op->v[0] > 65535) {
			result = -EINVAL;
		} else {
			e->s.reserved += slot->grants * op->v[0] - (__u64)slot->grants * slot->mtu;
			slot->mtu = (__u32)op->v[0];
			cm_set_mtu(&e->s.m, slot->mtu);
		}
	} else {
		result = -EINVAL;
	}
	if (slot->flow == number)
		next = unheard(e, at, now);
	next = any(e, next);
	watch = (int)any(e, (__u64)watch);
	bpf_spin_unlock(&e->lock);
	if (client && result)
		__sync_fetch_and_add(&client->waiting, -(__u32)op->v[0]);
	if (kind == CM_OP_QUERY || kind == CM_OP_TAKE || kind == CM_OP_MTU || kind == CM_OP_MACROFLOW) {
		op->v[0] = status.rate;
		op->v[1] = status.rtt;
		op->v[2] = status.deviation;
		op->v[3] = status.loss;
		return result;
	}
	settle(e, now, next, watch);
	return result;
}

/* Applies one operation of the arguments, which a program may access at constant offsets only.
 * Returns whether there was an operation. */
#define APPLY(context, uid)                                                                                                    \
	({                                                                                                                     \
		struct cm_op op = *(context);                                                                                  \
		if (op.op != CM_OP_NONE) {                                                                                     \
			(context)->result = cm_apply(&op, uid);                                                                \
			(context)->v[0] = op.v[0];                                                                             \
			(context)->v[1] = op.v[1];                                                                             \
			(context)->v[2] = op.v[2];                                                                             \
			(context)->v[3] = op.v[3];                                                                             \
		}                                                                                                              \
		op.op != CM_OP_NONE;                                                                                           \
	})

SEC("syscall")
int cm_call(struct cm_op *context)
{
	APPLY(context, caller());
	return 0;
}

SEC("syscall")
int cm_calls(struct cm_bulk *context)
{
	__u32 uid = caller();

#pragma unroll
	for (int i = 0; i < CM_BULK; i++)
		if (!APPLY(&context->ops[i], uid))
			return 0;
	return 0;
}

/* The daemon applies operations for a client. */
SEC("syscall")
int cm_calls_for(struct cm_bulk_for *context)
{
	__u32 uid = context->uid;

#pragma unroll
	for (int i = 0; i < CM_BULK; i++)
		if (!APPLY(&context->bulk.ops[i], uid))
			return 0;
	return 0;
}

/* The daemon closes a flow of a client that has exited. */
SEC("syscall")
int cm_evict(struct cm_eviction *context)
{
	__u64 number = context->flow;
	struct cm_flow *flow = bpf_map_lookup_elem(&flows, &number);

	context->result = flow && flow->client == context->client ? cm_close_flow(number) : -ENOENT;
	return 0;
}

/* Counts a datagram that leaves, and uses up a grant. Returns false if the flow moved since it was
 * looked up. */
__noinline int cm_count(struct cm_tuple *tuple, __u32 octets)
{
	struct cm_place *known = tuple ? bpf_map_lookup_elem(&tuples, tuple) : 0, place;
	__u64 now, next = ~0ULL;
	struct cm_shared *e;
	int there;

	if (!known)
		return 1;
	place = *known;
	e = find(&place);
	if (!e)
		return 0;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&e->lock);
	there = cm_slot(&e->s, place.slot)->flow == place.flow;
	if (there) {
		/* An empty datagram uses up the grant like any other: 0 would decline it. */
		cm_share_notify(&e->s, place.slot, now, octets ? octets : 1);
		next = unheard(e, place.slot, now);
		next = any(e, next);
	}
	bpf_spin_unlock(&e->lock);
	if (there)
		settle(e, now, next, 0);
	return there;
}

SEC("cgroup_skb/egress")
int cm_egress(struct __sk_buff *skb)
{
	struct cm_tuple tuple = { .protocol = IPPROTO_UDP };
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	struct sock *sk = kernel->sk;
	/* The difference of the two offsets includes IP options and extension headers. */
	__u32 header = kernel->transport_header - kernel->network_header;
	struct ipv6hdr six;
	struct udphdr udp;
	struct iphdr four;

	if (!sk || sk->sk_protocol != IPPROTO_UDP)
		return 1;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, 0, &four, sizeof(four)))
			return 1;
		map_address(tuple.source, four.saddr);
		map_address(tuple.destination, four.daddr);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, 0, &six, sizeof(six)))
			return 1;
		copy_address(tuple.source, &six.saddr);
		copy_address(tuple.destination, &six.daddr);
	} else {
		return 1;
	}
	if (bpf_skb_load_bytes(skb, header, &udp, sizeof(udp)) || skb->len < header + sizeof(udp))
		return 1;
	tuple.source_port = udp.source;
	tuple.destination_port = udp.dest;
	tuple.netns = sk->__sk_common.skc_net.net->net_cookie;
	tuple.class = sk->sk_uid.val + 1;
	/* A datagram that the kernel segments (GSO) counts as one. */
	for (int i = 0; i < TRIES; i++)
		if (cm_count(&tuple, skb->len - header - sizeof(udp)))
			break;
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Finds protected connections that the kernel closes because their process is exiting: killed,
 * crashed or finished. If the server closes a connection itself, it does so before its process
 * exits. The FIN or RST looks the same in both cases and may leave much later (docs/trods.md). */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flows.h"
#include "packet.h"
#include "trods.h"

/* linux/sched.h */
#define PF_EXITING 0x4
#define AF_INET 2
#define AF_INET6 10
/* net/tcp_states.h */
#define TCP_ESTABLISHED 1
#define TCP_CLOSE 7
#define TCP_CLOSE_WAIT 8

/* The fields of kernel types that are read; BTF relocates them. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct task_struct {
	unsigned int flags;
};
struct ns_common {
	unsigned int inum;
};
struct net {
	struct ns_common ns;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	unsigned short skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};
typedef struct {
	int owned;
} socket_lock_t;
struct sock {
	struct sock_common __sk_common;
	socket_lock_t sk_lock;
	void *sk_socket;
};
struct inet_sock {
	__be16 inet_sport;
};
#pragma clang attribute pop

/* Inode number of the connections' network namespace. */
volatile __u32 namespace SEC(".data.namespace");

SEC("tp_btf/inet_sock_set_state")
int trods_dying(unsigned long long *context)
{
	const struct sock *sk = (const struct sock *)context[0];
	const struct sock_common *common = &sk->__sk_common;
	int before = context[1], after = context[2];
	struct task_struct *task = bpf_get_current_task_btf();
	struct flow_key key = {};
	__u8 one = 1;

	if (before != TCP_ESTABLISHED && before != TCP_CLOSE_WAIT)
		return 0;
	if (!(task->flags & PF_EXITING) || common->skc_net.net->ns.inum != namespace)
		return 0;
	/*
	 * Softirqs run on top of any task, also of one that exits, but that task does not own the
	 * socket lock. A task that closes a listener does not own the lock of a connection that was
	 * not accepted, either; such a connection belongs to no process.
	 */
	if (!sk->sk_lock.owned && (after != TCP_CLOSE || sk->sk_socket))
		return 0;
	if (common->skc_family == AF_INET) {
		map_address(key.client, common->skc_daddr);
		map_address(key.service, common->skc_rcv_saddr);
	} else if (common->skc_family == AF_INET6) {
		copy_address(key.client, &common->skc_v6_daddr);
		copy_address(key.service, &common->skc_v6_rcv_saddr);
	} else {
		return 0;
	}
	key.client_port = common->skc_dport;
	/*
	 * The kernel has already released the port of a connection that is closed at once, as with
	 * unread data.
	 */
	if (bpf_probe_read_kernel(&key.service_port, sizeof(key.service_port), &((const struct inet_sock *)sk)->inet_sport))
		return 0;
	struct stamped *st = bpf_map_lookup_elem(&stamped, &key);
	if (st ? limits_of(&key, st) : bpf_map_lookup_elem(&flows, &key)) {
		happens(HAPPENED_DEATH);
		bpf_map_update_elem(&dying, &key, &one, BPF_ANY);
	}
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Owner and network namespace of a packet, and readers that wait at a ring: the kernel types that
 * calls.c uses.
 */
#ifndef TASK_H
#define TASK_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* BTF relocates the fields. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct net {
	__u64 net_cookie;
};
struct nsproxy {
	struct net *net_ns;
};
typedef struct {
	__u32 val;
} kuid_t;
struct cred {
	kuid_t euid;
};
struct task_struct {
	const struct cred *cred;
	struct nsproxy *nsproxy;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct sock_common {
	possible_net_t skc_net;
};
struct sock {
	struct sock_common __sk_common;
	kuid_t sk_uid;
	__u16 sk_protocol;
};
struct sk_buff {
	struct sock *sk;
	__u16 transport_header;
	__u16 network_header;
};
struct list_head {
	struct list_head *next;
};
struct wait_queue_head {
	struct list_head head;
};
struct bpf_ringbuf {
	struct wait_queue_head waitq;
};
struct bpf_ringbuf_map {
	struct bpf_ringbuf *rb;
};
#pragma clang attribute pop

extern void *bpf_cast_to_kern_ctx(void *context) __ksym;

#endif

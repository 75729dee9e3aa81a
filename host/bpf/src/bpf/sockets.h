/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The kernel's TCP sockets and its interface of congestion controls, as much of them as cm.c uses. */
#ifndef SOCKETS_H
#define SOCKETS_H

#include <linux/in6.h>
#include <linux/types.h>

#define AF_INET6 10
/* net/sock.h */
#define SK_PACING_NONE 0
#define SK_PACING_NEEDED 1
/* net/tcp.h, linux/tcp.h */
#define TCP_CONG_NON_RESTRICTED 1
enum tcp_ca_state { TCP_CA_Open, TCP_CA_Disorder, TCP_CA_CWR, TCP_CA_Recovery, TCP_CA_Loss };
#define CA_EVENT_TX_START 0

/* The used fields of kernel types; BTF relocates them. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct net {
	__u64 net_cookie;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct sock_common {
	__be32 skc_daddr;
	unsigned short skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
};
struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	__u32 sk_pacing_status;
};
struct ipv6_pinfo {
	__u8 tclass;
};
struct inet_sock {
	struct sock sk;
	struct ipv6_pinfo *pinet6;
	__u8 tos;
};
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	__u8 icsk_ca_state : 5;
	__u64 icsk_ca_priv[13];
};
struct tcp_rack {
	__u32 rtt_us;
};
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 mss_cache;
	__u32 snd_cwnd;
	__u32 snd_ssthresh;
	__u32 srtt_us;
	__u32 snd_cwnd_clamp;
	__u32 packets_out;
	__u32 retrans_out;
	__u32 sacked_out;
	__u32 lost_out;
	__u32 max_packets_out;
	__u32 delivered;
	__u32 data_segs_out;
	__u64 tcp_clock_cache;
	struct tcp_rack rack;
	__u8 is_cwnd_limited : 1;
};
#pragma clang attribute pop

/* libbpf fits it into the kernel's own by names. A program has its arguments in an array. */
struct tcp_congestion_ops {
	/* First: the loader writes it. */
	char name[16];
	void (*init)(unsigned long long *);
	void (*release)(unsigned long long *);
	__u32 (*ssthresh)(unsigned long long *);
	void (*cong_control)(unsigned long long *);
	void (*set_state)(unsigned long long *);
	void (*cwnd_event)(unsigned long long *);
	__u32 (*undo_cwnd)(unsigned long long *);
	__u32 flags;
};

#endif

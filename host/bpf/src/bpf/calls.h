/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The interface between users' programs and the Congestion Manager: arguments of the programs of
 * calls.c, and entries of a client's ring. host/libcm/src/abi.rs and host/bpf/src/cm/calls.rs
 * mirror it.
 */
#ifndef CALLS_H
#define CALLS_H

#include <linux/types.h>

/* Most operations of one bulk call. */
#define CM_BULK 64

enum cm_operation {
	/* Marks an unused entry of a bulk call. */
	CM_OP_NONE,
	CM_OP_CLOSE,
	/* out[0]: payload bytes of the largest packet. */
	CM_OP_MTU,
	/* in[0]: number of requests. */
	CM_OP_REQUEST,
	/*
	 * in[0]: bytes; 0 declines a grant. Other sizes have no effect, because packets are counted
	 * when they leave.
	 */
	CM_OP_NOTIFY,
	/*
	 * in: bytes whose fate is known, bytes that arrived, enum cm_congestion, round trip time in
	 * ns or 0.
	 */
	CM_OP_UPDATE,
	/* out: struct cm_status. */
	CM_OP_QUERY,
	/* Like CM_OP_QUERY; in addition, the client gets an event at the next change. */
	CM_OP_TAKE,
	/* in[0]: whether the client gets an event at each change. */
	CM_OP_WATCH,
	/* in: factors of the rate down and up, and of the round trip time down and up, that cause an
	 * event; multiples of 1/65536. */
	CM_OP_THRESH,
	/* in[0]: bytes. */
	CM_OP_SET_MTU,
	/* in[0]: 1 to CM_MAX_WEIGHT. */
	CM_OP_WEIGH,
	/* out[0]: the number of the flow's macroflow. */
	CM_OP_MACROFLOW,
	/* in[0]: number of the new macroflow; 0: create a separate one. out: its number, and how many
	 * requests the client must repeat. */
	CM_OP_MOVE,
};

struct cm_op {
	__u64 flow;
	__u32 op;
	/* 0, or a negative error number. */
	__s32 result;
	__u64 v[4];
};

struct cm_bulk {
	struct cm_op ops[CM_BULK];
};

/*
 * Addresses as 128 bits, IPv4 mapped into IPv6; ports in network byte order. The source is that of
 * the packets on the wire.
 */
struct cm_opening {
	__u32 client;
	__s32 result;
	/* The number of the new flow. */
	__u64 flow;
	__u32 source[4];
	__u32 destination[4];
	__u16 source_port;
	__u16 destination_port;
	__u8 protocol;
	__u8 dscp;
	__u16 unused;
	/* Payload bytes of the flow's largest packets. */
	__u32 mtu;
	__u32 unused_too;
};

/* A bulk call that the daemon makes for a client. */
struct cm_bulk_for {
	__u32 uid;
	__u32 unused;
	struct cm_bulk bulk;
};

struct cm_opening_for {
	__u32 uid;
	__u32 unused;
	/* Cookie of the clients' network namespace. */
	__u64 netns;
	struct cm_opening opening;
};

/* Names a client that has exited, and one of its flows. */
struct cm_eviction {
	__u64 flow;
	__u32 client;
	__s32 result;
};

enum cm_event_kind {
	/* A packet of up to an MTU may be sent. */
	CM_EVENT_SEND,
	/* A value passed a threshold. */
	CM_EVENT_UPDATE,
};

struct cm_event {
	__u64 flow;
	__u32 kind;
	__u32 unused;
};

/* Bytes of an event in the ring. */
#define CM_EVENT_ROOM (8 + sizeof(struct cm_event))

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What programs of users and the Congestion Manager say to each other: the arguments of the programs of calls.c, and what is in
 * a client's ring. host/libcm/src/abi.rs and host/bpf/src/cm/calls.rs have the same.
 */
#ifndef CALLS_H
#define CALLS_H

#include <linux/types.h>

/* Operations of a bulk call. */
#define CM_BULK 64

enum cm_operation {
	/* Of an entry of a bulk call that is not used. */
	CM_OP_NONE,
	CM_OP_CLOSE,
	/* out[0]: octets of payload of the largest packet. */
	CM_OP_MTU,
	/* in[0]: how many. */
	CM_OP_REQUEST,
	/* in[0]: octets; 0 declines a grant. More are known already: they were counted when they left. */
	CM_OP_NOTIFY,
	/* in: octets of which is known what became of them, octets that arrived, enum cm_congestion, round trip time in ns or 0. */
	CM_OP_UPDATE,
	/* out: struct cm_status. */
	CM_OP_QUERY,
	/* The same, and the client is told again when that changed. */
	CM_OP_TAKE,
	/* in[0]: whether it is told of changes. */
	CM_OP_WATCH,
	/* in: rate down, up, round trip time down, up; multiples of 1/65536. */
	CM_OP_THRESH,
	/* in[0]: octets. */
	CM_OP_SET_MTU,
	/* in[0]: 1 to CM_MAX_WEIGHT. */
	CM_OP_WEIGH,
	/* out[0]: the number of its macroflow. */
	CM_OP_MACROFLOW,
	/* in[0]: the number of the macroflow into which it goes; 0: one of its own. out: its number; requests that are to be made again. */
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

/* Addresses as 128 bits, IPv4 mapped into IPv6; ports in network byte order. The source is what packets really have. */
struct cm_opening {
	__u32 client;
	__s32 result;
	/* Of the new flow. */
	__u64 flow;
	__u32 source[4];
	__u32 destination[4];
	__u16 source_port;
	__u16 destination_port;
	__u8 protocol;
	__u8 dscp;
	__u16 unused;
	/* Octets of payload of its largest packets. */
	__u32 mtu;
	__u32 unused_too;
};

/* The same for others: the door's. */
struct cm_bulk_for {
	__u32 uid;
	__u32 unused;
	struct cm_bulk bulk;
};

struct cm_opening_for {
	__u32 uid;
	__u32 unused;
	/* Cookie of their network namespace. */
	__u64 netns;
	struct cm_opening opening;
};

/* A client that is gone. */
struct cm_eviction {
	__u64 flow;
	__u32 client;
	__s32 result;
};

enum cm_event_kind {
	/* A packet of up to an MTU may be sent. */
	CM_EVENT_SEND,
	/* Something changed by a threshold. */
	CM_EVENT_UPDATE,
};

struct cm_event {
	__u64 flow;
	__u32 kind;
	__u32 unused;
};

/* Octets that an event takes in the ring. */
#define CM_EVENT_ROOM (8 + sizeof(struct cm_event))

#endif

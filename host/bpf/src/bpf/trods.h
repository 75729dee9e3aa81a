/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Layouts that trods.c shares with src/trods.rs. Integers in host order but for what says otherwise; an IPv4 address stands as
 * an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2).
 */
#ifndef TRODS_H
#define TRODS_H

#include <linux/types.h>

/* Addresses of services; the leases that they stand under. */
#define MAX_SERVICE_ADDRESSES 256
#define MAX_LEASES 16
/* Connections that are held to limits, and those that are looked for elsewhere. */
#define MAX_FLOWS (1 << 18)
#define MAX_ORPHANS (1 << 16)
/* Handshakes under way; the oldest gives way, and its connection is not protected. */
#define MAX_OPENING (1 << 16)
/* Connections that others hold; the oldest gives way. */
#define MAX_PINS (1 << 16)
/* Connections that nobody knows here and somebody was told so, or is to be; the oldest gives way, and is told later. */
#define MAX_REFUSED (1 << 16)
/* Connections whose process died lately; the oldest gives way, and passes for one that its server ended. */
#define MAX_DYING (1 << 16)
/* Connections of which a segment without data was withheld lately. */
#define MAX_WITHHELD (1 << 14)
/* Octets of all copies that wait to be read. */
#define EVENTS_SIZE (4 << 20)

/* The mark of frames that the process sends, of clients' segments whose connections are here, and of those that are nobody's here. */
#define RELEASED 0x54524f44
#define KNOWN 0x54524f4b
#define UNKNOWN 0x54524f55

/* Octets of a TCP header, and of a frame without data, at most. */
#define TCP_HEADER_MAX 60
#define WITHHELD_MAX 128
/* Octets of a segment that one event carries. */
#define EVENT_OCTETS 2048

struct service_key {
	__u32 address[4];
	__be16 port;
	__u16 zero;
};

struct flow_key {
	__u32 client[4];
	__u32 service[4];
	__be16 client_port;
	__be16 service_port;
};

/* Until when what is protected may speak, and a connection that nobody knows is not reset: nanoseconds of CLOCK_MONOTONIC. */
struct lease {
	__u64 until;
	__u64 settling;
	__u8 tor[6]; /* the ToR's Ethernet address; 0: not known */
	__u16 zero;
};

/* Who holds a connection for which clients may be sent here: an index in the pool, behind the ToR of this address. */
struct pin {
	__u8 tor[6];
	__u8 holder;
	__u8 zero;
};

/* How far a connection's server is heard. Sequence numbers. */
struct limits {
	__u32 ack; /* no acknowledgement beyond it */
	__u32 data; /* no data beyond it */
	__u32 fin; /* the only place of a FIN, if has_fin */
	__u32 has_fin; /* HAS_FIN or none */
	__u32 first; /* of the server's data, by which its SYN is known */
	__u32 acked; /* what the client acknowledged last; the program writes it, the process may write an older one */
};

enum has_fin {
	HAS_FIN = 1 << 0, /* there is a place for it */
	HAS_FIN_OF_DEAD = 1 << 1, /* even if the connection was closed since its process died */
};

/* What is known of a connection before its handshake is over: the TCP headers of both SYNs. */
struct opening {
	__u8 syn[TCP_HEADER_MAX];
	__u8 syn_ack[TCP_HEADER_MAX];
	__u32 client_next; /* what follows each, 0 and no header while one is missing */
	__u32 server_next;
	__u8 has_syn;
	__u8 has_syn_ack;
	__u16 zero;
};

/* The last segment without data that was not let through, as a frame. */
struct withheld {
	__u32 length;
	__u8 frame[WITHHELD_MAX];
};

enum event_kind {
	EVENT_OPENED = 1, /* octets: both headers, each in TCP_HEADER_MAX */
	EVENT_REQUEST, /* the client's octets */
	EVENT_RESET, /* by the client, at seq */
	EVENT_ENDED, /* the client acknowledged the FIN that was let through */
	EVENT_FIN, /* the server's, at seq, not let through */
	EVENT_ABORTED, /* the server's RST, not let through */
	EVENT_PARKED, /* a segment of an orphan, which the kernel does not get: its IP packet */
};

enum event_flags {
	EVENT_HAS_FIN = 1 << 0, /* a FIN stands right behind the octets */
	EVENT_OF_DEAD = 1 << 1, /* EVENT_FIN, EVENT_ABORTED: the connection was closed since its process died */
};

struct event {
	struct flow_key key;
	__u32 seq;
	__u32 ack;
	__u16 length;
	__u8 kind;
	__u8 flags;
	__u8 octets[EVENT_OCTETS];
};

/* What is counted, segments unless it says otherwise. */
enum counter {
	COUNT_OPENED, /* connections */
	COUNT_FULL, /* connections for which there was no room */
	COUNT_HELD,
	COUNT_ACKS, /* withheld acknowledgements */
	COUNT_CLAMPED, /* data whose acknowledgement was taken back */
	COUNT_FINS, /* FINs not let through */
	COUNT_RESETS, /* RSTs not let through */
	COUNT_MUTED, /* by the lease */
	COUNT_PARKED,
	COUNT_LOST, /* from clients, no room for their copy: they send them again */
	COUNT_HANDED_ON, /* from clients, to who holds their connections */
	COUNTERS,
};

#endif

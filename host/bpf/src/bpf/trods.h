/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Layouts that trods.c shares with src/trods.rs. Integers in host order but for what says otherwise; an IPv4 address stands as
 * an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2).
 */
#ifndef TRODS_H
#define TRODS_H

#include <linux/types.h>

/* Addresses of services; the leases that they stand under. */
#define MAX_SERVICE_ADDRESSES 16384
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
/* Adopted connections that are held to nothing any more; the oldest gives way. */
#define MAX_FREED (1 << 14)
/* Octets of all copies that wait to be read. */
#define NAMED_SIZE (1 << 18)
#define EVENTS_SIZE (4 << 20)

/* Who makes ISNs; targets that are known, and connections whose handshake was made here and is under way. */
#define MAX_ISSUERS 16
#define MAX_TARGETS (1 << 19)
#define MAX_ISSUED (1 << 16)
/* Requests whose responses have not begun; the oldest gives way, and its client sends it again. */
#define MAX_REQUESTS (1 << 12)

/* The mark of frames that the process sends, of clients' segments whose connections are here, and of those that are nobody's here. */
#define RELEASED 0x54524f44
#define KNOWN 0x54524f4b
#define UNKNOWN 0x54524f55

/* Octets of a TCP header, and of a frame without data, at most. */
#define TCP_HEADER_MAX 60
#define WITHHELD_MAX 128
/* Octets of a segment that one event carries. */
#define EVENT_OCTETS 2048
/* And of an event without them. */
#define EVENT_HEADER 48

struct service_key {
	__u32 address[4];
	__be16 port;
	__u16 zero;
};

/* What a service's connections stand under. */
struct service {
	__u32 lease;
	__u16 issuer; /* who makes their ISNs and timestamps (ts.h), from 1; 0: the kernel */
	__u16 records; /* what timestamps cannot name is the process's */
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
	__u32 flags;
};

enum limits_flags {
	LIMITS_RECORDED = 1 << 0, /* a record of it is stored */
	LIMITS_AWAITED = 1 << 1, /* the kernel is about to have its socket */
	LIMITS_ADOPTED = 1 << 2, /* another replica had it before */
};

/* Maps that are empty on a good day. */
enum happened {
	HAPPENED_DEATH, /* dying */
	HAPPENED_PIN, /* pins */
	HAPPENED_WITHHELD, /* withheld */
	HAPPENED_FREED, /* freed */
	HAPPENED,
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
	EVENT_PARKED, /* a segment of an orphan, which the kernel does not get, or with data that was handed on: its IP packet */
	EVENT_STAMPED, /* a request for what is in the table was seen: seq follows it */
	EVENT_UNNAMED, /* timestamps cannot name what follows: the client goes on at seq; octets: ISN, base,
			  where the server goes on, STAMPED_ADOPTED or none */
	EVENT_REPLACED, /* another one begins between its ends */
	EVENT_REFUSED, /* the kernel does not know the connection; its RST, at seq, was not let through */
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

/* Who makes the ISNs and timestamps of a service's connections (ts.h). */
struct issuer {
	__u32 key[2]; /* of the epoch's ISNs */
	__u32 odd; /* the epoch's lowest bit */
	__u32 table; /* which rows of `heads` count */
	__u64 hunting; /* until when segments of unknown connections go to the process, nanoseconds */
	__u16 mss[2]; /* what we take, IPv4 and IPv6 */
	__u32 zero;
};

/* A target of the table. */
struct head_key {
	__u32 table;
	__u32 zero;
	__u64 target; /* FNV-1a of its octets */
};

/* How many heads a target may have: connections go on, or the server closes. */
#define HEADS 2

/* A response's head that is known, and its body's length. */
struct head {
	__u64 sum; /* of its octets without the date's (sum_words) */
	__u32 length; /* octets; 0: there is none */
	__u32 date; /* where the 29 octets of the date are; 0: there is none */
	__u32 total; /* octets of head and body, less than 2^32 - 2^20 */
	__u32 object; /* what timestamps call it */
};

struct heads {
	struct head of[HEADS];
};

/* A handshake that was made here; the oldest gives way. */
struct issued {
	__u64 at; /* nanoseconds */
	__u64 taken; /* when the kernel was given the connection first; 0: not yet */
	__u32 isn;
	__u32 client_next;
	__u32 value; /* its TSval */
	__u16 mss;
	__u8 scale;
	__u8 again; /* how often what asks came again meanwhile */
};

enum stamped_phase {
	STAMPED_SETUP, /* nothing was asked */
	STAMPED_ASKED, /* for what is in the table */
	STAMPED_NAMED, /* the response began, and timestamps name it */
	STAMPED_ECHOED, /* the client has echoed one of these */
	STAMPED_FREE, /* nobody can go on with it */
	STAMPED_RECORDED, /* the process records it: nobody can by timestamps, once a record is stored */
};

enum stamped_flags {
	STAMPED_CLIENT_FIN = 1 << 0, /* the client has ended its half */
	STAMPED_FIN_ACKED = 1 << 1, /* and acknowledged our FIN */
	STAMPED_ADOPTED = 1 << 2, /* another replica had it before */
	/* From 1 << 3 on: how often it was gone on with, which the process alone writes and reads. */
};

/* A connection whose timestamps are made here. */
struct stamped {
	__u64 since; /* when the index moved, and when the client was heard last: nanoseconds */
	__u64 heard;
	__u64 target; /* what was asked */
	__u32 table;
	__u32 isn;
	__u32 client_next; /* behind the request */
	__u32 base; /* what is the same in all values */
	__u32 object; /* what they name; before that what they may only name, if anything */
	__u32 total; /* octets of the response */
	__u32 fin; /* where our FIN was */
	__u8 phase;
	__u8 flags;
	__u8 index;
	__u8 echo; /* the newest index that came back */
	struct limits limits; /* before STAMPED_FREE; of one that is recorded they are in `flows` */
	__u32 originals[32]; /* of each index the kernel's newest value */
	__be16 owed; /* the window of what the client was not acknowledged; 0: nothing is kept back */
	__u8 told; /* its request was acknowledged in the first segment: who has all has that */
	__u8 pad;
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
	/* Connections (ts.h): whose handshake was made here, whose response a timestamp names, and those that go on unprotected. */
	COUNT_ISSUED,
	COUNT_NAMED,
	COUNT_OPTIONS, /* the client's SYN has no timestamps, no SACK or no window scale */
	COUNT_PORTS, /* the kernel still has one between the same ports */
	COUNT_ASKING, /* no GET that is whole in one segment, or the server speaks first */
	COUNT_FIELDS, /* the answer may be another client's or a part: credentials, a cookie, a range, a condition */
	COUNT_UNLISTED, /* the target is not in the table */
	COUNT_HEAD, /* the response's head is not the table's */
	COUNT_SECOND, /* another request */
	COUNT_FULL_ISSUED, /* no room */
	COUNT_REFLECTED, /* acknowledgements of requests, made of the client's (ts_reflect.h) */
	COUNT_OUTSIDE, /* from clients, which the server's window does not accept (window.h) */
	COUNT_HANDSHAKE, /* connections whose handshake was not seen, or is forgotten: they go on unprotected */
	COUNTERS,
};

#endif

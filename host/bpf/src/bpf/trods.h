/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Layouts that trods.c shares with src/trods.rs. Integers are in host byte order unless typed
 * __be16 or __be32. IPv4 addresses are IPv4-mapped IPv6 addresses (RFC 4291, 2.5.5.2).
 */
#ifndef TRODS_H
#define TRODS_H

#include <linux/types.h>

/* Most addresses of services, and number of leases. */
#define MAX_SERVICE_ADDRESSES 16384
#define MAX_LEASES 16
/* Most connections with limits, and most connections that are searched for in the store or at other
 * replicas. */
#define MAX_FLOWS (1 << 18)
#define MAX_ORPHANS (1 << 16)
/* Most handshakes in progress; the oldest is evicted, and its connection is not protected. */
#define MAX_OPENING (1 << 16)
/* Most pins of connections that other replicas hold; the oldest is evicted. */
#define MAX_PINS (1 << 16)
/* Most connections that are unknown here and for which a RST was held back. The oldest is evicted,
 * and its next RST counts as the first. */
#define MAX_REFUSED (1 << 16)
/* Most connections of processes that died lately. The oldest is evicted, and its end then counts as
 * one by the server. */
#define MAX_DYING (1 << 16)
/* Most connections with a withheld segment without data. */
#define MAX_WITHHELD (1 << 14)
/* Most connections of which a request arrived in part. The oldest is evicted, and its next segment
 * is scanned as the start of a request. */
#define MAX_SCANS (1 << 14)
/* Most connections with fields of responses to overwrite, and most such fields of one connection.
 */
#define MAX_BLANKS (1 << 14)
#define MAX_FIELDS 16
/* Most adopted connections without limits; the oldest is evicted. */
#define MAX_FREED (1 << 14)
/* Bytes of the ring of events of named responses. */
#define NAMED_SIZE (1 << 18)
#define EVENTS_SIZE (4 << 20)

/* Most issuers of ISNs, known targets, and handshakes in progress that the program answers. */
#define MAX_ISSUERS 16
#define MAX_TARGETS (1 << 19)
#define MAX_ISSUED (1 << 16)
/* Most requests whose responses have not begun. The oldest is evicted, and its client retransmits
 * it. */
#define MAX_REQUESTS (1 << 12)

/* Marks (skb->mark) of frames that the process sends, of clients' segments with a connection here,
 * and of clients' segments without one. */
#define RELEASED 0x54524f44
#define KNOWN 0x54524f4b
#define UNKNOWN 0x54524f55

/* Most bytes of a TCP header, and of a frame without data. */
#define TCP_HEADER_MAX 60
#define WITHHELD_MAX 128
/* Bytes of a segment that one event carries. */
#define EVENT_OCTETS 2048
/* Bytes of an event's header. */
#define EVENT_HEADER 48

struct service_key {
	__u32 address[4];
	__be16 port;
	__u16 zero;
};

/* Settings of a service's connections. */
struct service {
	__u32 lease;
	__u16 issuer; /* issuer of their ISNs and timestamps (ts.h), from 1; 0: the kernel */
	__u16 records; /* the process records responses that timestamps cannot name */
};

struct flow_key {
	__u32 client[4];
	__u32 service[4];
	__be16 client_port;
	__be16 service_port;
};

/* Lease of a replica: until when it may send on protected connections (`until`), and until when it
 * sends no RST for unknown ones (`settling`), in nanoseconds of CLOCK_MONOTONIC. */
struct lease {
	__u64 until;
	__u64 settling;
	__u8 tor[6]; /* the ToR's Ethernet address; 0: unknown */
	__u16 zero;
};

/*
 * The replica that holds a connection whose segments may arrive here: its index in the pool,
 * reached by the ToR of this address.
 */
struct pin {
	__u8 tor[6];
	__u8 holder;
	__u8 zero;
};

/* Limits on the segments of a connection that may leave, as sequence numbers. */
struct limits {
	__u32 ack; /* highest acknowledgement that may leave */
	__u32 data; /* end of the data that may leave */
	__u32 fin; /* the only place of a FIN, if has_fin */
	__u32 has_fin; /* HAS_FIN or none */
	__u32 first; /* first number of the server's data; identifies its SYN */
	__u32 acked; /* highest acknowledgement of the client; the program writes it, the process may write an older one */
	__u32 flags;
};

enum limits_flags {
	LIMITS_RECORDED = 1 << 0, /* a record is stored */
	LIMITS_AWAITED = 1 << 1, /* the kernel's socket is being made */
	LIMITS_ADOPTED = 1 << 2, /* another replica held it before */
};

/* Maps that stay empty in normal operation, so that the programs need not look into them. */
enum happened {
	HAPPENED_DEATH, /* dying */
	HAPPENED_PIN, /* pins */
	HAPPENED_WITHHELD, /* withheld */
	HAPPENED_FREED, /* freed */
	HAPPENED_SCAN, /* scans */
	HAPPENED_BLANKS, /* blanks */
	HAPPENED,
};

enum has_fin {
	HAS_FIN = 1 << 0, /* a FIN may leave at `fin` */
	HAS_FIN_OF_DEAD = 1 << 1, /* also if the kernel closed the connection because its process died */
};

/* A connection before its handshake is complete: the TCP headers of both SYNs. */
struct opening {
	__u8 syn[TCP_HEADER_MAX];
	__u8 syn_ack[TCP_HEADER_MAX];
	__u32 client_next; /* sequence number after each SYN; 0 while that SYN is missing */
	__u32 server_next;
	__u8 has_syn;
	__u8 has_syn_ack;
	__u16 zero;
};

/* A field of a response that clients do not receive: the sequence numbers of its name and of the end of its line. */
struct field {
	__u32 from;
	__u32 to;
};

struct blanks {
	__u32 count;
	struct field fields[MAX_FIELDS];
};

/* The last withheld segment without data, as a frame. */
struct withheld {
	__u32 length;
	__u8 frame[WITHHELD_MAX];
};

enum event_kind {
	EVENT_OPENED = 1, /* bytes: both headers, TCP_HEADER_MAX each */
	EVENT_REQUEST, /* data of the client */
	EVENT_RESET, /* a RST of the client, at seq */
	EVENT_ENDED, /* the client acknowledged the FIN that left */
	EVENT_FIN, /* the server's FIN, at seq, withheld */
	EVENT_ABORTED, /* the server's RST, withheld */
	EVENT_PARKED, /* IP packet of a segment of an orphan, which the kernel does not get, or of a segment with data that was handed on */
	EVENT_STAMPED, /* a request for an object of the table; seq is after it */
	EVENT_UNNAMED, /* timestamps cannot name what follows; the client continues at seq.
			 * Bytes: ISN, base, the server's next number, STAMPED_ADOPTED or 0 */
	EVENT_REPLACED, /* another connection begins between the same ports */
	EVENT_REFUSED, /* the kernel does not know the connection; its RST, at seq, was withheld */
};

enum event_flags {
	EVENT_HAS_FIN = 1 << 0, /* a FIN follows the bytes */
	EVENT_OF_DEAD = 1 << 1, /* EVENT_FIN, EVENT_ABORTED: the kernel closed the connection because its process died */
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

/* Keys and settings with which the program makes ISNs and timestamps of services' connections
 * (ts.h). */
struct issuer {
	__u32 key[2]; /* key of the epoch's ISNs */
	__u32 odd; /* the epoch's lowest bit */
	__u32 table; /* number of the table whose rows in `heads` are valid */
	__u64 hunting; /* until when the process gets segments of unknown connections, nanoseconds */
	__u16 mss[2]; /* MSS that we announce, IPv4 and IPv6 */
	__u32 zero;
};

/* Key of a target of the table. */
struct head_key {
	__u32 table;
	__u32 zero;
	__u64 target; /* FNV-1a of its bytes */
};

/* Most heads of a target: one of keep-alive responses, and one of responses after which the server
 * closes. */
#define HEADS 2

/* A known response head, and the length of its body. */
struct head {
	__u64 sum; /* sum of its bytes without the date (sum_words) */
	__u32 length; /* bytes; 0: no head */
	__u32 date; /* offset of the 29 bytes of the date; 0: no date */
	__u32 total; /* bytes of head and body, less than 2^32 - 2^20 */
	__u32 object; /* its number in timestamps */
};

struct heads {
	struct head of[HEADS];
};

/* A handshake that the program answered; the oldest is evicted. */
struct issued {
	__u64 at; /* nanoseconds */
	__u64 taken; /* when the kernel first got the connection; 0: not yet */
	__u32 isn;
	__u32 client_next;
	__u32 value; /* its TSval */
	__u16 mss;
	__u8 scale;
	__u8 again; /* repetitions of the request in the meantime */
};

enum stamped_phase {
	STAMPED_SETUP, /* no request yet */
	STAMPED_ASKED, /* a request for an object of the table */
	STAMPED_NAMED, /* the response began, and timestamps name its object */
	STAMPED_ECHOED, /* the client has echoed such a timestamp */
	STAMPED_FREE, /* no replica can resume it */
	STAMPED_RECORDED, /* the process records it; once a record is stored, it is not resumed by timestamps */
};

enum stamped_flags {
	STAMPED_CLIENT_FIN = 1 << 0, /* the client has ended its half */
	STAMPED_FIN_ACKED = 1 << 1, /* and acknowledged our FIN */
	STAMPED_ADOPTED = 1 << 2, /* another replica held it before */
	/* Bits from 1 << 3: number of adoptions, which only the process reads and writes. */
};

/* A connection with timestamps of this program. */
struct stamped {
	__u64 since; /* when the index changed, and when the client last sent: nanoseconds */
	__u64 heard;
	__u64 target; /* target of the request */
	__u32 table;
	__u32 isn;
	__u32 client_next; /* number after the request */
	__u32 base; /* the bits that all values share */
	__u32 object; /* object that they name; before the response begins, the only one that they may name, or 0 */
	__u32 total; /* bytes of the response */
	__u32 fin; /* number of our FIN */
	__u8 phase;
	__u8 flags;
	__u8 index;
	__u8 echo; /* newest index that the client echoed */
	struct limits limits; /* in phases before STAMPED_FREE; those of a recorded connection are in `flows` */
	__u32 originals[32]; /* the kernel's newest TSval under each index */
	__be16 owed; /* window of the acknowledgement that was held back; 0: none */
	__u8 told; /* the first segment of the response acknowledged the request */
	__u8 pad;
};

/* Counters, in segments unless a comment has another unit. */
enum counter {
	COUNT_OPENED, /* connections */
	COUNT_FULL, /* connections without room in the map */
	COUNT_HELD,
	COUNT_ACKS, /* withheld acknowledgements */
	COUNT_CLAMPED, /* segments whose acknowledgement was lowered */
	COUNT_FINS, /* withheld FINs */
	COUNT_RESETS, /* withheld RSTs */
	COUNT_MUTED, /* dropped because the lease had ended */
	COUNT_PARKED,
	COUNT_LOST, /* from clients, without room for a copy: clients retransmit them */
	COUNT_HANDED_ON, /* from clients, handed on to the holder */
	/*
	 * Connections (ts.h): with a handshake that the program answered, with a response that
	 * timestamps name, and unprotected ones by reason.
	 */
	COUNT_ISSUED,
	COUNT_NAMED,
	COUNT_OPTIONS, /* the client's SYN has no timestamps, no SACK or no window scale */
	COUNT_PORTS, /* the kernel still has a connection between the same ports */
	COUNT_ASKING, /* not a GET in one whole segment, or the server sends first */
	COUNT_FIELDS, /* the response may depend on the client or be a part: credentials, cookie, range or condition */
	COUNT_UNLISTED, /* the target is not in the table */
	COUNT_HEAD, /* the response's head is not the table's */
	COUNT_SECOND, /* another request */
	COUNT_FULL_ISSUED, /* no room */
	COUNT_REFLECTED, /* acknowledgements of requests, made from the client's (ts_reflect.h) */
	COUNT_OUTSIDE, /* from clients, outside the server's window (window.h) */
	COUNT_HANDSHAKE, /* connections whose handshake was not seen or was evicted: they are unprotected */
	COUNT_INPUTS, /* names of the field X-TRODS in requests, changed (inputs.h) */
	COUNTERS,
};

#endif

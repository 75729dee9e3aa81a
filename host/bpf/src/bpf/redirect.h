/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Layouts that redirect.c shares with src/redirect.rs. Integers in host order, addresses as on the wire. */
#ifndef REDIRECT_H
#define REDIRECT_H

#include <linux/types.h>

/* Kinds of entries in the maps, so that a frame is looked up only where an entry may exist. */
enum redirect_settings {
	EVERYTHING = 1 << 0, /* every frame, nothing is looked up */
	ETHERTYPES = 1 << 1,
	TUNNELS = 1 << 2,
	PLAIN = 1 << 3, /* some endpoint takes segments without our option */
	/* Four bits, one for each kind of endpoint: address and port given, any port, any address, any of
	 * both. */
	SHAPES_SHIFT = 4,
	/* The bits above hold the number of completed updates of the maps. */
	CHANGES_SHIFT = 8,
};

/* Bits of endpoint.port above the port number. */
enum endpoint_bits {
	ANY_PORT = 1 << 16,
	ANY_ADDRESS = 1 << 17,
	IPV6 = 1 << 18,
};

/* Destination of a segment. A wildcard is zero; with any address, the family is zero, too. */
struct endpoint {
	__u8 address[16]; /* IPv4: the first four */
	__u32 port;
};

/* Segments that the socket takes. */
enum taking_bits {
	TAKE_ALL = 1 << 0,
	TAKE_OPTION = 1 << 1, /* those with the option */
	TAKE_LOCAL = 1 << 2, /* as local_ports has for the port */
};

struct taking {
	__u16 how;
	__u16 exid; /* of the option (RFC 6994) */
};

/* Values of local_ports. */
enum local_port {
	LOCAL_NONE,
	LOCAL_OPEN, /* segments with the option */
	LOCAL_OPENING, /* all: its server may turn out to speak plain TCP */
};

struct tunnel {
	__u8 source[16];
	__u8 destination[16];
	__u32 family; /* 0 or IPV6 */
};

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Checks that a segment fits the client's window. An attacker who knows addresses and ports of a
 * connection, but not its sequence numbers, can send segments with the client's address. The kernel
 * drops those outside its window (RFC 9293, 3.10.7.4; RFC 5961, section 5), so they must not change
 * any state here.
 */
#ifndef WINDOW_H
#define WINDOW_H

#include "segment.h"
#include "trods.h"

/* How far a client's data may be from the limit of acknowledgements, bytes. Ahead: the window of a
 * server that has received only requests. Behind: retransmissions of data that is not acknowledged
 * yet. Data that is further ahead is ignored here, and the client retransmits it later. */
#define CLIENT_AHEAD (1U << 16)
#define CLIENT_BEHIND (1U << 16)
/* How far an acknowledgement may be behind the newest one, bytes: more than any window. */
#define ACK_BEHIND (1U << 26)

/* Whether a segment is acceptable. `ack`: its acknowledgement as the kernel gets it. `beyond`:
 * bytes that it may exceed the data that has left. */
static __always_inline bool is_acceptable(const struct segment *s, __u32 ack, const struct limits *limits, __u32 beyond)
{
	if (s->seq - limits->ack + CLIENT_BEHIND >= CLIENT_BEHIND + CLIENT_AHEAD)
		return false;
	/* Only the sequence number of a RST counts, because it may lack the ACK flag. */
	if (!(s->flags & ACK))
		return s->flags & RST;
	__u32 reach = limits->data - limits->acked + ACK_BEHIND;
	return ack - limits->acked + ACK_BEHIND <= reach + beyond;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which segments can be a client's. Whoever knows both ends of a connection, and neither its numbers nor its timestamps, can send
 * segments in the client's name; the kernel drops them since they are outside of its window (RFC 9293, 3.10.7.4; RFC 5961, section 5), so
 * they change nothing here either.
 */
#ifndef WINDOW_H
#define WINDOW_H

#include "segment.h"
#include "trods.h"

/*
 * Bytes of a client's around what it may be acknowledged: the window of a server that has received requests alone, and what a client sends
 * again since it was not acknowledged yet. What lies further ahead is sent again once that is acknowledged.
 */
#define CLIENT_AHEAD (1U << 16)
#define CLIENT_BEHIND (1U << 16)
/* Bytes that an acknowledgement may be older than the newest: more than any window. */
#define ACK_BEHIND (1U << 26)

/* `ack`: what the kernel hears; `beyond`: bytes that it may be ahead of what has left. */
static __always_inline bool is_acceptable(const struct segment *s, __u32 ack, const struct limits *limits, __u32 beyond)
{
	if (s->seq - limits->ack + CLIENT_BEHIND >= CLIENT_BEHIND + CLIENT_AHEAD)
		return false;
	/* A RST has its place by its own number alone, and may have no acknowledgement. */
	if (!(s->flags & ACK))
		return s->flags & RST;
	__u32 reach = limits->data - limits->acked + ACK_BEHIND;
	return ack - limits->acked + ACK_BEHIND <= reach + beyond;
}

#endif

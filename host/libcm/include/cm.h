/* The Congestion Manager's library: the calls of Andersen, Bansal, Curtis, Seshan and Balakrishnan (OSDI 2000, section 2), for UDP.
 *
 * A process has one control descriptor, cm_fd(), for select, poll and epoll: it can be read from while callbacks are due, which
 * cm_dispatch() then makes. A program without a loop of its own calls cm_loop(). Callbacks may call everything but cm_end().
 *
 * What is sent the kernel counts, from connected and unconnected sockets: cm_notify() is needed for 0 octets only, which leaves
 * a grant to another flow. The addresses and ports of a flow are those of its packets, and the socket must have been made by this user.
 *
 * Functions return -1, cm_open() 0, with errno set, and a sentence in cm_error(), on failure: ENOENT there is no such flow; EEXIST it is open;
 * EMFILE too many are; EAGAIN too many requests wait, or, of cm_query(), no round trip time is known yet; EINVAL. They may be called
 * from several threads. A child after fork() has no flows of its own and must not use its parent's.
 *
 * The daemon is `rivulet cm serve`. Build with `pkg-config --cflags --libs rivulet-cm`.
 */
#ifndef RIVULET_CM_H
#define RIVULET_CM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Operations of a bulk call. */
#define CM_MAX_BULK 64

typedef uint64_t cm_flowid;
/* Of flows that share a window. */
typedef uint64_t cm_macroflowid;

/* What became of packets (the paper's lossmode): nothing was lost; something of a window was; nothing arrived until a timer expired;
 * a mark of congestion came. */
enum { CM_NO_CONGESTION, CM_LOSS_FEEDBACK, CM_LOST_FEEDBACK, CM_EXPLICIT_CONGESTION };

/* What a flow has of the network. */
struct cm_status {
    uint64_t rate;   /* octets a second */
    uint64_t srtt;   /* ns */
    uint64_t rttdev; /* ns */
    uint32_t loss;   /* octets of a million that were lost lately */
};

/* Feedback of cm_bulk_update(); the result is 0 or an errno. */
struct cm_feedback {
    cm_flowid flow;
    uint64_t nsent;
    uint64_t nrecd;
    int lossmode;
    int result;
    uint64_t rtt; /* ns; 0: none */
};

/* A flow of the other bulk calls: nsent is of cm_bulk_notify(), status of cm_bulk_query(); the result is 0 or an errno. */
struct cm_item {
    cm_flowid flow;
    uint32_t nsent;
    int result;
    struct cm_status status;
};

/* cmapp_send, cmapp_update: with what was registered. Where one thread closes a flow while another is in cm_dispatch(), a call that has
 * begun ends after the close: what `context` points to must live until that cm_dispatch() has returned. */
typedef void (*cm_send_callback)(cm_flowid flow, void *context);
typedef void (*cm_update_callback)(cm_flowid flow, const struct cm_status *status, void *context);

/* Goes to the daemon whose socket this is; NULL: $RIVULET_CM, or the usual one. Others do it by themselves. */
int cm_init(const char *socket);
/* Ends all flows. */
void cm_end(void);
int cm_fd(void);
/* Has the process sent this signal, such as SIGIO, when cm_fd() becomes readable; 0: no longer. What fcntl() and O_ASYNC do for a socket, and
 * cannot for this descriptor: a thread of the library's sends it, in which no handler runs. A handler may call none of these functions. */
int cm_async(int signal);
/* Whether calls go through the daemon's process, since bpf(2) is forbidden to this one: they are slower, and end with it. */
int cm_proxied(void);
/* What went wrong last in this thread. */
const char *cm_error(void);

/* dst and src are sockaddr_in or sockaddr_in6; an unspecified address of src is the one that packets to dst leave by. */
cm_flowid cm_open(const struct sockaddr *src, const struct sockaddr *dst);
/* The same of a bound socket, with its code point; dst may be NULL if it is connected. */
cm_flowid cm_open_socket(int fd, const struct sockaddr *dst);
int cm_close(cm_flowid flow);
/* Octets of payload of the largest datagram. */
int cm_mtu(cm_flowid flow);

int cm_register_send(cm_flowid flow, cm_send_callback callback, void *context);
/* Asks for leave to send one datagram of up to cm_mtu() octets: cmapp_send() gives it. */
int cm_request(cm_flowid flow);
int cm_notify(cm_flowid flow, uint32_t nsent);
/* nsent octets are no longer outstanding, nrecd of them arrived; rtt in ns, 0: none. */
int cm_update(cm_flowid flow, uint64_t nsent, uint64_t nrecd, int lossmode, uint64_t rtt);
int cm_query(cm_flowid flow, struct cm_status *status);
/* NULL: no longer. */
int cm_register_update(cm_flowid flow, cm_update_callback callback, void *context);
/* cmapp_update() is called when the rate is `down` (0 to 1) times what was told last, or less, or `up` (1 or more) times that, or more. */
int cm_thresh(cm_flowid flow, double down, double up);
/* Its share relative to those of the other flows of its macroflow, 1 to 65535; 1 at first. */
int cm_weight(cm_flowid flow, uint32_t weight);
/* The macroflow of a flow (RFC 3124, 2.1.5), 0 on failure: at first the one of this user's flows of its destination and code point. */
cm_macroflowid cm_getmacroflow(cm_flowid flow);
/* Puts a flow, with its requests and what is outstanding of it, into another macroflow of this user, or with CM_NEW_MACROFLOW into one of
 * its own, of whose path nothing is known yet. That one ends with its last flow. ENOENT: there is no such flow, or macroflow. */
#define CM_NEW_MACROFLOW 0
int cm_setmacroflow(cm_macroflowid macroflow, cm_flowid flow);

/* Up to CM_MAX_BULK in one call; what became of each is in it. */
int cm_bulk_request(struct cm_item *items, size_t count);
int cm_bulk_notify(struct cm_item *items, size_t count);
int cm_bulk_query(struct cm_item *items, size_t count);
int cm_bulk_update(struct cm_feedback *items, size_t count);

/* CM-UDP: of a bound socket, connected or to dst, whose datagrams wait in a queue, `limit` of them at most, and are sent by cm_dispatch()
 * as they are granted. The socket is the program's to receive by and to close; feedback is given by cm_update(). The flow ends by
 * cm_close(), which drops what waits. */
cm_flowid cm_udp_open(int fd, const struct sockaddr *dst, size_t limit);
/* Copies a datagram into the queue. EWOULDBLOCK: it is full; EMSGSIZE: larger than cm_mtu(); what an earlier one failed by (as
 * ECONNREFUSED), and then this one is not queued. */
int cm_udp_send(cm_flowid flow, const void *datagram, size_t length);
/* How many wait. */
int cm_udp_waiting(cm_flowid flow);

/* Makes the callbacks that are due, and sends what cm_udp_send() queued and is granted; says how many of both. */
int cm_dispatch(void);
/* Waits and dispatches until cm_stop(), which a callback or another thread calls. */
int cm_loop(void);
void cm_stop(void);

#ifdef __cplusplus
}
#endif
#endif

/*
 * The Congestion Manager's library: the calls of Andersen, Bansal, Curtis, Seshan and Balakrishnan
 * (OSDI 2000, section 2), for UDP.
 *
 * A process has one control descriptor, cm_fd(), for select, poll and epoll. It is readable while
 * callbacks are due, and cm_dispatch() makes them. A program without its own loop calls cm_loop().
 * Callbacks may call every function except cm_end().
 *
 * The kernel counts what connected and unconnected sockets send, so cm_notify() is needed only for
 * 0 bytes, which passes a grant to another flow. The addresses and ports of a flow are those of its
 * packets, and this user must have created the socket.
 *
 * On failure functions return -1, cm_open() 0; they set errno, and cm_error() returns a sentence.
 * ENOENT: there is no such flow. EEXIST: the flow is already open. EMFILE: too many flows are open.
 * EAGAIN: too many requests wait, or cm_query() has no round trip time yet. EINVAL: an argument is
 * invalid. Several threads may call these functions. A child after fork() has no flows and must not
 * use its parent's.
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

/* Largest number of operations in a bulk call. */
#define CM_MAX_BULK 64

typedef uint64_t cm_flowid;
/* Flows with equal numbers share a window. */
typedef uint64_t cm_macroflowid;

/* Fate of packets (the paper's lossmode): no loss; some packets of a window lost; no packet arrived
 * until a timer expired; packets carried ECN marks. */
enum { CM_NO_CONGESTION, CM_LOSS_FEEDBACK, CM_LOST_FEEDBACK, CM_EXPLICIT_CONGESTION };

/* A flow's share of the network. */
struct cm_status {
    uint64_t rate;   /* bytes a second */
    uint64_t srtt;   /* ns */
    uint64_t rttdev; /* ns */
    uint32_t loss;   /* recently lost bytes per million */
};

/* Feedback for cm_bulk_update(); the result is 0 or an errno. */
struct cm_feedback {
    cm_flowid flow;
    uint64_t nsent;
    uint64_t nrecd;
    int lossmode;
    int result;
    uint64_t rtt; /* ns; 0: none */
};

/* Item of the other bulk calls: cm_bulk_notify() reads nsent, cm_bulk_query() writes status; the
 * result is 0 or an errno. */
struct cm_item {
    cm_flowid flow;
    uint32_t nsent;
    int result;
    struct cm_status status;
};

/* cmapp_send and cmapp_update, called with the registered context. If one thread closes a flow
 * while another is in cm_dispatch(), a callback that has started can end after cm_close(): keep
 * `context` valid until that cm_dispatch() has returned. */
typedef void (*cm_send_callback)(cm_flowid flow, void *context);
typedef void (*cm_update_callback)(cm_flowid flow, const struct cm_status *status, void *context);

/* Connects to the daemon at this socket; NULL: $RIVULET_CM, or the default socket. Without
 * cm_init(), the first call connects to the default. */
int cm_init(const char *socket);
/* Closes all flows. */
void cm_end(void);
int cm_fd(void);
/* Sends this signal, such as SIGIO, to the process when cm_fd() becomes readable; 0 stops it. It
 * replaces fcntl() with O_ASYNC, which this descriptor does not support: a thread of the library
 * sends the signal and runs no handler. Handlers must not call these functions. */
int cm_async(int signal);
/* Whether calls go through the daemon's process because bpf(2) is forbidden to this one. Such calls
 * are slower and fail once the daemon ends. */
int cm_proxied(void);
/* Message of this thread's last error. */
const char *cm_error(void);

/* dst and src are sockaddr_in or sockaddr_in6. An unspecified src address becomes the one that
 * packets to dst are sent from. */
cm_flowid cm_open(const struct sockaddr *src, const struct sockaddr *dst);
/* The same for a bound socket, with its code point; dst may be NULL if the socket is connected. */
cm_flowid cm_open_socket(int fd, const struct sockaddr *dst);
int cm_close(cm_flowid flow);
/* Payload bytes of the largest datagram. */
int cm_mtu(cm_flowid flow);

int cm_register_send(cm_flowid flow, cm_send_callback callback, void *context);
/* Requests a grant to send one datagram of up to cm_mtu() bytes; cmapp_send() delivers it. */
int cm_request(cm_flowid flow);
int cm_notify(cm_flowid flow, uint32_t nsent);
/* nsent bytes are no longer outstanding, and nrecd of them arrived; rtt in ns, 0: none. */
int cm_update(cm_flowid flow, uint64_t nsent, uint64_t nrecd, int lossmode, uint64_t rtt);
int cm_query(cm_flowid flow, struct cm_status *status);
/* NULL unsubscribes. */
int cm_register_update(cm_flowid flow, cm_update_callback callback, void *context);
/* Calls cmapp_update() when the rate is at most `down` (0 to 1) times, or at least `up` (1 or more)
 * times the last reported rate. */
int cm_thresh(cm_flowid flow, double down, double up);
/* The flow's weight relative to the other flows of its macroflow, 1 to 65535; initially 1. */
int cm_weight(cm_flowid flow, uint32_t weight);
/* A flow's macroflow (RFC 3124, 2.1.5), 0 on failure. Initially the flows of one user with one
 * destination and code point share it. */
cm_macroflowid cm_getmacroflow(cm_flowid flow);
/* Moves a flow, with its requests and outstanding bytes, into another macroflow of this user, or
 * with CM_NEW_MACROFLOW into a new one without history, which ends with its last flow. ENOENT:
 * there is no such flow or macroflow. */
#define CM_NEW_MACROFLOW 0
int cm_setmacroflow(cm_macroflowid macroflow, cm_flowid flow);

/* At most CM_MAX_BULK items in one call; each item holds its own result. */
int cm_bulk_request(struct cm_item *items, size_t count);
int cm_bulk_notify(struct cm_item *items, size_t count);
int cm_bulk_query(struct cm_item *items, size_t count);
int cm_bulk_update(struct cm_feedback *items, size_t count);

/* CM-UDP: takes a bound socket, connected or to dst. Its datagrams wait in a queue of at most
 * `limit`, and cm_dispatch() sends them as they are granted. The program receives on the socket,
 * closes it, and gives feedback by cm_update(). cm_close() ends the flow and drops the queue. */
cm_flowid cm_udp_open(int fd, const struct sockaddr *dst, size_t limit);
/* Copies a datagram into the queue. EWOULDBLOCK: the queue is full; EMSGSIZE: the datagram is
 * larger than cm_mtu(). If an earlier datagram failed (such as by ECONNREFUSED), returns that error
 * and does not queue this one. */
int cm_udp_send(cm_flowid flow, const void *datagram, size_t length);
/* Number of datagrams in the queue. */
int cm_udp_waiting(cm_flowid flow);

/* Makes the callbacks that are due and sends the granted datagrams of cm_udp_send(). Returns how
 * many of both. */
int cm_dispatch(void);
/* Waits and dispatches until a callback or another thread calls cm_stop(). */
int cm_loop(void);
void cm_stop(void);

#ifdef __cplusplus
}
#endif
#endif

/* Minisockets: the server API of Trickles (NSDI 2005, section 3 and Figure 8), and a client beside it.
 *
 * A server has no connections. It has a queue of events; each event is a minisocket, which lives until it is answered.
 * What the server wants to know again about a client it hands out as a user continuation (msk_setucont), sealed by the
 * library, and gets back with the client's next input (msk_ucont). So any server with the same keys can take any event.
 *
 * MSK_REQUEST comes at least once, and in any order: a server may die after acting and before answering. What an
 * event does must bear being done twice.
 *
 * Functions return -1 with errno set and a sentence in msk_error() on failure. NULL in place of a minisocket, or of an array or
 * data that is not empty, and a negative count are such failures (EINVAL). One fd belongs to one thread at a time.
 * Needs CAP_NET_RAW and CAP_NET_ADMIN. The environment variable RIVULET_IO says what moves the packets: af_packet (the
 * default), af_xdp (an error where it cannot be had; needs CAP_BPF too) or auto. Build with `pkg-config --cflags --libs rivulet`.
 */
#ifndef RIVULET_H
#define RIVULET_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Longest user continuation, and longest answer of msk_send and msk_sendv, in bytes. */
#define MSK_MAX_UCONT 900
#define MSK_MAX_SEND 900

enum { MSK_OPEN = 1, MSK_REQUEST = 2, MSK_CLOSE = 3 };

typedef struct minisock minisock;

/* A piece of an answer in memory. */
typedef struct {
    const void *base;
    size_t length;
} tiovec;

/* A piece of an answer in a file. Every server must have the file under this name with the same
 * bytes. */
typedef struct {
    const char *path;
    uint64_t offset;
    uint64_t length;
} fiovec;

/* One answer of msk_sendbulk. */
typedef struct {
    minisock *msk;
    const void *data;
    size_t length;
} mskdesc;

/* An event to extract. */
typedef struct {
    minisock *msk;
} extract_mskdesc_in;

/* An extracted event: sealed bytes that any server with the same keys can install. Free it with
 * msk_free_collection. */
typedef struct {
    void *data;
    size_t length;
} msk_collection;

/* Serves ADDRESS:PORT on an interface with the keys of a file written by `rivulet keygen`. Returns
 * a descriptor that is readable when msk_events has work. */
int msk_listen(const char *interface, const char *address, uint16_t port, const char *key_file);

/* The same, but services, addresses, keys and the place in a pool come from this host's agent or a
 * controller. AGENT is one or more comma-separated addresses such as unix:/run/rivulet/agent.sock;
 * NAME is this replica's name in the controller's configuration. Nothing is served, and no event
 * arrives, before the first update. msk_events applies later updates and sends the heartbeats, so
 * call it again within the liveness bound. */
int msk_listen_agent(const char *interface, const char *agent, const char *name);

/* Takes up to MAX events into LIST, waiting TIMEOUT_MS for the first (-1: without limit, 0: not at
 * all); returns their number. Events of the previous call that were neither answered nor detached
 * are dropped. */
int msk_events(int fd, minisock **list, int max, int timeout_ms);

/* Properties of an event. Pointers are valid as long as the minisocket. */
int msk_kind(const minisock *msk);
const void *msk_input(const minisock *msk, size_t *length, uint64_t *offset);
int msk_is_last_input(const minisock *msk);
const void *msk_ucont(const minisock *msk, size_t *length); /* NULL at the beginning of a connection */
int msk_packets(const minisock *msk);                       /* response packets that congestion control allows */
int msk_peer(const minisock *msk, struct sockaddr *address, socklen_t *length);

/* Marks only the first LENGTH bytes of the input as consumed; the client sends the others again,
 * followed by more. */
int msk_consume(int fd, minisock *msk, size_t length);

/* Sets the user continuation that comes back with the client's next input. Response packet PKT of
 * the answer carries it, 0 to msk_packets() - 1. An event has one continuation: a second call
 * replaces it. Call this before the answer. */
int msk_setucont(int fd, minisock *msk, int pkt, const char *buf, size_t length);

/* Answers. Each ends the minisocket; the bytes follow those of the previous answer. */
int msk_send(int fd, minisock *msk, const char *data, size_t length);
int msk_sendv(int fd, minisock *msk, const tiovec *pieces, int count);
int msk_sendfilev(int fd, minisock *msk, const fiovec *pieces, int count); /* up to 4, of any length */
int msk_sendbulk(int fd, const mskdesc *answers, int count);               /* returns how many were sent */

/* Like msk_send, and ends the connection after the data. */
int msk_sendlast(int fd, minisock *msk, const char *data, size_t length);

/* Ends the minisocket without an answer, which the client treats as a loss. */
int msk_drop(int fd, minisock *msk);

/* Keeps the minisocket beyond the next msk_events. Answer soon: after the horizon (4 s) the client
 * abandons the request. */
int msk_detach(int fd, minisock *msk);

/* Moves events to another server, also on another machine. Extracting ends the minisockets;
 * msk_events of the other server returns the installed events. *OUTLEN is the room in OUT before
 * the call and the number of events after it. If an entry of IN is not a minisocket of FD, or
 * appears twice, the call returns -1 with EINVAL, *OUTLEN is 0, and all minisockets remain. */
int msk_extract_events(int fd, const extract_mskdesc_in *in, int inlen, msk_collection *out, int *outlen);
int msk_install_events(int fd, const msk_collection *events, int count); /* returns how many were genuine */
void msk_free_collection(msk_collection *events, int count);

/* The client: a connection, parallel requests on it (section 5.2), and their answers. */
int msk_connect(const char *address, uint16_t port);
/* Sends a request on a new stream and returns the stream's number. A connection has at most 1024
 * streams at a time, each until msk_read has returned the end of its answer, and 65534 in all;
 * beyond that the result is -1 with EDQUOT. RESERVE, in the paper the bytes of output kept free for
 * the answer, has no effect: every stream has 2^48 bytes. */
int msk_request(int fd, const char *request, int length, int reserve);
int msk_write(int fd, const char *data, int length);                /* on stream 0, as a socket would; blocks */
ssize_t msk_read(int fd, int stream, void *data, size_t length, int timeout_ms); /* 0: the end; -1 EAGAIN: nothing yet */

int msk_close(int fd);
const char *msk_error(void);

#ifdef __cplusplus
}
#endif
#endif

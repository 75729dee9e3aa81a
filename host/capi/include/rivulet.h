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

/* Longest user continuation, and longest answer of msk_send and msk_sendv, octets. */
#define MSK_MAX_UCONT 900
#define MSK_MAX_SEND 900

enum { MSK_OPEN = 1, MSK_REQUEST = 2, MSK_CLOSE = 3 };

typedef struct minisock minisock;

/* A piece of an answer in memory. */
typedef struct {
    const void *base;
    size_t length;
} tiovec;

/* A piece of an answer in a file, which every server must have under this name with these octets. */
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

/* An event to be extracted. */
typedef struct {
    minisock *msk;
} extract_mskdesc_in;

/* An extracted event: sealed octets that any server with the same keys can install. Free with msk_free_collection. */
typedef struct {
    void *data;
    size_t length;
} msk_collection;

/* Serves ADDRESS:PORT on an interface with the keys of a file written by `rivulet keygen`. Returns a descriptor that is
 * readable when msk_events has something to do. */
int msk_listen(const char *interface, const char *address, uint16_t port, const char *key_file);

/* The same with what an agent of this host or a controller gives: services, their addresses and keys, a place in a pool.
 * AGENT is one or more addresses with commas between, such as unix:/run/rivulet/agent.sock; NAME is this replica's in the
 * controller's configuration. There is nothing to serve, and no event, before the first update has come; later ones are
 * taken up within msk_events, which also sends the heartbeats and so must be called again within the liveness bound. */
int msk_listen_agent(const char *interface, const char *agent, const char *name);

/* Takes up to MAX events into LIST, waiting TIMEOUT_MS for the first (-1: for ever, 0: not at all); returns their number.
 * Events of the call before that were neither answered nor detached are dropped. */
int msk_events(int fd, minisock **list, int max, int timeout_ms);

/* What an event is about. Pointers are good as long as the minisocket. */
int msk_kind(const minisock *msk);
const void *msk_input(const minisock *msk, size_t *length, uint64_t *offset);
int msk_is_last_input(const minisock *msk);
const void *msk_ucont(const minisock *msk, size_t *length); /* NULL at the beginning of a connection */
int msk_packets(const minisock *msk);                       /* response packets that congestion control allows */
int msk_peer(const minisock *msk, struct sockaddr *address, socklen_t *length);

/* Says that only the first LENGTH octets of the input were understood; the client sends the others again, with more. */
int msk_consume(int fd, minisock *msk, size_t length);

/* Sets the user continuation that comes back with the client's next input; with the answer it travels in response packet PKT,
 * 0 to msk_packets() - 1. One event has one: a second call takes the first one's place. To be called before the answer. */
int msk_setucont(int fd, minisock *msk, int pkt, const char *buf, size_t length);

/* Answer: each ends the minisocket. The octets follow those of the answer before. */
int msk_send(int fd, minisock *msk, const char *data, size_t length);
int msk_sendv(int fd, minisock *msk, const tiovec *pieces, int count);
int msk_sendfilev(int fd, minisock *msk, const fiovec *pieces, int count); /* up to 4, of any length */
int msk_sendbulk(int fd, const mskdesc *answers, int count);               /* returns how many were sent */

/* As msk_send, and the connection ends behind it. */
int msk_sendlast(int fd, minisock *msk, const char *data, size_t length);

/* Ends the minisocket without an answer; to the client a loss. */
int msk_drop(int fd, minisock *msk);

/* Keeps the minisocket beyond the next msk_events. Answer soon: after the horizon (4 s) the client has given it up. */
int msk_detach(int fd, minisock *msk);

/* Moves events to another server, also on another machine. Extracting ends the minisockets; installed events come out of
 * msk_events. *OUTLEN is the room in OUT before and the number of events after. If one of IN is no minisocket of FD, or stands
 * there twice, the call returns -1 EINVAL, *OUTLEN is 0, and all of them are as before. */
int msk_extract_events(int fd, const extract_mskdesc_in *in, int inlen, msk_collection *out, int *outlen);
int msk_install_events(int fd, const msk_collection *events, int count); /* returns how many were genuine */
void msk_free_collection(msk_collection *events, int count);

/* The client: a connection, requests in parallel on it (section 5.2), and their answers. */
int msk_connect(const char *address, uint16_t port);
/* Sends a request on a stream of its own and returns the stream's number. A connection has 1024 of them at a time, each until
 * msk_read has said that its answer ends, and 65534 in all; -1 EDQUOT beyond that. RESERVE, octets of output to be kept free for the
 * answer in the paper, has no effect: every stream has 2^48 octets of its own. */
int msk_request(int fd, const char *request, int length, int reserve);
int msk_write(int fd, const char *data, int length);                /* on stream 0, as a socket would; blocks */
ssize_t msk_read(int fd, int stream, void *data, size_t length, int timeout_ms); /* 0: the end; -1 EAGAIN: nothing yet */

int msk_close(int fd);
const char *msk_error(void);

#ifdef __cplusplus
}
#endif
#endif

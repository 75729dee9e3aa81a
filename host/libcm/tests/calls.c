/* Calls every function of cm.h, also with arguments that it refuses. Argument: a port of this host. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cm.h>

#define COUNT 10

static int sends, updates;
static struct cm_status last;

#define REFUSED(call, number)                                                                                          \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        if ((call) != -1 || errno != (number) || !*cm_error()) {                                                       \
            fprintf(stderr, "line %d: %s: %s, %s\n", __LINE__, #call, strerror(errno), cm_error());                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define GOOD(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) < 0) {                                                                                              \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, cm_error());                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define IS(what, number)                                                                                               \
    do {                                                                                                               \
        long long is = (long long)(what);                                                                              \
        if (is != (number)) {                                                                                          \
            fprintf(stderr, "line %d: %s is %lld\n", __LINE__, #what, is);                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void may_send(cm_flowid flow, void *context)
{
    (void)flow;
    sends++;
    if (context && sends == COUNT)
        cm_stop();
}

static void changed(cm_flowid flow, const struct cm_status *status, void *context)
{
    (void)flow;
    updates++;
    last = *status;
    *(int *)context = 1;
}

int main(int argc, char **argv)
{
    struct sockaddr_in to = { .sin_family = AF_INET }, from = { .sin_family = AF_INET };
    struct cm_item items[CM_MAX_BULK + 1] = { 0 };
    struct cm_feedback feedback[2] = { 0 };
    struct cm_status status;
    cm_flowid flow, other;
    char datagram[500] = { 0 };
    socklen_t length = sizeof(from);
    int fd = socket(AF_INET, SOCK_DGRAM, 0), told = 0;

    IS(argc, 2);
    to.sin_port = htons((uint16_t)atoi(argv[1]));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REFUSED(cm_init("/nowhere/at/all"), ENOENT);
    GOOD(cm_init(NULL));
    REFUSED(cm_init(NULL), EINVAL);
    IS(cm_proxied(), 0);
    /* An unbound socket has no port, and -1 is no socket. */
    IS(cm_open_socket(fd, (struct sockaddr *)&to), 0);
    IS(errno, EINVAL);
    IS(cm_open_socket(-1, NULL), 0);
    IS(errno, EBADF);
    IS(cm_open(NULL, (struct sockaddr *)&to), 0);
    IS(errno, EINVAL);
    GOOD(bind(fd, (struct sockaddr *)&from, sizeof(from)));
    GOOD(getsockname(fd, (struct sockaddr *)&from, &length));
    /* The wildcard source becomes loopback's address for this destination. */
    flow = cm_open((struct sockaddr *)&from, (struct sockaddr *)&to);
    IS(flow != 0, 1);
    IS(cm_open_socket(fd, (struct sockaddr *)&to), 0);
    IS(errno, EEXIST);
    IS(cm_mtu(flow), 65507);
    GOOD(cm_register_send(flow, may_send, NULL));
    REFUSED(cm_query(flow, &status), EAGAIN);
    REFUSED(cm_query(flow, NULL), EINVAL);
    REFUSED(cm_thresh(flow, 2, 2), EINVAL);
    REFUSED(cm_update(flow, 1, 1, 4, 0), EINVAL);
    GOOD(cm_register_update(flow, changed, &told));
    GOOD(cm_thresh(flow, 0.5, 2));
    cm_macroflowid common = cm_getmacroflow(flow);
    IS(common != 0, 1);
    GOOD(cm_setmacroflow(CM_NEW_MACROFLOW, flow));
    IS(cm_getmacroflow(flow) != common, 1);
    GOOD(cm_setmacroflow(cm_getmacroflow(flow), flow));

    for (int i = 0; i < COUNT; i++)
        GOOD(cm_request(flow));
    IS(cm_dispatch(), COUNT);
    IS(sends, COUNT);
    for (int i = 0; i < COUNT; i++)
        IS(sendto(fd, datagram, sizeof(datagram), 0, (struct sockaddr *)&to, sizeof(to)), sizeof(datagram));
    GOOD(cm_notify(flow, sizeof(datagram)));
    GOOD(cm_update(flow, COUNT * sizeof(datagram), COUNT * sizeof(datagram), CM_NO_CONGESTION, 1000000));
    IS(cm_dispatch(), 1);
    IS(updates == 1 && told, 1);
    GOOD(cm_query(flow, &status));
    IS(status.srtt, 1000000);
    IS(status.rate == last.rate && status.rate > 0, 1);

    /* The library's own loop, ended by a callback. */
    sends = 0;
    GOOD(cm_register_send(flow, may_send, &sends));
    for (int i = 0; i < COUNT; i++)
        items[i].flow = flow;
    items[COUNT].flow = 12345678;
    GOOD(cm_bulk_request(items, COUNT + 1));
    IS(items[0].result, 0);
    IS(items[COUNT].result, ENOENT);
    GOOD(cm_loop());
    IS(sends, COUNT);
    GOOD(cm_bulk_notify(items, COUNT));
    GOOD(cm_bulk_query(items, 2));
    IS(items[0].status.srtt, 1000000);
    feedback[0].flow = feedback[1].flow = flow;
    feedback[1].lossmode = CM_EXPLICIT_CONGESTION;
    GOOD(cm_bulk_update(feedback, 2));
    IS(feedback[0].result | feedback[1].result, 0);
    feedback[1].lossmode = -1;
    REFUSED(cm_bulk_update(feedback, 2), EINVAL);
    REFUSED(cm_bulk_request(items, CM_MAX_BULK + 1), EINVAL);
    REFUSED(cm_bulk_query(NULL, 1), EINVAL);
    GOOD(cm_bulk_query(NULL, 0));

    /* A flow without a callback leaves its grant to other flows. */
    to.sin_port = htons(9);
    other = cm_open_socket(fd, (struct sockaddr *)&to);
    IS(other != 0, 1);
    GOOD(cm_request(other));
    IS(cm_dispatch() >= 0, 1);
    GOOD(cm_close(other));
    REFUSED(cm_close(other), ENOENT);
    REFUSED(cm_request(other), ENOENT);
    REFUSED(cm_register_send(other, may_send, NULL), ENOENT);
    REFUSED(cm_mtu(0), ENOENT);
    cm_end();
    REFUSED(cm_close(flow), ENOENT);
    puts("all of it");
    return 0;
}

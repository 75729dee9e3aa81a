/* A CM-UDP program woken only by signals: cm_async() signals grants, and O_ASYNC of the socket
 * signals its receiver's answers. Arguments: a port of this host, whose receiver returns the first
 * eight bytes of each datagram, and the number of datagrams. Prints how many arrived. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cm.h>

#define OCTETS 1000
#define QUEUE 8
#define PATIENCE 60

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s: %s, %s\n", __LINE__, #what, strerror(errno), cm_error());                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define REFUSED(call, number) CHECK((errno = 0, (call) == -1) && errno == (number) && *cm_error())

static volatile sig_atomic_t late;
static char large[100000];

static void wake(int signal)
{
    if (signal == SIGALRM)
        late++;
}

static uint64_t nanoseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv)
{
    struct sockaddr_in to = { .sin_family = AF_INET };
    struct timespec patience = { .tv_sec = PATIENCE };
    struct itimerval second = { { 1, 0 }, { 1, 0 } };
    struct sigaction action = { .sa_handler = wake };
    uint32_t queued = 0, known = 0, arrived = 0, count;
    char datagram[OCTETS + 1] = { 0 };
    sigset_t signals, none;
    cm_flowid flow;
    int fd, other;

    CHECK(argc == 3);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atoi(argv[1]));
    count = (uint32_t)atoi(argv[2]);
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(cm_udp_open(-1, NULL, 1) == 0 && errno == EBADF);
    CHECK(cm_udp_open(fd, NULL, 1) == 0 && errno == ENOTCONN);
    CHECK(cm_udp_open(fd, (struct sockaddr *)&to, 1) == 0 && errno == EINVAL);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    flow = cm_udp_open(fd, NULL, QUEUE);
    CHECK(flow);
    CHECK(cm_udp_open(fd, NULL, QUEUE) == 0 && errno == EEXIST);
    REFUSED(cm_register_send(flow, NULL, NULL), EINVAL);
    REFUSED(cm_udp_send(flow + 1, datagram, 1), ENOENT);
    REFUSED(cm_udp_send(flow, NULL, 1), EINVAL);
    REFUSED(cm_udp_send(flow, large, sizeof(large)), EMSGSIZE);
    REFUSED(cm_async(-1), EINVAL);
    REFUSED(cm_async(1000), EINVAL);

    /* A failed send is returned by the next call: no socket listens at this port. */
    to.sin_port = htons(9);
    other = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(connect(other, (struct sockaddr *)&to, sizeof(to)) == 0);
    {
        cm_flowid refused = cm_udp_open(other, NULL, QUEUE);

        for (int i = 0; i < 2; i++) {
            CHECK(refused && cm_udp_send(refused, "x", 1) == 0);
            CHECK(cm_dispatch() == 1);
        }
        REFUSED(cm_udp_send(refused, "x", 1), ECONNREFUSED);
        CHECK(cm_udp_send(refused, "", 0) == 0 && cm_udp_waiting(refused) == 1);
        CHECK(cm_close(refused) == 0);
        REFUSED(cm_udp_waiting(refused), ENOENT);
        CHECK(cm_dispatch() == 0);
    }

    sigemptyset(&none);
    sigemptyset(&signals);
    sigaddset(&signals, SIGIO);
    CHECK(sigprocmask(SIG_BLOCK, &signals, NULL) == 0);
    CHECK(cm_async(SIGIO) == 0);
    for (; queued < QUEUE; queued++) {
        memcpy(datagram, &queued, sizeof(queued));
        CHECK(cm_udp_send(flow, datagram, OCTETS) == 0);
    }
    REFUSED(cm_udp_send(flow, datagram, OCTETS), EWOULDBLOCK);
    CHECK(cm_udp_waiting(flow) == QUEUE);
    /* No datagram was sent yet, so the signal is for the grants. */
    CHECK(sigtimedwait(&signals, NULL, &patience) == SIGIO);

    CHECK(sigaction(SIGIO, &action, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(fcntl(fd, F_SETOWN, getpid()) == 0 && fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK) == 0);
    CHECK(setitimer(ITIMER_REAL, &second, NULL) == 0);
    while (known < count) {
        uint64_t head[1];

        CHECK(cm_dispatch() >= 0);
        while (recv(fd, head, sizeof(head), 0) == sizeof(head)) {
            uint32_t number = (uint32_t)*head, lost = number - known;

            if (number < known)
                continue;
            known = number + 1;
            arrived++;
            late = 0;
            CHECK(cm_update(flow, (uint64_t)(lost + 1) * OCTETS, OCTETS, lost ? CM_LOSS_FEEDBACK : CM_NO_CONGESTION,
                            nanoseconds() % 1000 + 1000) == 0);
        }
        CHECK(errno == EAGAIN);
        if (late >= 3) {
            uint32_t sent = queued - (uint32_t)cm_udp_waiting(flow);

            CHECK(late < PATIENCE);
            if (sent > known)
                CHECK(cm_update(flow, (uint64_t)(sent - known) * OCTETS, 0, CM_LOST_FEEDBACK, 0) == 0);
            known = sent;
        }
        for (; queued < count && cm_udp_waiting(flow) < QUEUE; queued++) {
            memcpy(datagram, &queued, sizeof(queued));
            CHECK(cm_udp_send(flow, datagram, OCTETS) == 0);
        }
        if (known < count)
            sigsuspend(&none);
    }
    CHECK(cm_async(0) == 0);
    CHECK(cm_close(flow) == 0);
    printf("%u of %u arrived\n", arrived, count);
    return 0;
}

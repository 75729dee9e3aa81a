/*
 * Sends datagrams as the Congestion Manager grants them (the paper's request/callback style), in
 * the program's own select() loop:
 *
 *   alf ADDRESS PORT COUNT
 *
 * The receiver sends back the first eight bytes of each datagram: its number and its sending time.
 * A skipped number counts as lost; after a second without an answer all outstanding datagrams do.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

#include <cm.h>

#define OCTETS 1000

struct sender {
    int fd;
    uint32_t sent, arrived, known, count;
};

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, *cm_error() ? cm_error() : strerror(errno));
    exit(1);
}

static uint32_t microseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)(now.tv_sec * 1000000 + now.tv_nsec / 1000);
}

/* cmapp_send: chooses the data only when the grant arrives. */
static void may_send(cm_flowid flow, void *context)
{
    struct sender *sender = context;
    char datagram[OCTETS] = { 0 };
    uint32_t head[2] = { sender->sent, microseconds() };

    if (sender->sent == sender->count) {
        cm_notify(flow, 0);
        return;
    }
    memcpy(datagram, head, sizeof(head));
    if (send(sender->fd, datagram, sizeof(datagram), 0) < 0)
        die("send");
    sender->sent++;
    if (cm_request(flow) < 0)
        die("cm_request");
}

int main(int argc, char **argv)
{
    struct sockaddr_in to = { .sin_family = AF_INET };
    struct sender sender = { 0 };
    struct cm_status status;
    cm_flowid flow;

    if (argc != 4 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) {
        fprintf(stderr, "usage: alf ADDRESS PORT COUNT\n");
        return 2;
    }
    to.sin_port = htons((uint16_t)atoi(argv[2]));
    sender.count = (uint32_t)atoi(argv[3]);
    sender.fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (sender.fd < 0 || connect(sender.fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        die("connect");
    flow = cm_open_socket(sender.fd, NULL);
    if (!flow || cm_register_send(flow, may_send, &sender) < 0 || cm_request(flow) < 0)
        die("cm_open_socket");
    while (sender.known < sender.count) {
        struct timeval second = { .tv_sec = 1 };
        fd_set readable;
        int ready;
        int most = sender.fd > cm_fd() ? sender.fd : cm_fd();

        FD_ZERO(&readable);
        FD_SET(sender.fd, &readable);
        FD_SET(cm_fd(), &readable);
        ready = select(most + 1, &readable, NULL, NULL, &second);
        if (ready < 0)
            die("select");
        if (!ready) {
            if (cm_update(flow, (uint64_t)(sender.sent - sender.known) * OCTETS, 0, CM_LOST_FEEDBACK, 0) < 0)
                die("cm_update");
            sender.known = sender.sent;
        }
        if (FD_ISSET(cm_fd(), &readable) && cm_dispatch() < 0)
            die("cm_dispatch");
        if (FD_ISSET(sender.fd, &readable)) {
            uint32_t head[2], lost;

            if (recv(sender.fd, head, sizeof(head), 0) != sizeof(head))
                die("recv");
            /* A datagram that arrived out of order; it already counts as lost. */
            if (head[0] < sender.known)
                continue;
            lost = head[0] - sender.known;
            sender.known = head[0] + 1;
            sender.arrived++;
            if (cm_update(flow, (uint64_t)(lost + 1) * OCTETS, OCTETS, lost ? CM_LOSS_FEEDBACK : CM_NO_CONGESTION,
                          (uint64_t)(microseconds() - head[1]) * 1000 + 1) < 0)
                die("cm_update");
        }
    }
    if (cm_query(flow, &status) < 0)
        die("cm_query");
    printf("%u of %u arrived, rate %llu\n", sender.arrived, sender.count, (unsigned long long)status.rate);
    if (cm_close(flow) < 0)
        die("cm_close");
    return 0;
}

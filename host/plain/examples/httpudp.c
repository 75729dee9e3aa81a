/* SPDX-License-Identifier: Apache-2.0
 * httpudp: files by HTTP over UDP, behind stateless TCP (docs/plain.md). A datagram is the head of a request, the one that goes back
 * is the whole response. Nothing is kept between two, so any number of these may run, anywhere.
 *
 *   cc -O2 -o httpudp httpudp.c && ./httpudp 8081 DIR
 *   rivulet serve --back-end udp://127.0.0.1:8081 --deterministic --plain stateless ...
 *
 * The same file gives the same octets, so with files that do not change it is deterministic: no Date, no Last-Modified. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Octets of the longest file: what stateless TCP carries, with its head. */
#define LONGEST 15000

static int answer(char *out, size_t room, const char *status, const char *body, size_t length, int head)
{
    int n = snprintf(out, room,
                     "HTTP/1.1 %s\r\nServer: httpudp\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                     status, length);
    if (head)
        return n;
    memcpy(out + n, body, length);
    return n + (int)length;
}

static int say(char *out, size_t room, const char *status, int head)
{
    char body[100];
    int n = snprintf(body, sizeof body, "%s\n", status);
    return answer(out, room, status, body, (size_t)n, head);
}

/* The response to a request; octets of it. */
static int respond(int dir, char *request, char *out, size_t room)
{
    static char body[LONGEST + 1];
    int head = strncmp(request, "HEAD ", 5) == 0;
    char *target = strchr(request, ' ');
    if (!target || (!head && strncmp(request, "GET ", 4) != 0))
        return say(out, room, "501 Not Implemented", 0);
    target++;
    target[strcspn(target, " ?\r\n")] = 0;
    target += strspn(target, "/");

    /* Nothing outside of the directory, whatever the name says. */
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK, .resolve = RESOLVE_BENEATH};
    int fd = (int)syscall(SYS_openat2, dir, *target ? target : "index.html", &how, sizeof how);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode)) {
        if (fd >= 0)
            close(fd);
        return say(out, room, "404 Not Found", head);
    }
    ssize_t length = read(fd, body, sizeof body);
    close(fd);
    if (length < 0 || length > LONGEST)
        return say(out, room, "413 Content Too Large", head);
    return answer(out, room, "200 OK", body, (size_t)length, head);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: httpudp PORT DIR\n");
        return 2;
    }
    int dir = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[1]))};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (dir < 0 || fd < 0 || bind(fd, (struct sockaddr *)&here, sizeof here) != 0) {
        perror("httpudp");
        return 1;
    }
    for (;;) {
        static char request[2048], out[LONGEST + 1000];
        struct sockaddr_storage from;
        socklen_t size = sizeof from;
        ssize_t n = recvfrom(fd, request, sizeof request - 1, 0, (struct sockaddr *)&from, &size);
        if (n < 0)
            continue;
        request[n] = 0;
        int length = respond(dir, request, out, sizeof out);
        /* What is lost here is asked for again. */
        (void)sendto(fd, out, (size_t)length, 0, (struct sockaddr *)&from, size);
    }
}

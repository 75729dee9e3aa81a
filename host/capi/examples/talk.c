/* A client: sends its arguments line by line on one connection, prints the answers, then sends all
 * of them again in parallel: talk ADDRESS PORT LINE... */
#include <rivulet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads one line of a stream. */
static int read_line(int fd, int stream, char *line, size_t room) {
    size_t n = 0;
    while (n + 1 < room) {
        ssize_t got = msk_read(fd, stream, line + n, 1, 10000);
        if (got <= 0) return got == 0 && n > 0 ? 0 : -1;
        if (line[n++] == '\n') break;
    }
    line[n] = 0;
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s ADDRESS PORT LINE...\n", argv[0]);
        return 2;
    }
    int fd = msk_connect(argv[1], (uint16_t)atoi(argv[2]));
    if (fd < 0) {
        fprintf(stderr, "%s\n", msk_error());
        return 1;
    }
    char line[1024];
    for (int i = 3; i < argc; i++) {
        int n = snprintf(line, sizeof line, "%s\n", argv[i]);
        if (msk_write(fd, line, n) != n || read_line(fd, 0, line, sizeof line) < 0) {
            fprintf(stderr, "%s\n", msk_error());
            return 1;
        }
        printf("%s", line);
        fflush(stdout);
        if (getenv("TALK_PAUSE")) getchar();
    }
    int streams[64], count = 0;
    for (int i = 3; i < argc && count < 64; i++) {
        int n = snprintf(line, sizeof line, "%s\n", argv[i]);
        if ((streams[count++] = msk_request(fd, line, n, 0)) < 0) {
            fprintf(stderr, "%s\n", msk_error());
            return 1;
        }
    }
    for (int i = 0; i < count; i++) {
        if (read_line(fd, streams[i], line, sizeof line) < 0) {
            fprintf(stderr, "%s\n", msk_error());
            return 1;
        }
        printf("parallel %s", line);
    }
    msk_close(fd);
    return 0;
}

/* Echoes lines. The server keeps nothing: what a client said last comes back with its next line.
 *
 *     echo INTERFACE ADDRESS PORT KEYFILE
 *     echo INTERFACE AGENT NAME               services and keys from rivulet agent, or from a controller
 */
#include <rivulet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: %s INTERFACE ADDRESS PORT KEYFILE | INTERFACE AGENT NAME\n", argv[0]);
        return 2;
    }
    int fd = argc == 4 ? msk_listen_agent(argv[1], argv[2], argv[3])
                       : msk_listen(argv[1], argv[2], (uint16_t)atoi(argv[3]), argv[4]);
    if (fd < 0) {
        fprintf(stderr, "%s\n", msk_error());
        return 1;
    }
    minisock *events[64];
    for (;;) {
        int count = msk_events(fd, events, 64, -1);
        for (int i = 0; i < count; i++) {
            size_t length, last = 0;
            const char *input = msk_input(events[i], &length, NULL);
            /* How many lines this client has sent before: it says so itself, and cannot lie. */
            unsigned lines = 0;
            const void *before = msk_ucont(events[i], &last);
            if (before && last == sizeof lines) memcpy(&lines, before, sizeof lines);

            const char *end = length ? memchr(input, '\n', length) : NULL;
            if (!end) { /* not a whole line yet, or no input at all */
                msk_consume(fd, events[i], 0);
                msk_send(fd, events[i], NULL, 0);
                continue;
            }
            size_t line = (size_t)(end - input) + 1;
            char answer[MSK_MAX_SEND];
            int n = snprintf(answer, sizeof answer, "%u: %.*s", ++lines, (int)(line > 800 ? 800 : line), input);
            msk_consume(fd, events[i], line);
            msk_setucont(fd, events[i], 0, (const char *)&lines, sizeof lines);
            if (msk_send(fd, events[i], answer, (size_t)n) < 0) fprintf(stderr, "%s\n", msk_error());
        }
    }
}

/* Answers any input with the time and ends the connection: clock INTERFACE ADDRESS PORT KEYFILE */
#include <rivulet.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s INTERFACE ADDRESS PORT KEYFILE\n", argv[0]);
        return 2;
    }
    int fd = msk_listen(argv[1], argv[2], (uint16_t)atoi(argv[3]), argv[4]);
    if (fd < 0) {
        fprintf(stderr, "%s\n", msk_error());
        return 1;
    }
    for (;;) {
        minisock *event;
        if (msk_events(fd, &event, 1, -1) != 1 || msk_kind(event) == MSK_CLOSE) continue;
        time_t now = time(NULL);
        char text[64];
        size_t length = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ\n", gmtime(&now));
        if (msk_sendlast(fd, event, text, length) < 0) fprintf(stderr, "%s\n", msk_error());
    }
}

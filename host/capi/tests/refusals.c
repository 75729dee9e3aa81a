/* Calls the functions of rivulet.h with arguments that they refuse: with four arguments the
 * server's functions (refusals INTERFACE ADDRESS PORT KEYFILE), with two the client's (refusals
 * ADDRESS PORT). */
#include <errno.h>
#include <rivulet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REFUSED(call, number)                                                                                          \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        if ((call) != -1 || errno != (number) || !*msk_error()) {                                                      \
            fprintf(stderr, "line %d: %s: %s, %s\n", __LINE__, #call, strerror(errno), msk_error());                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define IS(what, number)                                                                                               \
    do {                                                                                                               \
        long long is = (long long)(what);                                                                              \
        if (is != (number)) {                                                                                          \
            fprintf(stderr, "line %d: %s is %lld, %s\n", __LINE__, #what, is, msk_error());                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void nulls(int fd, minisock *event) {
    size_t length = 7;
    uint64_t offset = 7;
    struct sockaddr_storage peer;
    socklen_t room = sizeof peer;
    tiovec piece = { NULL, 5 };
    fiovec file = { NULL, 0, 5 };
    mskdesc answer = { event, NULL, 5 };
    msk_collection collection = { NULL, 5 };

    REFUSED(msk_kind(NULL), EINVAL);
    REFUSED(msk_is_last_input(NULL), EINVAL);
    REFUSED(msk_packets(NULL), EINVAL);
    REFUSED(msk_peer(NULL, (struct sockaddr *)&peer, &room), EINVAL);
    IS(msk_input(NULL, &length, &offset) == NULL && length == 0 && offset == 0, 1);
    length = 7;
    IS(msk_ucont(NULL, &length) == NULL && length == 0, 1);
    REFUSED(msk_consume(fd, NULL, 0), EINVAL);
    REFUSED(msk_send(fd, NULL, "x", 1), EINVAL);
    REFUSED(msk_drop(fd, NULL), EINVAL);
    REFUSED(msk_detach(fd, NULL), EINVAL);

    REFUSED(msk_setucont(fd, event, 0, NULL, 5), EINVAL);
    REFUSED(msk_setucont(fd, event, 0, "x", (size_t)-1), EMSGSIZE);
    REFUSED(msk_send(fd, event, NULL, 5), EINVAL);
    REFUSED(msk_send(fd, event, "x", (size_t)-1), EMSGSIZE);
    REFUSED(msk_sendlast(fd, event, NULL, 5), EINVAL);
    REFUSED(msk_sendv(fd, event, NULL, 1), EINVAL);
    REFUSED(msk_sendv(fd, event, &piece, -1), EINVAL);
    REFUSED(msk_sendv(fd, event, &piece, 1), EINVAL);
    REFUSED(msk_sendfilev(fd, event, NULL, 1), EINVAL);
    REFUSED(msk_sendfilev(fd, event, &file, -1), EINVAL);
    REFUSED(msk_sendfilev(fd, event, &file, 1), EINVAL);
    REFUSED(msk_sendbulk(fd, NULL, 1), EINVAL);
    IS(msk_sendbulk(fd, &answer, 1), 0);
    REFUSED(msk_install_events(fd, NULL, 1), EINVAL);
    IS(msk_install_events(fd, &collection, 1), 0);
    msk_free_collection(NULL, 1);
}

/* Lists wrong minisockets beside a good one; then the good one is moved and becomes an event again. */
static minisock *moved(int fd, minisock *event) {
    minisock *stranger = NULL;
    extract_mskdesc_in wrong[] = { { event }, { (minisock *)&stranger } }, twice[] = { { event }, { event } };
    msk_collection out[2] = { { NULL, 0 }, { NULL, 0 } };
    int room = 2;

    REFUSED(msk_extract_events(fd, wrong, 2, out, &room), EINVAL);
    IS(room, 0);
    room = 2;
    REFUSED(msk_extract_events(fd, twice, 2, out, &room), EINVAL);
    IS(room, 0);
    room = 2;
    REFUSED(msk_extract_events(fd, NULL, 1, out, &room), EINVAL);
    IS(room, 0);
    room = 2;
    REFUSED(msk_extract_events(fd, twice, -1, out, &room), EINVAL);
    IS(room, 0);
    room = 2;
    REFUSED(msk_extract_events(-1, twice, 1, out, &room), EBADF);
    IS(room, 0);
    REFUSED(msk_extract_events(fd, twice, 1, out, NULL), EFAULT);
    room = 2;
    REFUSED(msk_extract_events(fd, twice, 1, NULL, &room), EFAULT);
    IS(room, 0);
    IS(out[0].data == NULL && out[1].data == NULL, 1);
    room = 2;
    IS(msk_extract_events(fd, twice, 1, out, &room), 0);
    IS(room, 1);
    IS(msk_install_events(fd, out, 1), 1);
    msk_free_collection(out, 1);
    IS(out[0].data == NULL && out[0].length == 0, 1);
    REFUSED(msk_send(fd, event, "x", 1), EINVAL);
    IS(msk_events(fd, &event, 1, 0), 1);
    return event;
}

static int serve(char **argv) {
    int checked = 0, fd = msk_listen(argv[1], argv[2], (uint16_t)atoi(argv[3]), argv[4]);
    IS(fd >= 0, 1);
    REFUSED(msk_listen(NULL, argv[2], 7, argv[4]), EINVAL);
    REFUSED(msk_events(fd, NULL, 1, 0), EINVAL);
    for (;;) {
        minisock *event;
        if (msk_events(fd, &event, 1, -1) != 1 || msk_kind(event) == MSK_CLOSE) continue;
        if (!checked) {
            nulls(fd, event);
            event = moved(fd, event);
            checked = 1;
        }
        IS(msk_sendlast(fd, event, "still here\n", 11), 0);
    }
}

static int ask(char **argv) {
    char text[12] = { 0 };
    int fd = msk_connect(argv[1], (uint16_t)atoi(argv[2]));
    IS(fd >= 0, 1);
    REFUSED(msk_connect(NULL, 7), EINVAL);
    REFUSED(msk_write(fd, NULL, 5), EINVAL);
    REFUSED(msk_write(fd, "x", -1), EINVAL);
    REFUSED(msk_request(fd, NULL, 5, 0), EINVAL);
    REFUSED(msk_request(fd, "x", -1, 0), EINVAL);
    REFUSED(msk_read(fd, 0, NULL, 5, 0), EINVAL);
    REFUSED(msk_read(fd, 0, text, (size_t)-1, 0), EINVAL);
    REFUSED(msk_read(fd, 65536, text, 5, 0), EINVAL);
    REFUSED(msk_read(fd, -1, text, 5, 0), EINVAL);
    IS(msk_write(fd, "now\n", 4), 4);
    for (size_t n = 0; n < 11;) {
        ssize_t got = msk_read(fd, 0, text + n, 11 - n, 10000);
        IS(got > 0, 1);
        n += (size_t)got;
    }
    printf("%s", text);
    return msk_close(fd);
}

int main(int argc, char **argv) { return argc == 5 ? serve(argv) : argc == 3 ? ask(argv) : 2; }

"""What a program expects of TCP sockets: run over kernel TCP, and over Rivulet, with the same result.

    sockets.py HOST PORT MODE      MODE: "tcp" (connect says what happened) or "early" (connect is done at once)
"""

import array
import asyncio
import errno
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import termios

HOST, PORT, MODE = sys.argv[1], int(sys.argv[2]), sys.argv[3]
SIZE = 500_000
GET = b"GET /file HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
HEAD = b"HEAD /file HTTP/1.1\r\nHost: h\r\n\r\n"


def until(s, done):
    data = b""
    while not done(data):
        more = s.recv(65536)
        assert more, f"ended after {len(data)} octets"
        data += more
    return data


def dial(port=PORT):
    s = socket.socket()
    s.settimeout(20)
    s.connect((HOST, port))
    return s


def refused():
    """A closed port: ECONNREFUSED, from connect or from the first call behind it; then the end."""
    s = socket.socket()
    try:
        s.connect((HOST, PORT + 1))
        assert MODE == "early", "connect to a closed port"
        s.recv(1)
        raise AssertionError("recv from a closed port")
    except ConnectionRefusedError:
        pass
    if MODE == "early":
        assert s.recv(1) == b"", "told once"


def in_progress():
    """Non-blocking connect: EINPROGRESS, writable when it is done, SO_ERROR 0; an error likewise."""
    for port, wanted in ((PORT, 0), (PORT + 1, errno.ECONNREFUSED)):
        s = socket.socket()
        s.setblocking(False)
        code = s.connect_ex((HOST, port))
        if MODE == "early":
            assert code == 0, errno.errorcode[code]
            events = select.POLLIN if wanted else select.POLLOUT
        else:
            # TCP may be told of a refusal at once.
            assert code in (errno.EINPROGRESS, wanted), code
            events = select.POLLOUT
        if code == errno.EINPROGRESS or MODE == "early":
            poll = select.poll()
            poll.register(s, events)
            assert poll.poll(20_000), "nothing happened"
            got = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            assert got == wanted, (got, wanted)
            assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0, "told once"
        if not wanted:
            assert s.getpeername() == (HOST, PORT)
            try:
                s.recv(1)
                raise AssertionError("octets from nowhere")
            except BlockingIOError as e:
                assert e.errno == errno.EAGAIN
        s.close()


def edges():
    """Edge-triggered epoll: an edge for whatever came, and one for the end."""
    s = dial()
    s.setblocking(False)
    poll = select.epoll()
    poll.register(s, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
    s.send(GET)
    got, ended = 0, False
    while not ended:
        events = poll.poll(20)
        assert events, "no edge"
        while True:
            try:
                data = s.recv(65536)
            except BlockingIOError:
                break
            if not data:
                ended = True
                break
            got += len(data)
    assert got > SIZE
    assert s.recv(1) == b"", "the end stays"


def asyncio_works():
    """An event loop of the usual kind, several connections at once, and a refusal."""

    async def one():
        reader, writer = await asyncio.open_connection(HOST, PORT)
        writer.write(GET)
        data = await reader.read(-1)
        writer.close()
        return len(data)

    async def all_of_them():
        sizes = await asyncio.gather(*(one() for _ in range(5)))
        assert all(size > SIZE for size in sizes), sizes
        try:
            reader, _ = await asyncio.open_connection(HOST, PORT + 1)
            await reader.read(1)
            raise AssertionError("no refusal")
        except ConnectionRefusedError:
            pass

    asyncio.run(all_of_them())


def halves():
    """shutdown of one direction leaves the other; writing behind it is EPIPE and no signal kills us."""
    s = dial()
    s.sendall(GET)
    s.shutdown(socket.SHUT_WR)
    try:
        s.send(b"more")
        raise AssertionError("wrote behind shutdown")
    except BrokenPipeError:
        pass
    size = 0
    while data := s.recv(65536):
        size += len(data)
    assert size > SIZE


def sigpipe():
    """Without a handler SIGPIPE ends the program; MSG_NOSIGNAL asks for EPIPE alone."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        s = dial()
        s.shutdown(socket.SHUT_WR)
        try:
            s.send(b"x", socket.MSG_NOSIGNAL)
            os._exit(1)
        except BrokenPipeError:
            pass
        s.send(b"x")
        os._exit(2)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGPIPE


def names_and_options():
    s = dial()
    assert s.getpeername() == (HOST, PORT) and s.getsockname()[1] != 0
    assert s.family == socket.AF_INET
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_INET
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == socket.IPPROTO_TCP
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    s = socket.socket()
    s.connect((HOST, PORT))
    assert s.connect_ex((HOST, PORT)) == errno.EISCONN


def looking_ahead():
    """MSG_PEEK, FIONREAD, readv and sendmsg; a receive timeout is EAGAIN."""
    s = dial()
    assert s.sendmsg([HEAD[:10], HEAD[10:]]) == len(HEAD)
    peeked = s.recv(4, socket.MSG_PEEK)
    waiting = array.array("i", [0])
    fcntl.ioctl(s, termios.FIONREAD, waiting)
    assert peeked == b"HTTP" and waiting[0] >= 4
    first = bytearray(4)
    assert os.readv(s.fileno(), [first]) == 4 and bytes(first) == b"HTTP"
    until(s, lambda d: d.endswith(b"\r\n\r\n"))
    s.settimeout(None)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, (0).to_bytes(8, "little") + (50_000).to_bytes(8, "little"))
    try:
        s.recv(1)
        raise AssertionError("octets from nowhere")
    except BlockingIOError:
        pass


def families():
    """fork, dup and exec: the connection belongs to whoever holds a descriptor of it."""
    s = dial()
    pid = os.fork()
    if pid == 0:
        os.write(s.fileno(), HEAD)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    until(s, lambda d: d.endswith(b"\r\n\r\n"))
    code = "import socket,sys; s=socket.socket(fileno=0); s.sendall(sys.argv[1].encode()); print(s.getpeername())"
    out = subprocess.run([sys.executable, "-c", code, HEAD.decode()], stdin=s, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str((HOST, PORT)), out.stdout
    copy = s.dup()
    s.close()
    until(copy, lambda d: d.endswith(b"\r\n\r\n"))
    # Close-on-exec survives connect, as it is the descriptor's.
    assert not copy.get_inheritable()


def sendfile():
    path = f"/proc/{os.getpid()}/cwd/request"
    with open(path, "wb") as f:
        f.write(GET)
    s = dial()
    with open(path, "rb") as f:
        sent = os.sendfile(s.fileno(), f.fileno(), 0, len(GET))
    assert sent == len(GET)
    size = 0
    while data := s.recv(65536):
        size += len(data)
    assert size > SIZE


def no_route():
    s = socket.socket()
    try:
        s.connect(("203.0.113.1", 80))
        raise AssertionError("a way to nowhere")
    except OSError as e:
        assert e.errno == errno.ENETUNREACH, e


for test in (refused, in_progress, edges, asyncio_works, halves, sigpipe, names_and_options, looking_ahead, families, sendfile, no_route):  # fmt: skip
    test()
    print(test.__name__, flush=True)
print("all")

"""What calls on TCP sockets give, result and errno, one line of JSON a case: to be the same over kernel TCP and Rivulet.

    compare.py HOST PORT MODE FOLDER SILENT

MODE: "tcp" (kernel), "wait" (`rivulet run --wait`) or "early" (`rivulet run`). FOLDER is what the server serves and stores
uploads in, SILENT an address that answers nothing. An errno that says why a connection failed is told as WHY, since
connections fail in different ways here. docs/hosts.md has what is known to differ, and is left out or marked here.
"""

import array
import ctypes
import errno
import faulthandler
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import termios
import threading
import time

HOST, PORT, MODE, FOLDER, SILENT = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
HEAD = b"HEAD /file HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b"HEAD /file HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
PATIENCE_S = 60
REASONS = {errno.ECONNRESET, errno.ECONNREFUSED, errno.ETIMEDOUT}
NAMES = [(getattr(select, "POLL" + name), name) for name in ("IN", "OUT", "ERR", "HUP", "RDHUP")]
LIBC = ctypes.CDLL(None, use_errno=True)
signals = 0


def hear(number, frame):
    global signals
    signals += 1


def signal_count():
    """Signals so far; handlers run when Python comes to it."""
    time.sleep(0)
    return signals


def tell(call, *arguments):
    """What a call gives: its result, or the name of its errno."""
    try:
        result = call(*arguments)
    except OSError as e:
        return "WHY" if e.errno in REASONS else errno.errorcode[e.errno]
    return result.decode("latin1") if isinstance(result, bytes) else result


def events(bits):
    return [name for bit, name in NAMES if bits & bit]


def state(s, wanted=0, wait=True):
    """What poll says, once it says all of `wanted`."""
    poll = select.poll()
    poll.register(s, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
    end = time.monotonic() + PATIENCE_S
    while True:
        bits = dict(poll.poll(0)).get(s.fileno(), 0)
        if bits & wanted == wanted or not wait:
            return events(bits)
        assert time.monotonic() < end, f"poll says {events(bits)}, not {events(wanted)}"
        time.sleep(0.002)


def dial(port=PORT, s=None):
    s = s or socket.socket()
    s.settimeout(PATIENCE_S)
    s.connect((HOST, port))
    s.settimeout(None)
    return s


def warm():
    """A connection over which whole answers come at once: the first may come in pieces."""
    s = dial()
    answered(s)
    return s


def answered(s, request=HEAD):
    """Its first line."""
    if request:
        s.sendall(request)
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        more = s.recv(4096)
        assert more, "ended early"
        data += more
    return data.split(b"\r\n")[0].decode()


def broken():
    """A connection that was reset, with nothing left to read."""
    if MODE == "tcp":
        listener = socket.create_server(("127.0.0.1", 0))
        s = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        listener.close()
    elif MODE == "early":
        s = socket.socket()
        s.connect((HOST, PORT + 1))
    else:
        s = cut()
    state(s, select.POLLHUP)
    return s


def cut():
    """A connection that fails because what it brings was taken away."""
    descriptor, path = tempfile.mkstemp(dir=FOLDER)
    os.truncate(descriptor, 30_000_000)
    os.close(descriptor)
    s = dial()
    s.sendall(f"GET /{os.path.basename(path)} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert s.recv(1)
    os.truncate(path, 0)
    waiting = array.array("i", [0])
    poll = select.poll()
    poll.register(s, select.POLLIN)
    while True:
        assert poll.poll(PATIENCE_S * 1000), "nothing comes"
        fcntl.ioctl(s, termios.FIONREAD, waiting)
        if not waiting[0]:
            return s
        s.recv(waiting[0])


def writes_behind_a_reset():
    """The reason once and without a signal, then EPIPE with it."""
    with open("request", "wb") as f:
        f.write(HEAD)
    source = open("request", "rb")
    ways = {
        "write": lambda s: os.write(s.fileno(), b"x"),
        "writev": lambda s: os.writev(s.fileno(), [b"x", b"y"]),
        "send": lambda s: s.send(b"x"),
        "sendmsg": lambda s: s.sendmsg([b"x"]),
        "sendfile": lambda s: os.sendfile(s.fileno(), source.fileno(), 0, 4),
    }
    if MODE == "wait":
        ways = {"write": ways["write"]}
    for name, way in ways.items():
        s, before = broken(), signal_count()
        said = [tell(way, s), signal_count() - before, tell(way, s), signal_count() - before]
        yield name, [*said, tell(s.send, b"x", socket.MSG_NOSIGNAL), signal_count() - before, tell(s.recv, 1)]


def reads_behind_a_reset():
    s = broken()
    yield "names", [tell(s.getpeername), s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]]
    # A Unix socket has no error to show here: docs/hosts.md.
    yield "poll", [e for e in state(s) if e != "ERR"]
    yield "read", [tell(s.recv, 1), tell(s.recv, 1), tell(s.send, b"x", socket.MSG_NOSIGNAL)]
    yield "after", [e for e in state(s) if e != "ERR"]
    if MODE != "wait":
        s = broken()
        error = [s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for _ in range(2)]
        yield "error", [error[0] in REASONS, error[1], tell(s.recv, 1), tell(s.send, b"x", socket.MSG_NOSIGNAL)]


def readiness():
    s = dial()
    yield "open", state(s, select.POLLOUT)
    s.sendall(HEAD)
    yield "answered", state(s, select.POLLIN)
    yield "select", [len(part) for part in select.select([s], [s], [s], 0)]
    yield "read", [answered(s, b""), state(s)]
    s.sendall(LAST)
    yield "ended", state(s, select.POLLRDHUP)
    yield "end", [answered(s, b""), tell(s.recv, 1), tell(s.recv, 1)]
    s.shutdown(socket.SHUT_WR)
    yield "over", state(s, select.POLLHUP)
    yield "names", tell(lambda: s.getpeername() and "a name") if MODE != "tcp" else "ENOTCONN"


def epoll_kinds():
    """Level, edge and once."""
    for name, flags in (("level", 0), ("edge", select.EPOLLET), ("once", select.EPOLLONESHOT)):
        s = warm()
        poll = select.epoll()
        poll.register(s, select.EPOLLIN | select.EPOLLRDHUP | flags)
        s.sendall(HEAD)
        first = [events(bits) for _, bits in poll.poll(PATIENCE_S)]
        second = [events(bits) for _, bits in poll.poll(0)]
        poll.modify(s, select.EPOLLIN | select.EPOLLRDHUP | flags)
        third = [events(bits) for _, bits in poll.poll(0)]
        poll.unregister(s)
        yield name, [first, second, third, poll.poll(0)]


def epoll_before_connect():
    """A socket that is in a set already when it is connected stays in it."""
    for name, flags in (("level", 0), ("edge", select.EPOLLET)):
        s = socket.socket()
        s.setblocking(False)
        poll, changed, left = select.epoll(), select.epoll(), select.epoll()
        poll.register(s, select.EPOLLIN | select.EPOLLOUT | flags)
        changed.register(s, select.EPOLLOUT)
        changed.modify(s, select.EPOLLIN)
        left.register(s, select.EPOLLIN)
        left.unregister(s)
        poll.poll(0)
        code = s.connect_ex((HOST, PORT))
        assert code in (0, errno.EINPROGRESS), code
        state(s, select.POLLOUT)
        opened = [[fd == s.fileno(), events(bits)] for fd, bits in poll.poll(PATIENCE_S)]
        s.send(HEAD)
        heard = [[fd == s.fileno(), events(bits)] for fd, bits in changed.poll(PATIENCE_S)]
        again = [events(bits) for _, bits in poll.poll(0)]
        yield name, [opened, heard, again, left.poll(0), tell(poll.register, s, select.EPOLLIN)]
        poll.modify(s, select.EPOLLIN)
        s.close()
        yield name + " closed", [poll.poll(0), changed.poll(0)]


def options():
    names = ["TCP_NODELAY", "TCP_CORK", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT"]
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 3)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 16)
    dial(s=s)
    yield "kept", [
        s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        struct.unpack("ii", s.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)),
        s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT),
        s.getsockopt(socket.IPPROTO_IP, socket.IP_TOS),
    ]
    yield "tcp", [(name, s.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))) for name in names]
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    yield "set", [s.getsockopt(socket.IPPROTO_TCP, n) for n in (socket.TCP_NODELAY, socket.TCP_KEEPCNT)]
    yield "refused", [
        tell(s.setsockopt, socket.IPPROTO_TCP, socket.TCP_KEEPCNT, -1),
        tell(s.setsockopt, socket.IPPROTO_TCP, 200, 1),
        tell(s.getsockopt, socket.IPPROTO_TCP, 200),
        tell(s.getsockopt, socket.SOL_SOCKET, 2000),
    ]
    # Encryption by the kernel, which a kernel may have for its own TCP, is not to be believed in.
    yield "tls", MODE == "tcp" or tell(s.setsockopt, socket.IPPROTO_TCP, 31, b"tls") in ("ENOTCONN", "ENOENT")
    yield "state", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    yield "kind", [s.getsockopt(socket.SOL_SOCKET, n) for n in (socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_TYPE)]


def names():
    s = warm()
    yield "peer", s.getpeername() == (HOST, PORT)
    s.sendall(HEAD)
    data, address = s.recvfrom(1)
    yield "recvfrom", [data.decode(), address]
    data, ancillary, flags, address = s.recvmsg(3, 100)
    yield "recvmsg", [data.decode(), ancillary, flags, address]
    answered(s, b"")
    yield "sendto", tell(s.sendto, HEAD, ("192.0.2.77", 9))
    yield "sendmsg", tell(s.sendmsg, [HEAD], [], 0, ("192.0.2.77", 9))
    if socket.has_ipv6:
        six = socket.socket(socket.AF_INET6)
        six.settimeout(PATIENCE_S)
        six.connect((f"::ffff:{HOST}", PORT))
        yield "mapped", [six.getpeername(), six.getsockname()[0], six.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)]


def flags():
    s = dial()
    s.setblocking(False)
    yield "empty", [tell(s.recv, 1), tell(s.recv, 1, socket.MSG_PEEK), tell(s.recv, 0)]
    fcntl.ioctl(s, 0x5421, array.array("i", [0]))  # FIONBIO
    yield "FIONBIO", [fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK, tell(s.recv, 1, socket.MSG_DONTWAIT)]
    yield "errors", [tell(s.recv, 1, socket.MSG_ERRQUEUE), tell(s.recv, 1, socket.MSG_OOB)]
    s = warm()
    s.sendall(HEAD)
    state(s, select.POLLIN)
    yield "ahead", [tell(s.recv, 4, socket.MSG_PEEK), tell(s.recv, 4, socket.MSG_WAITALL), tell(s.recv, 0)]
    answered(s, b"")
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 30_000))
    yield "timeout", [tell(s.recv, 1), tell(s.recv, 10, socket.MSG_WAITALL)]


def directions():
    """A direction that is shut leaves the other one."""
    s = dial()
    s.shutdown(socket.SHUT_RD)
    yield "no more read", [tell(s.recv, 1)]
    # Answers come meanwhile, which nobody reads.
    for _ in range(10):
        s.sendall(HEAD)
        time.sleep(0.01)
    yield "still writes", [tell(s.send, LAST), "OUT" in state(s)]
    s = dial()
    s.shutdown(socket.SHUT_WR)
    yield "nothing written", [tell(s.recv, 1), state(s)]
    s = dial()
    s.sendall(HEAD)
    yield "no more written", [tell(s.shutdown, 7), tell(s.shutdown, socket.SHUT_WR)]
    data = b""
    while more := s.recv(65536):
        data += more
    yield "read to the end", data.split(b"\r\n")[0].decode()


def copies():
    s = dial()
    os.dup2(s.fileno(), 300)
    s.close()
    copy = socket.socket(fileno=300)
    yield "dup2", answered(copy)
    pid = os.fork()
    if pid == 0:
        copy.close()
        os._exit(0)
    os.waitpid(pid, 0)
    yield "fork", answered(copy)
    yield "nothing", [tell(socket.socket().recv, 1), tell(socket.socket().getpeername)]


def closing():
    """What was written before close is delivered."""
    for size in (10, 300_000):
        name = f"closed-{MODE}-{size}"
        body = os.urandom(size)
        s = dial()
        s.sendall(f"PUT /{name} HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n".encode() + body)
        s.close()
        path = os.path.join(FOLDER, name)
        end = time.monotonic() + PATIENCE_S
        while not os.path.exists(path):
            assert time.monotonic() < end, f"{size} octets did not arrive"
            time.sleep(0.01)
        with open(path, "rb") as f:
            yield str(size), f.read() == body


def connecting():
    """connect that does not wait, or not for ever; and connect once more."""
    s = socket.socket()
    s.connect((HOST, PORT))
    yield "twice", tell(s.connect, (HOST, PORT))
    if MODE == "early":
        return
    s = socket.socket()
    s.setblocking(False)
    yield "silent", [
        tell(s.connect, (SILENT, PORT)),
        tell(s.connect, (SILENT, PORT)),
        tell(s.getpeername),
        tell(s.send, b"x"),
        tell(s.recv, 1),
        state(s, wait=False),
        s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0],
    ]
    s = socket.socket()
    s.setblocking(False)
    opened = [s.connect_ex((HOST, PORT)) in (0, errno.EINPROGRESS)]
    state(s, select.POLLOUT)
    yield "opened", [*opened, tell(s.connect, (HOST, PORT)), tell(s.connect, (HOST, PORT))]
    s = socket.socket()
    s.setblocking(False)
    code = s.connect_ex((HOST, PORT + 1))
    if code == errno.EINPROGRESS:
        state(s, select.POLLOUT)
        code = s.connect_ex((HOST, PORT + 1))
    s.setblocking(True)
    yield "refused", [errno.errorcode[code], tell(s.connect, (HOST, PORT)), answered(s)]
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
    yield "bounded", tell(s.connect, (SILENT, PORT))
    s = socket.socket()
    yield "signal", [interrupted(s), tell(s.getpeername), state(s, wait=False)]


def interrupted(s):
    """connect(2) itself, since Python calls it again; a handler that asks for no restart ends its wait."""
    address = struct.pack("!2xH4s8x", PORT, socket.inet_aton(SILENT))
    address = struct.pack("H", socket.AF_INET) + address[2:]
    heard = threading.Event()
    signal.signal(signal.SIGALRM, lambda number, frame: heard.set())
    signal.siginterrupt(signal.SIGALRM, True)
    # Again and again: the first may come before the call.
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        done = LIBC.connect(s.fileno(), address, len(address))
        return [done, errno.errorcode[ctypes.get_errno()]]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


# What hangs is to end in words.
faulthandler.dump_traceback_later(3 * PATIENCE_S, exit=True)
signal.signal(signal.SIGPIPE, hear)
ALL = (options, names, flags, readiness, epoll_kinds, epoll_before_connect, directions, copies, closing, connecting,
       reads_behind_a_reset, writes_behind_a_reset)  # fmt: skip
for case in ALL:
    for what, said in case():
        print(json.dumps([f"{case.__name__}: {what}", said]), flush=True)
print(json.dumps(["all", True]))

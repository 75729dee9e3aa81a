"""Long sessions: sshd and a websocket echo as servers, and clients that send numbered lines and wait for the echo.

    python -m rivulet_lab.talk serve-websocket ADDRESS PORT
    python -m rivulet_lab.talk websocket ADDRESS PORT
    python -m rivulet_lab.talk ssh ADDRESS PORT KEY

A client uses one connection until it gets SIGTERM, then prints as JSON how many lines were echoed in order, the longest
waits, and how the session ended; it also prints that if the session ends before.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .binaries import RackError

PAUSE_S = 0.02
"""Pause between an answer and the next line."""
GIVE_UP_S = 60.0
"""Seconds after which a line counts as unanswered."""
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""GUID of RFC 6455, section 1.3."""
_TEXT, _CLOSE = 0x81, 0x88


def _accept(key: bytes) -> bytes:
    return base64.b64encode(hashlib.sha1(key + _GUID).digest())


def _frame(kind: int, data: bytes, mask: bytes = b"") -> bytes:
    """A whole frame of less than 126 bytes (RFC 6455, section 5.2)."""
    head = bytes([kind, len(data) | (0x80 if mask else 0)]) + mask
    return head + (bytes(byte ^ mask[n % 4] for n, byte in enumerate(data)) if mask else data)


def _exactly(stream: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            raise ConnectionError("the other end closed")
        data += more
    return data


def _read(stream: socket.socket) -> tuple[int, bytes]:
    kind, length = _exactly(stream, 2)
    mask = _exactly(stream, 4) if length & 0x80 else bytes(4)
    data = _exactly(stream, length & 0x7F)
    return kind, bytes(byte ^ mask[n % 4] for n, byte in enumerate(data))


def _head(stream: socket.socket) -> dict[bytes, bytes]:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        data += _exactly(stream, 1)
    lines = (line.partition(b":") for line in data.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _echo(stream: socket.socket) -> None:
    with stream:
        key = _head(stream).get(b"sec-websocket-key", b"")
        upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        stream.sendall(upgrade + b"Sec-WebSocket-Accept: " + _accept(key) + b"\r\n\r\n")
        while True:
            kind, data = _read(stream)
            stream.sendall(_frame(kind, data))
            if kind == _CLOSE:
                return


def serve_websocket(address: str, port: int) -> None:
    """Runs an echo server until it is killed. `::` accepts IPv4 too."""
    every = address == "::"
    family = socket.AF_INET6 if every else socket.AF_INET
    with socket.create_server((address, port), family=family, dualstack_ipv6=every) as listener:
        while True:
            stream, _ = listener.accept()
            threading.Thread(target=_quietly, args=(stream,), daemon=True).start()


def _quietly(stream: socket.socket) -> None:
    with contextlib.suppress(OSError):
        _echo(stream)


def websocket(address: str, port: int) -> Callable[[str], str]:
    """Opens a session; the returned function sends a line and returns its echo."""
    stream = socket.create_connection((address, port))
    stream.settimeout(GIVE_UP_S)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    key = base64.b64encode(os.urandom(16))
    ask = f"GET /echo HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    stream.sendall(ask.encode() + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n")
    if _head(stream).get(b"sec-websocket-accept") != _accept(key):
        raise ConnectionError("the server takes no websocket")

    def exchange(line: str) -> str:
        stream.sendall(_frame(_TEXT, line.encode(), os.urandom(4)))
        return _read(stream)[1].decode()

    return exchange


def ssh(address: str, port: int, key: str) -> Callable[[str], str]:
    """Opens an ssh session with a shell that echoes lines."""
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes", "LogLevel=ERROR")
    flags = [flag for option in options for flag in ("-o", option)]
    command = ["ssh", *flags, "-F", "none", "-i", key, "-p", str(port), f"root@{address}", "cat"]
    session = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    write, read = session.stdin, session.stdout
    assert write is not None and read is not None

    def exchange(line: str) -> str:
        write.write(f"{line}\n".encode())
        write.flush()
        if not select.select([read], [], [], GIVE_UP_S)[0]:
            raise TimeoutError("no answer")
        answer = read.readline()
        if not answer:
            raise ConnectionError(f"ssh ended with {session.wait()}")
        return answer.decode().rstrip("\n")

    return exchange


class _Over(Exception):
    pass


def talk(session: Callable[[], Callable[[str], str]]) -> dict[str, object]:
    """Sends lines until SIGTERM."""

    def over(_signal: int, _frame: object) -> None:
        raise _Over

    answers, longest, at, ended = 0, 0.0, 0.0, "terminated"
    waits: list[tuple[float, float]] = []
    try:
        exchange = session()
        # A session that fails during its setup has no results.
        signal.signal(signal.SIGTERM, over)
        print("talking", flush=True)
        while True:
            began = time.monotonic()
            if exchange(f"line {answers}") != f"line {answers}":
                ended = f"line {answers} had another echo"
                break
            took = time.monotonic() - began
            answers += 1
            waits.append((time.time() - took, took))
            if took > longest:
                longest, at = took, time.time() - took
            time.sleep(PAUSE_S)
    except _Over:
        pass
    except (OSError, ConnectionError) as error:
        ended = str(error)
    # Several longest waits with their times, so that a reader can assign each to a harm.
    waits.sort(key=lambda wait: -wait[1])
    longest_waits = [{"at": round(when, 3), "ms": round(1e3 * took, 1)} for when, took in waits[:20]]
    return {
        "answers": answers,
        "whole": ended == "terminated",
        "ended": ended,
        "longest_ms": round(1e3 * longest, 1),
        "longest_at": round(at, 3),
        "silences": longest_waits,
    }


def sshd(folder: Path, *listen: str) -> list[str]:
    """The command of an sshd with its own host key that accepts the key `folder`/client.

    Servers with the same folder are the same host for clients.
    """
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise RackError("sshd is not installed: `scripts/setup.sh --test` installs it (openssh-server)")
    folder.mkdir(parents=True, exist_ok=True)
    # sshd requires this directory, whatever its configuration.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for name in ("host", "client"):
        if not (folder / name).exists():
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
    shutil.copy(folder / "client.pub", folder / "authorized_keys")
    options = {
        "HostKey": folder / "host", "AuthorizedKeysFile": folder / "authorized_keys", "PidFile": "none", "UsePAM": "no",
        "StrictModes": "no", "PermitRootLogin": "prohibit-password", "PrintMotd": "no", "UseDNS": "no",
    }  # fmt: skip
    flags = [flag for name, value in options.items() for flag in ("-o", f"{name}={value}")]
    where = [flag for address in listen for flag in ("-o", f"ListenAddress={address}")]
    return [program, "-D", "-e", "-f", "/dev/null", *flags, *where]


def main() -> int:
    """The command."""
    what, address, port, *more = sys.argv[1:]
    if what == "serve-websocket":
        serve_websocket(address, int(port))
        return 0
    result = talk(lambda: ssh(address, int(port), *more) if what == "ssh" else websocket(address, int(port)))
    print(json.dumps(result), flush=True)
    return 0 if result["whole"] else 1


if __name__ == "__main__":
    sys.exit(main())

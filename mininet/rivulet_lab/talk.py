"""Sessions that last: sshd and a websocket echo as servers, and clients that say a numbered line again and again.

    python -m rivulet_lab.talk serve-websocket ADDRESS PORT
    python -m rivulet_lab.talk websocket ADDRESS PORT
    python -m rivulet_lab.talk ssh ADDRESS PORT KEY

A client goes on over its one connection until it is terminated, and prints then as JSON how many lines were answered,
in order and whole, the longest silence and how the session ended; a session that ends by itself says so too.
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
"""Between an answer and the next line."""
GIVE_UP_S = 60.0
"""A line that is not answered for so long never is."""
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455, section 1.3."""
_TEXT, _CLOSE = 0x81, 0x88


def _accept(key: bytes) -> bytes:
    return base64.b64encode(hashlib.sha1(key + _GUID).digest())


def _frame(kind: int, octets: bytes, mask: bytes = b"") -> bytes:
    """A whole frame of less than 126 octets (RFC 6455, section 5.2)."""
    head = bytes([kind, len(octets) | (0x80 if mask else 0)]) + mask
    return head + (bytes(octet ^ mask[n % 4] for n, octet in enumerate(octets)) if mask else octets)


def _exactly(stream: socket.socket, count: int) -> bytes:
    octets = b""
    while len(octets) < count:
        more = stream.recv(count - len(octets))
        if not more:
            raise ConnectionError("the other end closed")
        octets += more
    return octets


def _read(stream: socket.socket) -> tuple[int, bytes]:
    kind, length = _exactly(stream, 2)
    mask = _exactly(stream, 4) if length & 0x80 else bytes(4)
    octets = _exactly(stream, length & 0x7F)
    return kind, bytes(octet ^ mask[n % 4] for n, octet in enumerate(octets))


def _head(stream: socket.socket) -> dict[bytes, bytes]:
    octets = b""
    while not octets.endswith(b"\r\n\r\n"):
        octets += _exactly(stream, 1)
    lines = (line.partition(b":") for line in octets.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _echo(stream: socket.socket) -> None:
    with stream:
        key = _head(stream).get(b"sec-websocket-key", b"")
        upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        stream.sendall(upgrade + b"Sec-WebSocket-Accept: " + _accept(key) + b"\r\n\r\n")
        while True:
            kind, octets = _read(stream)
            stream.sendall(_frame(kind, octets))
            if kind == _CLOSE:
                return


def serve_websocket(address: str, port: int) -> None:
    """An echo for as long as it runs. `::` is every address, of IPv4 too."""
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
    """A session; what it is called with is echoed."""
    stream = socket.create_connection((address, port))
    stream.settimeout(GIVE_UP_S)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    key = base64.b64encode(os.urandom(16))
    ask = f"GET /echo HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    stream.sendall(ask.encode() + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n")
    if _head(stream).get(b"sec-websocket-accept") != _accept(key):
        raise ConnectionError("the server takes no websocket")

    def say(line: str) -> str:
        stream.sendall(_frame(_TEXT, line.encode(), os.urandom(4)))
        return _read(stream)[1].decode()

    return say


def ssh(address: str, port: int, key: str) -> Callable[[str], str]:
    """A session of ssh, whose shell repeats lines."""
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes", "LogLevel=ERROR")
    flags = [flag for option in options for flag in ("-o", option)]
    command = ["ssh", *flags, "-F", "none", "-i", key, "-p", str(port), f"root@{address}", "cat"]
    session = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    write, read = session.stdin, session.stdout
    assert write is not None and read is not None

    def say(line: str) -> str:
        write.write(f"{line}\n".encode())
        write.flush()
        if not select.select([read], [], [], GIVE_UP_S)[0]:
            raise TimeoutError("no answer")
        answer = read.readline()
        if not answer:
            raise ConnectionError(f"ssh ended with {session.wait()}")
        return answer.decode().rstrip("\n")

    return say


class _Over(Exception):
    pass


def talk(session: Callable[[], Callable[[str], str]]) -> dict[str, object]:
    """Says lines until SIGTERM."""

    def over(_signal: int, _frame: object) -> None:
        raise _Over

    answers, longest, at, ended = 0, 0.0, 0.0, "terminated"
    silences: list[tuple[float, float]] = []
    try:
        say = session()
        # Not while it is set up: of such a session nothing is known.
        signal.signal(signal.SIGTERM, over)
        print("talking", flush=True)
        while True:
            began = time.monotonic()
            if say(f"line {answers}") != f"line {answers}":
                ended = f"line {answers} came otherwise"
                break
            took = time.monotonic() - began
            answers += 1
            silences.append((time.time() - took, took))
            if took > longest:
                longest, at = took, time.time() - took
            time.sleep(PAUSE_S)
    except _Over:
        pass
    except (OSError, ConnectionError) as error:
        ended = str(error)
    # The longest ones, so that whoever reads it can tell which harm they belong to.
    silences.sort(key=lambda silence: -silence[1])
    told = [{"at": round(when, 3), "ms": round(1e3 * took, 1)} for when, took in silences[:20]]
    return {
        "answers": answers,
        "whole": ended == "terminated",
        "ended": ended,
        "longest_ms": round(1e3 * longest, 1),
        "longest_at": round(at, 3),
        "silences": told,
    }


def sshd(folder: Path, *listen: str) -> list[str]:
    """The command of an sshd with a host key of its own that lets in who has `folder`/client.

    Several with the same folder are one to their clients.
    """
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise RackError("sshd is not installed: `scripts/setup.sh --test` installs it (openssh-server)")
    folder.mkdir(parents=True, exist_ok=True)
    # It insists on this one, whatever else it is told.
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
    told = talk(lambda: ssh(address, int(port), *more) if what == "ssh" else websocket(address, int(port)))
    print(json.dumps(told), flush=True)
    return 0 if told["whole"] else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""httpudp: files by HTTP over UDP, behind stateless TCP (docs/plain.md).

A datagram is the head of a request, the one that goes back is the whole response. Nothing is kept between
two, so any number of these may run, anywhere.

    python3 httpudp.py 8081 DIR
    rivulet serve --back-end udp://127.0.0.1:8081 --deterministic --plain stateless ...

The same file gives the same octets, so with files that do not change it is deterministic: no Date, no Last-Modified.
"""

import socket
import sys
from pathlib import Path
from urllib.parse import unquote

# Octets of the longest file: what stateless TCP carries, with its head.
LONGEST = 15_000


def answer(status: str, body: bytes, head: bool) -> bytes:
    """A whole response."""
    lines = [f"HTTP/1.1 {status}", "Server: httpudp", f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + (b"" if head else body)


def respond(directory: Path, request: bytes) -> bytes:
    """The response to a request."""
    words = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or words[0] not in ("GET", "HEAD"):
        return answer("501 Not Implemented", b"501 Not Implemented\n", False)
    head = words[0] == "HEAD"
    name = unquote(words[1].split("?", 1)[0]).lstrip("/") or "index.html"
    try:
        file = (directory / name).resolve()
        # Nothing outside of the directory, whatever the name says.
        if file.is_relative_to(directory) and file.is_file():
            with file.open("rb") as content:
                body = content.read(LONGEST + 1)
            if len(body) > LONGEST:
                return answer("413 Content Too Large", b"413 Content Too Large\n", head)
            return answer("200 OK", body, head)
    except (OSError, ValueError):
        pass
    return answer("404 Not Found", b"404 Not Found\n", head)


def main() -> None:
    """Answers for ever."""
    port, directory = int(sys.argv[1]), Path(sys.argv[2]).resolve()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", port))
        while True:
            request, client = sock.recvfrom(2048)
            sock.sendto(respond(directory, request), client)


if __name__ == "__main__":
    main()

#!/usr/bin/env bash
# uvicorn 0.54.0 (h11 0.16.0) and a client that resets its TCP connection behind a request.
# Guessed: a request whose connection is already reset when the server accepts it is dropped, and `scope["client"]` is None
# for Unix sockets alone.
# Seen: the request is read from the socket's buffer and runs like any other, with `scope["client"]` None, since uvicorn asks
# for the peer's address after the accept, when the kernel has none any more. asyncio still holds the address that accept()
# returned for it: `get_extra_info("peername")` of a bare asyncio server has it for the same connections.
# Matters to an application that takes "no peer address" for "came through the Unix socket": it must ask which listener
# accepted the connection.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
/usr/bin/python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check uvicorn==0.54.0 h11==0.16.0
cat >ask.py <<'X'
import asyncio
import socket
import struct
import threading
import time

import uvicorn

REQUEST = b"GET /%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def listener():
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen(8)
    return s


def queue(s, name, reset):
    """A connection with a request in it, in the listener's queue; reset if asked for."""
    c = socket.create_connection(s.getsockname())
    c.sendall(REQUEST % name)
    if reset:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
    return c


def kind(client):
    return "no client" if client is None else "a client"


seen = []


async def app(scope, receive, send):
    if scope["type"] == "http":
        seen.append(f"uvicorn ran {scope['path']} with {kind(scope['client'])}")
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


s = listener()
queue(s, b"reset", True)
kept = queue(s, b"open", False)
server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", http="h11"))
thread = threading.Thread(target=server.run, kwargs={"sockets": [s]})
thread.start()
until = time.monotonic() + 20
while len(seen) < 2 and time.monotonic() < until:
    time.sleep(0.05)
server.should_exit = True
thread.join()
print("\n".join(sorted(seen)))


async def bare():
    s = listener()
    queue(s, b"reset", True)
    found = asyncio.get_running_loop().create_future()

    async def accepted(reader, writer):
        if not found.done():
            found.set_result(writer.get_extra_info("peername"))
        writer.close()

    async with await asyncio.start_server(accepted, sock=s):
        print("asyncio accepted a reset connection with", kind(await asyncio.wait_for(found, 20)))


asyncio.run(bare())
X
venv/bin/python ask.py | tee seen
diff - seen <<'X'
uvicorn ran /open with a client
uvicorn ran /reset with no client
asyncio accepted a reset connection with a client
X
echo "as before"

#!/usr/bin/env bash
# The peer of a Unix socket, as grpcio 1.85.3 reports it to a service.
# Guessed: `context.peer()` is empty or tells the process or user at the other end, and the transport's authentication
# context has the kernel's credentials (SO_PEERCRED).
# Seen: `context.peer()` is `unix:` for grpcio's own client, whose socket has no name, and `unix:PATH` for a client that
# bound its socket to a path, which is a name that the client chose. The authentication context has a security level and no user for both.
# Matters to a service that hands out keys over a Unix socket: it has to accept connections itself to know their user.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
/usr/bin/python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check grpcio==1.85.3
cat >ask.py <<'X'
import os
import socket
import threading
from concurrent import futures

import grpc


class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        def peer(request, context):
            keys = sorted(key for key in context.auth_context() if key != "transport_security_type")
            return f"{context.peer().replace(os.getcwd(), '.')} {keys}".encode()

        return grpc.unary_unary_rpc_method_handler(peer)


server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Handler()])
server.add_insecure_port("unix:server.sock")
server.start()


def ask(path):
    with grpc.insecure_channel(f"unix:{path}") as channel:
        return channel.unary_unary("/a/b")(b"", timeout=20).decode()


def relay():
    """Passes one connection on through a socket that is bound to a name."""
    inner, _ = outer.accept()
    named = socket.socket(socket.AF_UNIX)
    named.bind(os.path.join(os.getcwd(), "chosen-name"))
    named.connect("server.sock")

    def pump(a, b):
        while data := a.recv(65536):
            b.sendall(data)

    threading.Thread(target=pump, args=(named, inner), daemon=True).start()
    pump(inner, named)


outer = socket.socket(socket.AF_UNIX)
outer.bind("outer.sock")
outer.listen(1)
threading.Thread(target=relay, daemon=True).start()
print("grpcio's own client:", ask("server.sock"))
print("client bound to a path:", ask("outer.sock"))
print(end="", flush=True)
os._exit(0)
X
venv/bin/python ask.py | tee seen
diff - seen <<'X'
grpcio's own client: unix: ['security_level']
client bound to a path: unix:./chosen-name ['security_level']
X
echo "as before"

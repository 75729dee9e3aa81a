"""A client and a server for tests of HTTPS: one kept connection by http.client, and an HTTP server that counts POSTs.

    python tls_clients.py keep CERTIFICATE ADDRESS PORT     requests are lines of JSON, and so are the responses
    python tls_clients.py count FOLDER                      each POST is a line of FOLDER/executed

Both are the standard library's, unmodified. A POST is answered when FOLDER/go exists.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SERVER = ("127.0.0.1", 8080)
PATIENCE_S = 60.0


def keep(certificate: str, address: str, port: int) -> None:
    """Sends the requests of standard input on one connection from this port. The first error ends it."""
    context = ssl.create_default_context(cafile=certificate)
    kept = http.client.HTTPSConnection(address, context=context, source_address=("", port), timeout=PATIENCE_S)
    kept.connect()
    # A lost connection must be seen, and not be replaced.
    kept.auto_open = 0
    for line in sys.stdin:
        request = json.loads(line)
        try:
            kept.request(request["method"], request["path"], request.get("body"))
            response = kept.getresponse()
            found = {"status": response.status, "body": response.read().decode()}
        except (OSError, http.client.HTTPException) as error:
            print(json.dumps({"error": type(error).__name__}), flush=True)
            return
        print(json.dumps(found), flush=True)


class Counter(BaseHTTPRequestHandler):
    """Answers each GET at once, and each POST, which it notes first, when it is let."""

    protocol_version = "HTTP/1.1"
    folder = Path()

    def do_GET(self) -> None:
        self._answer(b"small")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with (self.folder / "executed").open("ab") as executed:
            executed.write(body + b"\n")
        until = time.monotonic() + PATIENCE_S
        while not (self.folder / "go").exists() and time.monotonic() < until:
            time.sleep(0.01)
        self._answer(b"done " + body)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Writes no log."""


def count(folder: str) -> None:
    """Serves until the process is killed."""
    Counter.folder = Path(folder)
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer(SERVER, Counter).serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        keep(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        count(sys.argv[2])
    sys.stdout.flush()
    os._exit(0)

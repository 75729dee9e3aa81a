"""A web server whose answers are generated from inputs that requests do not hold (section 7 of the paper).

    generate.py ADDRESS PORT

`/SIZE/KIND`: SIZE bytes that depend on a random number. With KIND `inputs` the number is sent in `X-TRODS`, and taken
from that field if the request has it. With `same` it is constant; with `lies` it differs from the one in `X-TRODS`.
`?chunked` sends chunks, and their sizes depend on the number too. `/SIZE/fields`: the fields of the request.
"""

import random
import socket
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def pieces(dice: random.Random, size: int) -> Iterator[bytes]:
    while size > 0:
        count = min(size, dice.randint(1, 40_000))
        size -= count
        yield dice.randbytes(count)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        size, kind = path.strip("/").split("/")
        if kind == "fields":
            fields = str(self.headers).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(fields)))
            self.end_headers()
            self.wfile.write(fields)
            return
        number = "1" if kind == "same" else str(random.getrandbits(32))
        self.send_response(200)
        if kind == "inputs":
            number = self.headers.get("X-TRODS", number)
            self.send_header("X-TRODS", number)
            self.send_header("Shown", number)
        chunked = query == "chunked"
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", size)
        self.end_headers()
        for piece in pieces(random.Random(number), int(size)):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """A client that went is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()

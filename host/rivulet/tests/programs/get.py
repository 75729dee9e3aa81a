"""`get.py [--port PORT] [--buffer OCTETS] [--rate OCTETS] [--user-timeout MS] HOST PATH FILE`: a download by a socket of the
kernel's that is set up so, read at that rate a second."""

import argparse
import socket
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, default=80)
parser.add_argument("--buffer", type=int, help="SO_RCVBUF")
parser.add_argument("--rate", type=float, help="octets a second")
parser.add_argument("--user-timeout", type=int, help="TCP_USER_TIMEOUT")
parser.add_argument("host")
parser.add_argument("path")
parser.add_argument("file")
options = parser.parse_args()

connection = socket.socket()
if options.buffer:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.buffer)
if options.user_timeout:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, options.user_timeout)
connection.connect((options.host, options.port))
connection.sendall(f"GET {options.path} HTTP/1.1\r\nHost: {options.host}\r\nConnection: close\r\n\r\n".encode())
head, began, got = b"", time.monotonic(), 0
with open(options.file, "wb") as file:
    while data := connection.recv(16384):
        got += len(data)
        if b"\r\n\r\n" not in head:
            head += data
            _, found, data = head.partition(b"\r\n\r\n")
            if not found:
                continue
        file.write(data)
        if options.rate:
            time.sleep(max(0.0, began + got / options.rate - time.monotonic()))
if not head.startswith(b"HTTP/1.1 200 "):
    sys.exit(head[:100])

"""Serial client of Table 2: connects, sends a request and reads to the end, at two servers alternately.

    python -m rivulet_bench.trods_phases --path PATH --size BYTES --fetches N ADDRESS...

Prints a line of JSON: for each address the microseconds of each phase of each fetch.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time

PHASES = ("connect", "first_octet", "rest", "whole")
WARM = 50
"""Fetches of each server before the measured ones."""
REST_S = 0.001
"""Pause before each fetch: the previous server's work after its last byte would keep the processor awake for the next
SYN, so that one server's work would speed up the other (by 13 us, as measured at both ends of the wire)."""


def fetch(address: str, request: bytes, whole: int) -> tuple[int, int, int, int]:
    """One fetch; returns the nanoseconds of each phase."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    began = time.perf_counter_ns()
    sock.connect((address, 80))
    connected = time.perf_counter_ns()
    sock.sendall(request)
    data = sock.recv(65_536)
    first = time.perf_counter_ns()
    got = len(data.partition(b"\r\n\r\n")[2])
    while got < whole and data:
        data = sock.recv(65_536)
        got += len(data)
    ended = time.perf_counter_ns()
    sock.close()
    if got != whole:
        raise SystemExit(f"{address}: {got} bytes of {whole} arrived")
    return connected - began, first - connected, ended - first, ended - began


def main() -> int:
    """Fetches from all servers alternately."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--path", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--fetches", type=int, default=10_000)
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {a: {phase: [] for phase in PHASES} for a in options.addresses}
    for number in range(options.fetches + WARM):
        for address in options.addresses:
            request = f"GET /{options.path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode()
            time.sleep(REST_S)
            times = fetch(address, request, options.size)
            if number >= WARM:
                for phase, ns in zip(PHASES, times, strict=True):
                    found[address][phase].append(round(ns / 1e3, 1))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

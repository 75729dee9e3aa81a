#!/usr/bin/env bash
# Which programs take a response of 1,000,000 bytes that ends early for complete? curl 7.88.1, wget 1.21.3, aria2 1.36.0 (Debian 12's
# builds), pycurl 7.49.0 (libcurl 8.23.0), Python 3's urllib (read, shutil.copyfileobj, lines), requests 2.34.2, urllib3 2.8.0, httpx
# 0.28.1, aiohttp 3.14.5, Go 1.26.8, Node 20's http (pipe, pipeline), undici 7.30.2 (request and fetch), ureq 3.3.0, reqwest 0.13.4,
# attohttpc 0.30.1, minreq 2.14.1. Each is allowed one try; gzip is on where there is a switch.
# Guessed: only a response whose end is the connection's end, by FIN, can be cut unnoticed, and not even this if it is gzip, whose
# trailer is missing. Some take chunks for complete that lack only the empty line behind the last chunk.
# Seen to end without an error:
# - Less than Content-Length, by FIN: shutil.copyfileobj and lines of urllib, attohttpc, minreq, and Node's pipe, whose program ends
#   with exit code 0 behind a part of the file. read() of urllib reports the same cut.
# - Chunks that break off between two of them: lines of urllib, pipe, minreq. Within a chunk: wget, pipe, minreq.
# - The last chunk without the empty line behind it: urllib, requests, urllib3, ureq, pipe, minreq.
# - gzip cut by FIN without a length: curl, wget, pycurl, requests, urllib3, httpx and aiohttp return what they could unpack.
#   aria2, Go, fetch, ureq, reqwest and attohttpc report it. Those that do not unpack (urllib, Node, undici's request, minreq) cannot know.
# - A response without a length that ends by RST: aiohttp, undici (both) and ureq take it for complete.
# Matters to comparisons of what survives a server's death: exit code 0 or no exception is no proof of a whole file, so a test compares
# bytes; and a server that ends a response which it cannot go on with does so by RST, inside a response with Content-Length.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; wait; chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
for package in curl=7.88.1-10+deb12u15 libcurl4=7.88.1-10+deb12u15 wget=1.21.3-1+deb12u1 aria2=1.36.0-1 libaria2-0=1.36.0-1 \
  libc-ares2=1.18.1-3 libssh2-1=1.10.0-3+deb12u1; do
  apt-get download -qq "$package" 2>apt.txt || { cat apt.txt >&2; exit 1; }
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check pycurl==7.49.0 requests==2.34.2 urllib3==2.8.0 httpx==0.28.1 \
  httpcore==1.0.9 aiohttp==3.14.5
npm install --silent --no-fund --no-audit undici@7.30.2
cat >server.py <<'P'
"""Responses that end as the path says."""
import gzip
import random
import socket
import struct
import threading
import time

BODY = random.Random(1).randbytes(1_000_000)
PACKED = gzip.compress(BODY, mtime=0)


def chunk(data):
    return b"%x\r\n" % len(data) + data + b"\r\n"


QUARTERS = [chunk(BODY[i : i + 250_000]) for i in range(0, 1_000_000, 250_000)]
LENGTH, CHUNKED, GZIP = b"Content-Length: 1000000\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip\r\n"
RESPONSES = {
    "whole": LENGTH + b"\r\n" + BODY,
    "length": LENGTH + b"\r\n" + BODY[:500_000],
    "between": CHUNKED + b"\r\n" + b"".join(QUARTERS[:2]),
    "within": CHUNKED + b"\r\n" + b"".join(QUARTERS[:2]) + QUARTERS[2][:100_000],
    "last": CHUNKED + b"\r\n" + b"".join(QUARTERS) + b"0\r\n",
    "unknown": b"\r\n" + BODY[:500_000],
    "gzip-chunks": GZIP + CHUNKED + b"\r\n" + chunk(PACKED[:500_000]),
    "gzip": GZIP + b"\r\n" + PACKED[:500_000],
}


def serve(connection):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not (piece := connection.recv(65536)):
            return connection.close()
        head += piece
    name, end = head.split()[1].decode()[1:].rsplit("-", 1)
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + RESPONSES[name])
    if end == "RST":
        time.sleep(0.3)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
P
python3 server.py >port &
server=$!
cat >client.py <<'P'
import shutil
import sys

client, url = sys.argv[1:]
with open("out", "wb") as f:
    if client.startswith("urllib-"):
        import urllib.request

        with urllib.request.urlopen(url) as answer:
            if client == "urllib-copy":
                shutil.copyfileobj(answer, f)
            elif client == "urllib-read":
                f.write(answer.read())
            else:
                f.writelines(answer)
    elif client == "requests":
        import requests

        f.write(requests.get(url).content)
    elif client == "urllib3":
        import urllib3

        f.write(urllib3.PoolManager().request("GET", url, retries=False).data)
    elif client == "httpx":
        import httpx

        f.write(httpx.get(url).content)
    elif client == "aiohttp":
        import asyncio

        import aiohttp

        async def run():
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                f.write(await answer.read())

        asyncio.run(run())
    else:
        import pycurl

        c = pycurl.Curl()
        for option, value in ((c.URL, url), (c.ENCODING, ""), (c.WRITEDATA, f)):
            c.setopt(option, value)
        c.perform()
P
cat >client.mjs <<'J'
import fs from 'node:fs'
import http from 'node:http'
import { pipeline } from 'node:stream/promises'
import { fetch, request } from 'undici'
const [client, url] = process.argv.slice(2)
const file = fs.createWriteStream('out')
if (client === 'node-pipe') http.get(url, answer => answer.pipe(file))
else if (client === 'node-pipeline') http.get(url, answer => pipeline(answer, file))
else {
  for await (const piece of (client === 'undici-fetch' ? await fetch(url) : await request(url)).body) file.write(piece)
  file.end()
}
J
mkdir -p go rust/src
cat >go/go.mod <<'X'
module client
go 1.26.8
X
cat >go/main.go <<'X'
package main

import (
	"io"
	"net/http"
	"os"
)

func main() {
	file, _ := os.Create("out")
	answer, err := http.Get(os.Args[2])
	if err == nil {
		_, err = io.Copy(file, answer.Body)
	}
	if err != nil {
		os.Exit(1)
	}
}
X
(cd go && GOFLAGS=-mod=mod GOTOOLCHAIN=go1.26.8 GOPATH=$work/gopath GOCACHE=$work/gocache go build -o ../go-client .)
cat >rust/Cargo.toml <<'X'
[package]
name = "client"
version = "0.1.0"
edition = "2021"
[dependencies]
ureq = { version = "=3.3.0", default-features = false, features = ["gzip"] }
reqwest = { version = "=0.13.4", default-features = false, features = ["blocking", "gzip"] }
attohttpc = { version = "=0.30.1", default-features = false, features = ["compress"] }
minreq = "=2.14.1"
X
cat >rust/src/main.rs <<'X'
use std::io::{copy, Write};

fn main() {
    let of: Vec<String> = std::env::args().skip(1).collect();
    let mut file = std::fs::File::create("out").unwrap();
    match &of[0][..] {
        "ureq" => copy(&mut ureq::get(&of[1]).call().unwrap().body_mut().as_reader(), &mut file).map(drop),
        "reqwest" => copy(&mut reqwest::blocking::get(&of[1]).unwrap(), &mut file).map(drop),
        "attohttpc" => copy(&mut attohttpc::get(&of[1]).send().unwrap(), &mut file).map(drop),
        _ => file.write_all(minreq::get(&of[1]).send().unwrap().as_bytes()),
    }
    .unwrap();
}
X
(cd rust && cargo build -q && cp target/debug/client ../rust-client)
until [ -s port ]; do sleep 0.1; done
base=http://127.0.0.1:$(cat port)
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu HOME=$work
for case in whole-FIN length-FIN length-RST between-FIN within-FIN last-FIN unknown-RST gzip-chunks-FIN gzip-FIN; do
  without=
  for client in curl wget aria2 pycurl urllib-read urllib-copy urllib-lines requests urllib3 httpx aiohttp go node-pipe \
    node-pipeline undici-request undici-fetch ureq reqwest attohttpc minreq; do
    url=$base/$case
    case $client in
    curl) run=(root/usr/bin/curl -sS --compressed -o out "$url") ;;
    wget) run=(root/usr/bin/wget -q --compression=auto -t 1 -O out "$url") ;;
    aria2) run=(root/usr/bin/aria2c -q -x 1 -m 1 --http-accept-gzip=true -o out "$url") ;;
    go) run=(./go-client "$client" "$url") ;;
    node-* | undici-*) run=(node client.mjs "$client" "$url") ;;
    ureq | reqwest | attohttpc | minreq) run=(./rust-client "$client" "$url") ;;
    *) run=(venv/bin/python client.py "$client" "$url") ;;
    esac
    rm -f out out.aria2
    if timeout 20 "${run[@]}" >log 2>&1; then without+=" $client"; fi
  done
  echo "$case, no error:${without:- none}"
done | tee seen
diff - seen <<'X'
whole-FIN, no error: curl wget aria2 pycurl urllib-read urllib-copy urllib-lines requests urllib3 httpx aiohttp go node-pipe node-pipeline undici-request undici-fetch ureq reqwest attohttpc minreq
length-FIN, no error: urllib-copy urllib-lines node-pipe attohttpc minreq
length-RST, no error: none
between-FIN, no error: urllib-lines node-pipe minreq
within-FIN, no error: wget node-pipe minreq
last-FIN, no error: urllib-read urllib-copy urllib-lines requests urllib3 node-pipe ureq minreq
unknown-RST, no error: aiohttp undici-request undici-fetch ureq
gzip-chunks-FIN, no error: urllib-lines node-pipe minreq
gzip-FIN, no error: curl wget pycurl urllib-read urllib-copy urllib-lines requests urllib3 httpx aiohttp node-pipe node-pipeline undici-request minreq
X
echo "as before"

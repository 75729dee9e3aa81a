#!/usr/bin/env bash
# A server answers an upload of 20 MB behind its header, before it reads the body half a second later. What does the caller get,
# and what part of the body does the server get? libcurl 8.23.0 (pycurl 7.49.0), Python 3's http.client, requests 2.34.2, urllib3 2.8.0,
# httpx 0.28.1, aiohttp 3.14.5, Go 1.26.8, undici 7.30.2 (request and fetch), ureq 3.3.0, reqwest 0.13.4; POST with Content-Length.
# Each client lives for two seconds more behind its answer.
# Guessed: behind a success all send the rest (RFC 9112 section 9.5 has clients stop for errors), behind 413 some stop. If the
# server resets the connection, those that write all before they read report an error.
# Seen:
# - Go and undici's fetch cut the body behind 200 as behind 413, on a connection that the server keeps: the caller has a 200 for
#   an upload that the server never got whole. undici's request does so when the answer has `Connection: close`.
# - reqwest, aiohttp and undici's request give the answer to the caller and send the rest behind its back. A program that ends
#   with its answer cuts the upload too.
# - libcurl alone sends `Expect: 100-continue`. Behind 413 or `Connection: close` it sends nothing, behind a kept 200 all.
# - A reset with the body unread is an error for http.client and ureq alone. requests, urllib3 and httpx, which also write first, look
#   for an answer behind the failed write.
# - All others send all, behind 413 too.
# Matters to servers that answer before the end of a request, or replay one at another replica: an answer, even 200, ends the upload for
# two clients, so the server has to read the body first where it needs it.
set -euo pipefail
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; wait; chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check pycurl==7.49.0 requests==2.34.2 urllib3==2.8.0 httpx==0.28.1 \
  httpcore==1.0.9 aiohttp==3.14.5
npm install --silent --no-fund --no-audit undici@7.30.2
cat >server.py <<'P'
"""Answers behind the header of a request, whose path gives the status and what happens to the connection."""
import socket
import threading
import time

finished, result = threading.Semaphore(0), None


def upload(connection, head):
    _, status, way = head.split()[1].decode().split("/")
    length = next(int(f.split(b":")[1]) for f in head.split(b"\r\n") if f.lower().startswith(b"content-length:"))
    close = "" if way == "keep" else "Connection: close\r\n"
    connection.sendall(f"HTTP/1.1 {status} Answer\r\n{close}Content-Length: 6\r\n\r\nanswer".encode())
    if way == "close":
        connection.shutdown(socket.SHUT_WR)
    time.sleep(0.5)
    if way == "reset":
        return "unread"  # the kernel sends RST, since there is data in its buffer
    got = 0
    try:
        while got < length and (piece := connection.recv(65536)):
            got += len(piece)
    except ConnectionResetError:
        pass
    return "whole" if got == length else "part" if got else "none"


def serve(connection):
    global result
    stream = connection.makefile("rb", buffering=0)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not (byte := stream.read(1)):
            return
        head += byte
    if head.startswith(b"GET /result "):
        finished.acquire()
        connection.sendall(f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(result)}\r\n\r\n{result}".encode())
    else:
        expects = "-expected" if b"\r\nexpect: 100-continue" in head.lower() else ""
        result = upload(connection, head) + expects
        finished.release()
    if not head.split()[1].endswith(b"/keep"):
        stream.close()
        connection.close()


listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
listener.bind(("127.0.0.1", 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
P
python3 server.py >port &
server=$!
cat >client.py <<'P'
import sys
import time

client, url = sys.argv[1:]
body = bytes(20_000_000)
if client == "libcurl":
    import io

    import pycurl

    c = pycurl.Curl()
    for option, value in ((c.URL, url), (c.WRITEFUNCTION, len), (c.POST, 1), (c.POSTFIELDSIZE, len(body)), (c.READDATA, io.BytesIO(body))):
        c.setopt(option, value)
    c.perform()
    status = c.getinfo(c.RESPONSE_CODE)
elif client == "aiohttp":
    import asyncio

    import aiohttp

    async def run():
        async with aiohttp.ClientSession() as session:
            async with session.post(url, data=body) as answer:
                assert await answer.read() == b"answer"
            await asyncio.sleep(2)
            return answer.status

    status = asyncio.run(run())
elif client == "urllib3":
    import urllib3

    pool = urllib3.PoolManager()
    status = pool.request("POST", url, body=body, retries=False).status
elif client == "httpx":
    import httpx

    pool = httpx.Client()
    status = pool.post(url, content=body).status_code
elif client == "http.client":
    import http.client
    import urllib.parse

    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc)
    connection.request("POST", where.path, body=body)
    answer = connection.getresponse()
    status, text = answer.status, answer.read()
else:
    import requests

    pool = requests.Session()
    status = pool.post(url, data=body).status_code
print(status)
if client != "aiohttp":
    time.sleep(2)
P
cat >client.mjs <<'J'
import { fetch, request } from 'undici'
const [client, url] = process.argv.slice(2)
const options = { method: 'POST', body: Buffer.alloc(20_000_000) }
if (client === 'undici-fetch') {
  const answer = await fetch(url, options)
  await answer.text()
  console.log(answer.status)
} else {
  const answer = await request(url, options)
  await answer.body.text()
  console.log(answer.statusCode)
}
await new Promise(done => setTimeout(done, 2000))
process.exit()
J
mkdir -p go rust/src
cat >go/go.mod <<'X'
module client
go 1.26.8
X
cat >go/main.go <<'X'
package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	answer, err := http.Post(os.Args[2], "application/octet-stream", bytes.NewReader(make([]byte, 20_000_000)))
	if err != nil {
		os.Exit(1)
	}
	if _, err := io.ReadAll(answer.Body); err != nil {
		os.Exit(1)
	}
	answer.Body.Close()
	fmt.Println(answer.StatusCode)
	time.Sleep(2 * time.Second)
}
X
(cd go && GOFLAGS=-mod=mod GOTOOLCHAIN=go1.26.8 GOPATH=$work/gopath GOCACHE=$work/gocache go build -o ../go-client .)
cat >rust/Cargo.toml <<'X'
[package]
name = "client"
version = "0.1.0"
edition = "2021"
[dependencies]
ureq = { version = "=3.3.0", default-features = false }
reqwest = { version = "=0.13.4", default-features = false, features = ["blocking"] }
X
cat >rust/src/main.rs <<'X'
use std::{thread::sleep, time::Duration};

fn main() {
    let of: Vec<String> = std::env::args().skip(1).collect();
    let body = vec![0; 20_000_000];
    if of[0] == "ureq" {
        let agent = ureq::Agent::new_with_config(ureq::Agent::config_builder().http_status_as_error(false).build());
        let mut answer = agent.post(&of[1]).send(&body).unwrap();
        answer.body_mut().read_to_vec().unwrap();
        println!("{}", answer.status().as_u16());
        sleep(Duration::from_secs(2));
    } else {
        let client = reqwest::blocking::Client::new();
        let answer = client.post(&of[1]).body(body).send().unwrap();
        println!("{}", answer.status().as_u16());
        answer.text().unwrap();
        sleep(Duration::from_secs(2)); // the client, which is still here, owns the connection
    }
}
X
(cd rust && cargo build -q && cp target/debug/client ../rust-client)
until [ -s port ]; do sleep 0.1; done
url=http://127.0.0.1:$(cat port)
for client in libcurl http.client requests urllib3 httpx aiohttp go undici-request undici-fetch ureq reqwest; do
  line="$client:"
  for case in 200/keep 413/keep 200/close 200/reset; do
    case $client in
    go) run=(./go-client) ;;
    undici*) run=(node client.mjs) ;;
    ureq | reqwest) run=(./rust-client) ;;
    *) run=(venv/bin/python client.py) ;;
    esac
    status=$(timeout 30 "${run[@]}" "$client" "$url/$case" 2>/dev/null) || status=error
    line+="  $case $status $(curl -s "$url/result")"
  done
  echo "$line"
done | tee seen
diff - seen <<'X'
libcurl:  200/keep 200 whole-expected  413/keep 413 none-expected  200/close 200 none-expected  200/reset 200 unread-expected
http.client:  200/keep 200 whole  413/keep 413 whole  200/close 200 whole  200/reset error unread
requests:  200/keep 200 whole  413/keep 413 whole  200/close 200 whole  200/reset 200 unread
urllib3:  200/keep 200 whole  413/keep 413 whole  200/close 200 whole  200/reset 200 unread
httpx:  200/keep 200 whole  413/keep 413 whole  200/close 200 whole  200/reset 200 unread
aiohttp:  200/keep 200 whole  413/keep 413 whole  200/close 200 whole  200/reset 200 unread
go:  200/keep 200 part  413/keep 413 part  200/close 200 part  200/reset 200 unread
undici-request:  200/keep 200 whole  413/keep 413 whole  200/close 200 part  200/reset 200 unread
undici-fetch:  200/keep 200 part  413/keep 413 part  200/close 200 part  200/reset 200 unread
ureq:  200/keep 200 whole  413/keep 413 whole  200/close 200 whole  200/reset error unread
reqwest:  200/keep 200 whole  413/keep 413 whole  200/close 200 whole  200/reset 200 unread
X
echo "as before"

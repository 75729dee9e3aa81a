#!/usr/bin/env bash
# HTTP/1.1 clients whose request on a kept connection was read by the server, which then ends the connection without an answer,
# by FIN or by RST. How often does the server execute the request? libcurl 8.23.0 (pycurl 7.49.0), requests 2.34.2,
# urllib3 2.8.0, httpx 0.28.1, aiohttp 3.14.5, Go 1.26.8, undici 7.30.2, ureq 3.3.0, reqwest 0.13.4.
# Guessed: POST is never repeated, since RFC 9110 section 9.2.2 forbids it without knowledge of the server; GET and PUT are
# repeated by all of them, as idempotent methods; FIN and RST make no difference.
# Seen:
# - libcurl repeats POST: the server executes it twice, and the caller sees one answer 200.
# - Go repeats POST only with a field Idempotency-Key, and does not repeat PUT without it either.
# - PUT is repeated by libcurl, urllib3 and aiohttp; GET by the same and Go.
# - requests, whose connections are urllib3's, repeats nothing; httpx, undici, ureq and reqwest repeat nothing, not even GET.
# - FIN and RST make no difference to any of them.
# Matters to a service that ends connections at the death of a replica: a reset does not keep a POST from running twice when
# the client is libcurl, and it is an error to the application for half of the clients even for GET.
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
import socket, struct, sys, threading

executed = 0


def serve(connection, reset):
    global executed
    stream, kept = connection.makefile("rb"), False
    while line := stream.readline():
        length = 0
        while (field := stream.readline()) not in (b"\r\n", b""):
            if field.lower().startswith(b"content-length:"):
                length = int(field.split(b":")[1])
        stream.read(length)
        answer = b"ok"
        if b" /executed " in line:
            answer, executed = str(executed).encode(), 0
        elif b" /run " in line:
            executed += 1
            if kept and executed == 1:
                if reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stream.close()
                return connection.close()
        kept = True
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)


def listen(listener, reset):
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0], reset), daemon=True).start()


listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(l.getsockname()[1] for l in listeners), flush=True)
for listener, reset in zip(listeners, (False, True)):
    threading.Thread(target=listen, args=(listener, reset), daemon=True).start()
threading.Event().wait()
P
python3 server.py >ports &
server=$!
until [ -s ports ]; do sleep 0.1; done

cat >client.py <<'P'
import asyncio, sys

client, method, base = sys.argv[1:]
body = b"x=1" if method != "GET" else None
if client == "libcurl":
    import pycurl
    c = pycurl.Curl()
    c.setopt(c.WRITEFUNCTION, len)
    c.setopt(c.URL, base + "/first")
    c.perform()
    c.setopt(c.URL, base + "/run")
    if body:
        c.setopt(c.POSTFIELDS, body)
    c.setopt(c.CUSTOMREQUEST, method)
    c.perform()
elif client == "aiohttp":
    import aiohttp

    async def run():
        async with aiohttp.ClientSession() as s:
            for verb, path, data in (("GET", "/first", None), (method, "/run", body)):
                async with s.request(verb, base + path, data=data) as answer:
                    await answer.read()

    asyncio.run(run())
elif client == "urllib3":
    import urllib3
    s = urllib3.PoolManager()
    s.request("GET", base + "/first")
    s.request(method, base + "/run", body=body)
elif client == "httpx":
    import httpx
    s = httpx.Client()
    s.get(base + "/first")
    s.request(method, base + "/run", content=body)
else:
    import requests
    s = requests.Session()
    s.get(base + "/first")
    s.request(method, base + "/run", data=body)
P
cat >client.mjs <<'J'
import { request } from 'undici'
const [, method, base] = process.argv.slice(2)
await (await request(base + '/first')).body.text()
await new Promise(done => setTimeout(done, 100)) // the connection is kept only behind this turn
await (await request(base + '/run', { method, body: method === 'GET' ? undefined : 'x=1' })).body.text()
process.exit()
J
mkdir go rust rust/src
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
	"strings"
)

func main() {
	client, method, base := os.Args[1], os.Args[2], os.Args[3]
	first, err := http.Get(base + "/first")
	if err != nil {
		panic(err)
	}
	io.Copy(io.Discard, first.Body)
	first.Body.Close()
	var body io.Reader
	if method != "GET" {
		body = strings.NewReader("x=1")
	}
	request, _ := http.NewRequest(method, base+"/run", body)
	if client == "go-key" {
		request.Header.Set("Idempotency-Key", "1")
	}
	if _, err = http.DefaultClient.Do(request); err != nil {
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
ureq = { version = "=3.3.0", default-features = false }
reqwest = { version = "=0.13.4", default-features = false, features = ["blocking"] }
X
cat >rust/src/main.rs <<'X'
fn main() {
    let of: Vec<String> = std::env::args().skip(1).collect();
    let (first, run) = (format!("{}/first", of[2]), format!("{}/run", of[2]));
    if of[0] == "ureq" {
        let agent = ureq::Agent::new_with_defaults();
        agent.get(&first).call().unwrap().into_body().read_to_vec().unwrap();
        match &of[1][..] {
            "GET" => agent.get(&run).call().unwrap(),
            "PUT" => agent.put(&run).send("x=1").unwrap(),
            _ => agent.post(&run).send("x=1").unwrap(),
        };
    } else {
        let client = reqwest::blocking::Client::new();
        client.get(&first).send().unwrap().text().unwrap();
        let request = client.request(of[1].parse().unwrap(), &run);
        let request = if of[1] == "GET" { request } else { request.body("x=1") };
        request.send().unwrap();
    }
}
X
(cd rust && cargo build -q --release && cp target/release/client ../rust-client)

declare -A seen
read -r fin rst <ports
for client in libcurl requests urllib3 httpx aiohttp go go-key undici ureq reqwest; do
  for method in POST PUT GET; do
    for port in $fin $rst; do
      case $client in
      go*) run=(./go-client) ;;
      undici) run=(node client.mjs) ;;
      ureq | reqwest) run=(./rust-client) ;;
      *) run=(venv/bin/python client.py) ;;
      esac
      timeout 30 "${run[@]}" "$client" "$method" "http://127.0.0.1:$port" >/dev/null 2>&1 && error= || error=!
      seen[$client]+="$(curl -s "http://127.0.0.1:$port/executed")$error "
    done
  done
  echo "$client: POST, PUT, GET, each by FIN and RST, executed (! = an error to the caller): ${seen[$client]}"
done
expect() {
  [ "${seen[$1]}" = "$2 " ] || { echo "$1: expected $2, saw ${seen[$1]}" >&2; exit 1; }
}
expect libcurl "2 2 2 2 2 2"
expect urllib3 "1! 1! 2 2 2 2"
expect aiohttp "1! 1! 2 2 2 2"
expect go "1! 1! 1! 1! 2 2"
expect go-key "2 2 2 2 2 2"
for client in requests httpx undici ureq reqwest; do expect $client "1! 1! 1! 1! 1! 1!"; done

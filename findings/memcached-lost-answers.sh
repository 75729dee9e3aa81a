#!/usr/bin/env bash
# Seven memcached clients whose kept connection is reset after memcached 1.6.18 (Debian 12's build) has executed a command, but before
# its answer arrives: pymemcache 4.0.0, python-memcached 1.62, pylibmc 1.6.3, python-binary-memcached 0.33.0, emcache 1.3.3, gomemcache
# 4d751bb6e37c, npm's memjs 1.3.2, with their defaults. A relay in front of the server drops the answer and resets the connection,
# once for each key. The server's statistics tell how often a command ran.
# Guessed: set and get are repeated by some clients, incr and add by none, since they may have run. Without an answer the caller gets
# an error.
# Seen:
# - memjs repeats all four. incr counts twice, and the caller gets the second result. add stores, and the caller is told that it
#   did not, because its own first attempt had stored the key.
# - The other six repeat nothing, not even get.
# - python-memcached and python-binary-memcached raise no error. get returns None, as for a key that does not exist; add returns 0 or
#   False, as for a key that exists; incr of the latter returns 0, as a counter may. The other four raise one.
# Matters to locks and counters in memcached: behind a lost answer "exists already" can mean one's own key, and a miss can be a key that
# is there. Ownership is read from the value, and a store's client must tell an error from a miss.
set -euo pipefail
work=$(mktemp -d)
trap 'for p in $(jobs -p); do kill "$p" 2>/dev/null || true; done; wait; chmod -R u+w "$work"; rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
apt-get download -qq memcached=1.6.18-1+deb12u1 libevent-2.1-7 libsasl2-2 2>apt.txt || { cat apt.txt >&2; exit 1; }
for deb in *.deb; do dpkg-deb -x "$deb" root; done
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check pymemcache==4.0.0 python-memcached==1.62 pylibmc==1.6.3 \
  python-binary-memcached==0.33.0 emcache==1.3.3
npm install --silent --no-fund --no-audit memjs@1.3.2 >npm.txt || { cat npm.txt >&2; exit 1; }
cat >relay.py <<'P'
import re
import socket
import struct
import threading

met = set()


def serve(client):
    server = socket.create_connection(("127.0.0.1", 8721))
    doomed = threading.Event()

    def pass_answers():
        while data := server.recv(65536):
            if doomed.is_set():
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.shutdown(socket.SHUT_RD)  # ends the loop below
                return
            client.sendall(data)

    thread = threading.Thread(target=pass_answers, daemon=True)
    thread.start()
    while data := client.recv(65536):
        # The first command for such a key loses its answer.
        if (key := re.search(rb"lost-[\w-]+", data)) and key[0] not in met:
            met.add(key[0])
            doomed.set()
        server.sendall(data)
    server.shutdown(socket.SHUT_RDWR)
    thread.join()
    server.close()
    client.close()


def guard(client):
    try:
        serve(client)
    except OSError:
        client.close()


listener = socket.create_server(("127.0.0.1", 8722))
while True:
    threading.Thread(target=guard, args=(listener.accept()[0],), daemon=True).start()
P
cat >client.py <<'P'
import asyncio
import sys

client, op, key = sys.argv[1:]


def show(value):
    print("error" if isinstance(value, Exception) else value.decode() if isinstance(value, bytes) else value)


async def run_emcache():
    import emcache
    c = await emcache.create_client([emcache.MemcachedHostAddress("127.0.0.1", 8722)])
    k = key.encode()
    await c.get(b"warm")
    try:
        show(await (c.get(k) if op == "get" else c.increment(k, 1) if op == "incr" else getattr(c, op)(k, b"5")))
    except Exception as e:
        show(e)


if client == "emcache":
    asyncio.run(run_emcache())
    sys.exit()
if client == "pymemcache":
    from pymemcache.client.base import Client
    c = Client(("127.0.0.1", 8722))
elif client == "python-memcached":
    import memcache
    c = memcache.Client(["127.0.0.1:8722"])
elif client == "pylibmc":
    import pylibmc
    c = pylibmc.Client(["127.0.0.1:8722"])
else:
    import bmemcached
    c = bmemcached.Client(("127.0.0.1:8722",))
c.get("warm")
try:
    # pymemcache waits for an answer of set and add only when it is asked to.
    more = {"noreply": False} if client == "pymemcache" and op in ("set", "add") else {}
    show(c.get(key) if op == "get" else c.incr(key, 1) if op == "incr" else getattr(c, op)(key, "5", **more))
except Exception as e:
    show(e)
P
cat >client.js <<'X'
const [, op, key] = process.argv.slice(2)
const client = require('memjs').Client.create('127.0.0.1:8722', { logger: { log() {} } })
const show = (error, value, counter) => {
  console.log(error ? 'error' : String(op === 'incr' ? counter : value))
  process.exit()
}
client.get('warm', () => {
  if (op === 'get') client.get(key, show)
  else if (op === 'incr') client.increment(key, 1, {}, show)
  else client[op](key, '5', {}, show)
})
X
mkdir go
cat >go/go.mod <<'X'
module client
go 1.26.8
require github.com/bradfitz/gomemcache v0.0.0-20260422231931-4d751bb6e37c
X
cat >go/main.go <<'X'
package main

import (
	"fmt"
	"os"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	op, key := os.Args[2], os.Args[3]
	c := memcache.New("127.0.0.1:8722")
	c.Get("warm")
	var value any = true
	var err error
	item := &memcache.Item{Key: key, Value: []byte("5")}
	switch op {
	case "get":
		if item, err = c.Get(key); err == nil {
			value = string(item.Value)
		}
	case "incr":
		value, err = c.Increment(key, 1)
	case "set":
		err = c.Set(item)
	case "add":
		err = c.Add(item)
	}
	if err != nil {
		value = "error"
	}
	fmt.Println(value)
}
X
(cd go && GOFLAGS="-mod=mod -modcacherw" GOPATH=$work/gopath GOCACHE=$work/gocache go build -o ../client-go . 2>../go.txt) || { cat go.txt >&2; exit 1; }
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu
root/usr/bin/memcached -u root -l 127.0.0.1 -p 8721 -U 0 &
python3 relay.py &
cat >ask.py <<'P'
import socket
import subprocess
import time

COMMANDS = {
    "venv/bin/python client.py": "pymemcache python-memcached pylibmc python-binary-memcached emcache",
    "./client-go": "gomemcache",
    "node client.js": "memjs",
}
COUNTERS = {"set": "cmd_set", "add": "cmd_set", "get": "cmd_get", "incr": "incr_hits"}


def connect(port):
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.1)


server = connect(8721)
connect(8722).close()


def ask(text):
    server.sendall(text.encode())
    answer = b""
    while not answer.endswith((b"END\r\n", b"STORED\r\n")):
        answer += server.recv(65536)
    return answer.decode()


def count(op):
    return int(ask("stats\r\n").split(f"STAT {COUNTERS[op]} ")[1].split()[0])


ask("set warm 0 0 1\r\n1\r\n")
for command, clients in COMMANDS.items():
    for client in clients.split():
        found = []
        for op in ("incr", "set", "add", "get"):
            key = f"lost-{client}-{op}"
            if op in ("incr", "get"):
                ask(f"set {key} 0 0 1\r\n5\r\n")
            before = count(op)
            run = subprocess.run([*command.split(), client, op, key], check=True, capture_output=True, text=True, timeout=60)
            ran = count(op) - before - (op == "get")  # the first get warms the connection
            found.append(f"{op} x{ran} {run.stdout.strip()}")
        print(f"{client}: " + "; ".join(found), flush=True)
P
python3 ask.py | tee seen
diff - seen <<'X'
pymemcache: incr x1 error; set x1 error; add x1 error; get x1 error
python-memcached: incr x1 None; set x1 0; add x1 0; get x1 None
pylibmc: incr x1 error; set x1 error; add x1 error; get x1 error
python-binary-memcached: incr x1 0; set x1 False; add x1 False; get x1 None
emcache: incr x1 error; set x1 error; add x1 error; get x1 error
gomemcache: incr x1 error; set x1 error; add x1 error; get x1 error
memjs: incr x2 7; set x2 true; add x2 false; get x2 5
X
echo "as before"

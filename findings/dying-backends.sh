#!/usr/bin/env bash
# Six reverse proxies whose back end dies before or within its response: HAProxy 2.6.12, nginx 1.22.1, Apache 2.4.71, lighttpd
# 1.4.69, Varnish 7.1.1 (Debian 12's builds), Go 1.26.8's httputil.ReverseProxy. Each has two back ends, kept connections to them,
# and defaults otherwise; nginx and Apache are kept from marking a back end as down, so that each case stands alone.
# Guessed: a request that got no answer is repeated at the other back end if it is GET or PUT, never POST. A response that breaks off
# reaches the client as far as it came, and breaks off there too, whether by FIN or RST; only a response without a length, which
# the back end ends by FIN, counts as complete.
# Seen:
# - No answer on a new connection: only nginx tries the other back end, for GET and PUT. The others report 502, 500 or 503.
# - No answer on a kept connection: nginx repeats GET and PUT, Varnish and Go repeat GET. HAProxy and Apache end the client's
#   connection without sending a byte, for POST too, so the client decides. lighttpd keeps no connections to back ends.
# - lighttpd makes a complete response, with a Content-Length of what it got, from chunks without the last one, and from a response
#   without a length that ends by RST. HAProxy ends the latter by FIN, so its client takes it for complete.
# - Behind RST nginx sends the header and drops the 1,000 bytes that it had; behind FIN it sends them. Varnish does either. Go, when
#   the response has a length, sends nothing, not even the header, so its client cannot tell that there was a response.
# - A client of HTTP/1.0 takes chunks that break off for complete, behind each of the six.
# Matters to a back end that can die within a response: a Content-Length is the only sign of the loss that passes through each of these
# proxies, and a client whose connection ends without a byte may repeat a POST that has run (reset-kept-connections.sh).
set -euo pipefail
work=$(mktemp -d)
trap 'for p in $(jobs -p); do kill "$p" 2>/dev/null || true; done; wait; chmod -R u+w "$work"; rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
apt-get download -qq haproxy=2.6.12-1+deb12u4 nginx=1.22.1-9+deb12u11 apache2-bin=2.4.71-1~deb12u1 lighttpd=1.4.69-1 \
  varnish=7.1.1-2+deb12u1 libvarnishapi3=7.1.1-2+deb12u1 libapr1 libaprutil1 libjemalloc2 libldap-2.5-0 liblua5.3-0 \
  libopentracing-c-wrapper0 libopentracing1 libedit2 libbsd0 libnettle8 libhogweed6 2>apt.txt || { cat apt.txt >&2; exit 1; }
for deb in *.deb; do dpkg-deb -x "$deb" root; done
mkdir run go
cat >backend.py <<'P'
import socket
import struct
import threading
import time

executed = 0


def serve(connection):
    global executed
    stream, kept = connection.makefile("rb"), False
    while line := stream.readline():
        length = 0
        while (field := stream.readline()) not in (b"\r\n", b""):
            if field.lower().startswith(b"content-length:"):
                length = int(field.split(b":")[1])
        stream.read(length)
        what, _, end = line.split()[1].decode().strip("/").split("?")[0].partition("-")
        body = b"ok"
        if what == "executed":
            body, executed = str(executed).encode(), 0
        elif what in ("none", "length", "chunks", "bare") or (what == "kept" and kept and executed == 0):
            executed += 1
            if what in ("length", "chunks", "bare"):
                head, body = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n", b"x" * 1000
                if what == "length":
                    head += b"Content-Length: 2000\r\n"
                elif what == "chunks" and b"HTTP/1.1" in line:
                    head, body = head + b"Transfer-Encoding: chunked\r\n", b"3e8\r\n" + body + b"\r\n"
                else:
                    head += b"Connection: close\r\n"
                connection.sendall(head + b"\r\n" + body)
            time.sleep(0.3)
            if end == "RST":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            break
        elif what == "kept":
            executed += 1
        kept = True
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    stream.close()
    connection.close()


def guard(connection):
    try:
        serve(connection)
    except ConnectionResetError:
        pass


def listen(listener):
    while True:
        threading.Thread(target=guard, args=(listener.accept()[0],), daemon=True).start()


for port in (8700, 8701):
    threading.Thread(target=listen, args=(socket.create_server(("127.0.0.1", port)),), daemon=True).start()
threading.Event().wait()
P
cat >ask.py <<'P'
import re
import socket
import time

PROXIES = {"HAProxy": 8711, "nginx": 8712, "Apache": 8713, "lighttpd": 8714, "Varnish": 8715, "Go": 8716}


class Client:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.stream = self.socket.makefile("rb")

    def ask(self, method, path, version="1.1"):
        """How the answer ended, and how many bytes of its body came."""
        body = "" if method == "GET" else "x=1"
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        self.socket.sendall(f"{method} /{path} HTTP/{version}\r\nHost: a\r\n{length}\r\n{body}".encode())
        try:
            return self.answer()
        except ConnectionResetError:
            return "RST"

    def answer(self):
        status, fields = self.stream.readline(), {}
        if not status:
            return "no byte"
        while (line := self.stream.readline()).strip():
            name, _, value = line.decode().partition(":")
            fields[name.lower()] = value.strip()
        code = status.split()[1].decode()
        if code != "200":
            return code
        self.body = b""
        if "transfer-encoding" in fields:
            while size := self.stream.readline():
                if int(size, 16) == 0:
                    return f"complete chunks of {len(self.body)}"
                self.body += self.stream.read(int(size, 16))
                self.stream.readline()
            return f"broken chunks of {len(self.body)}"
        if "content-length" in fields:
            length = int(fields["content-length"])
            self.body = self.stream.read(length)
            return f"all {length}" if len(self.body) == length else f"{len(self.body)} of {length}"
        self.body = self.stream.read()
        return f"{len(self.body)} until FIN"


def executed():
    back = Client(8700)
    back.ask("GET", "executed")
    return int(back.body)


def requests(port, what, end):
    found = []
    for method in ("GET", "PUT", "POST"):
        client = Client(port)
        # Warm connections to both back ends.
        for i in range(4 if what == "kept" else 0):
            client.ask("GET", f"warm?{method}{end}{i}")
        time.sleep(0.1)
        executed()
        answer = client.ask(method, f"{what}-{end}?{method}")
        found.append(f"{method} {answer.replace('all 2', 'answered')} x{executed()}")
    return ", ".join(found)


def response(port, path, version="1.1"):
    text = Client(port).ask("GET", path, version)
    # Whether Varnish passes on what came before the end is a matter of time.
    return re.sub(r"^\d+ of 2000", "part of 2000", re.sub("(broken chunks) of.*", r"\1", text)) if port == PROXIES["Varnish"] and "until" not in text else text


ROWS = {}
for what in ("none", "kept"):
    for end in ("FIN", "RST"):
        ROWS[f"{what}, {end}"] = lambda port, what=what, end=end: requests(port, what, end)
for what in ("length", "chunks", "bare"):
    for end in ("FIN", "RST"):
        ROWS[f"{what}, {end}"] = lambda port, what=what, end=end: response(port, f"{what}-{end}")
ROWS["chunks, FIN, HTTP/1.0"] = lambda port: response(port, "chunks-FIN?1.0", "1.0")
for port in (8700, *PROXIES.values()):
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.1)
for row, ask in ROWS.items():
    print(f"{row}: " + "; ".join(f"{name} {ask(port)}" for name, port in PROXIES.items()), flush=True)
P
cat >haproxy.cfg <<'X'
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
listen web
  bind 127.0.0.1:8711
  server a 127.0.0.1:8700
  server b 127.0.0.1:8701
X
cat >nginx.conf <<X
daemon off; pid $work/run/nginx.pid; error_log $work/run/nginx.log;
events { }
http { access_log off; client_body_temp_path $work/run/b; proxy_temp_path $work/run/p; fastcgi_temp_path $work/run/f; uwsgi_temp_path $work/run/u;
  scgi_temp_path $work/run/s;
  upstream web { server 127.0.0.1:8700 max_fails=0; server 127.0.0.1:8701 max_fails=0; keepalive 8; }
  server { listen 127.0.0.1:8712; location / { proxy_pass http://web; proxy_http_version 1.1; proxy_set_header Connection ""; } } }
X
cat >apache.conf <<X
ServerRoot $work
ServerName a
PidFile run/apache.pid
Listen 127.0.0.1:8713
ErrorLog run/apache.log
Mutex file:$work/run default
DefaultRuntimeDir $work/run
$(for m in mpm_event authz_core proxy proxy_http proxy_balancer slotmem_shm lbmethod_byrequests; do echo "LoadModule ${m}_module root/usr/lib/apache2/modules/mod_$m.so"; done)
<Proxy balancer://web>
  BalancerMember http://127.0.0.1:8700 retry=0
  BalancerMember http://127.0.0.1:8701 retry=0
</Proxy>
ProxyPass / balancer://web/
X
cat >lighttpd.conf <<X
server.document-root = "$work/run"
server.port = 8714
server.bind = "127.0.0.1"
server.modules = ("mod_proxy")
proxy.server = ("" => (("host" => "127.0.0.1", "port" => 8700), ("host" => "127.0.0.1", "port" => 8701)))
X
cat >web.vcl <<'X'
vcl 4.1;
import directors;
backend a { .host = "127.0.0.1"; .port = "8700"; }
backend b { .host = "127.0.0.1"; .port = "8701"; }
sub vcl_init { new web = directors.round_robin(); web.add_backend(a); web.add_backend(b); }
sub vcl_recv { set req.backend_hint = web.backend(); }
X
cat >go/main.go <<'X'
package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
)

func main() {
	log.SetOutput(io.Discard)
	var count atomic.Uint64
	of := []*url.URL{{Scheme: "http", Host: "127.0.0.1:8700"}, {Scheme: "http", Host: "127.0.0.1:8701"}}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(of[count.Add(1)%2]) }}
	http.ListenAndServe("127.0.0.1:8716", proxy)
}
X
(cd go && GOCACHE=$work/gocache go build -o ../proxy main.go)
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu:$work/root/lib/x86_64-linux-gnu
python3 backend.py &
root/usr/sbin/haproxy -db -f haproxy.cfg >run/haproxy.txt 2>&1 &
root/usr/sbin/nginx -c "$work/nginx.conf" -p "$work" >run/nginx.txt 2>&1 &
root/usr/sbin/apache2 -f "$work/apache.conf" -DFOREGROUND >run/apache.txt 2>&1 &
root/usr/sbin/lighttpd -D -f lighttpd.conf -m root/usr/lib/lighttpd >run/lighttpd.txt 2>&1 &
root/usr/sbin/varnishd -F -a 127.0.0.1:8715 -f "$work/web.vcl" -n "$work/run/varnish" -p "cc_command=cc -shared -fPIC -o %o %s" \
  -p "vmod_path=$work/root/usr/lib/x86_64-linux-gnu/varnish/vmods" >run/varnish.txt 2>&1 &
./proxy &
python3 ask.py | tee seen
diff - seen <<'X'
none, FIN: HAProxy GET 502 x1, PUT 502 x1, POST 502 x1; nginx GET 502 x2, PUT 502 x2, POST 502 x1; Apache GET 502 x1, PUT 502 x1, POST 502 x1; lighttpd GET 500 x1, PUT 500 x1, POST 500 x1; Varnish GET 503 x1, PUT 503 x1, POST 503 x1; Go GET 502 x1, PUT 502 x1, POST 502 x1
none, RST: HAProxy GET 502 x1, PUT 502 x1, POST 502 x1; nginx GET 502 x2, PUT 502 x2, POST 502 x1; Apache GET 502 x1, PUT 502 x1, POST 502 x1; lighttpd GET 500 x1, PUT 500 x1, POST 500 x1; Varnish GET 503 x1, PUT 503 x1, POST 503 x1; Go GET 502 x1, PUT 502 x1, POST 502 x1
kept, FIN: HAProxy GET no byte x1, PUT no byte x1, POST no byte x1; nginx GET answered x2, PUT answered x2, POST 502 x1; Apache GET no byte x1, PUT no byte x1, POST no byte x1; lighttpd GET answered x1, PUT answered x1, POST answered x1; Varnish GET answered x2, PUT 503 x1, POST 503 x1; Go GET answered x2, PUT 502 x1, POST 502 x1
kept, RST: HAProxy GET no byte x1, PUT no byte x1, POST no byte x1; nginx GET answered x2, PUT answered x2, POST 502 x1; Apache GET no byte x1, PUT no byte x1, POST no byte x1; lighttpd GET answered x1, PUT answered x1, POST answered x1; Varnish GET answered x2, PUT 503 x1, POST 503 x1; Go GET answered x2, PUT 502 x1, POST 502 x1
length, FIN: HAProxy 1000 of 2000; nginx 1000 of 2000; Apache 1000 of 2000; lighttpd 1000 of 2000; Varnish part of 2000; Go no byte
length, RST: HAProxy 1000 of 2000; nginx 0 of 2000; Apache 1000 of 2000; lighttpd 1000 of 2000; Varnish part of 2000; Go no byte
chunks, FIN: HAProxy broken chunks of 1000; nginx broken chunks of 1000; Apache broken chunks of 1000; lighttpd all 1000; Varnish broken chunks; Go broken chunks of 1000
chunks, RST: HAProxy broken chunks of 1000; nginx broken chunks of 1000; Apache broken chunks of 1000; lighttpd all 1000; Varnish broken chunks; Go broken chunks of 1000
bare, FIN: HAProxy 1000 until FIN; nginx complete chunks of 1000; Apache complete chunks of 1000; lighttpd all 1000; Varnish complete chunks of 1000; Go complete chunks of 1000
bare, RST: HAProxy 1000 until FIN; nginx broken chunks of 0; Apache broken chunks of 1000; lighttpd all 1000; Varnish broken chunks; Go broken chunks of 1000
chunks, FIN, HTTP/1.0: HAProxy 1000 until FIN; nginx 1000 until FIN; Apache 1000 until FIN; lighttpd all 1000; Varnish 1000 until FIN; Go 1000 until FIN
X
echo "as before"

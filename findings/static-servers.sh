#!/usr/bin/env bash
# Static files: lighttpd 1.4.69, Apache 2.4.71, Caddy 2.6.2, h2o 2.2.5, busybox 1.35.0 (Debian 12's builds). A file of 3,000
# bytes, last modified 2025-01-02 03:04:05 UTC, and an empty one. Cells of ranges: status, Content-Range (or "multi"), bytes
# of body; of preconditions (RFC 9110, section 13): the status.
# Guessed: a server that knows ranges treats HEAD and HTTP/1.0 like GET and HTTP/1.1, and an empty file gives 416 or 200; all
# five obey If-Match and read the three date formats that a recipient must take (section 5.6.7).
# Seen, ranges:
# - lighttpd ignores Range in HEAD and in HTTP/1.0, and answers two ranges that lie close together with one 206 that also
#   holds the bytes between them.
# - busybox sends a body to HEAD if the request has a Range.
# - `bytes=-0` is the whole file for Apache and busybox, a 206 without a byte for Caddy, and 416 for the others. A space behind
#   `bytes=` gives the whole file from Apache and busybox, and 416 from h2o.
# - Caddy and h2o answer 416 to a unit they do not know, which RFC 9110 (section 14.2) lets a server ignore, and 206 with
#   `bytes 0--1/0` to a suffix of an empty file.
# Seen, preconditions:
# - lighttpd, h2o and busybox ignore If-Match and If-Unmodified-Since: a client that asks for the rest of a file by
#   If-Match is given the rest of another one.
# - busybox ignores If-Modified-Since, and h2o reads no RFC 850 and no asctime date in it. h2o knows no list, no star and no
#   weak tag in If-None-Match, busybox no star.
# - A future If-Modified-Since, which section 13.1.3 has recipients ignore, is 304 for lighttpd, Caddy and h2o.
# Matters to a server that resumes a download by a range elsewhere: a 206 may hold more than was asked for, HEAD does not show
# whether GET would obey the range, and only the ETag of the answer itself shows that the file is the same.
set -euo pipefail
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
chmod 755 "$work" # h2o gives up root and still has to read the files
cd "$work"
for package in lighttpd=1.4.69-1 apache2-bin=2.4.71-1~deb12u1 libapr1=1.7.2-3+deb12u1 libaprutil1=1.6.3-1+deb12u1 \
  caddy=2.6.2-5 h2o=2.2.5+dfsg2-7 libh2o0.13=2.2.5+dfsg2-7 libh2o-evloop0.13=2.2.5+dfsg2-7 libwslay1=1.1.1-3+b1 \
  busybox-static=1:1.35.0-4+deb12u1+b1; do
  apt-get download -qq "$package" 2>apt.log || { cat apt.log >&2; exit 1; }
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
mkdir www
head -c 3000 /dev/zero >www/f.bin
touch -d '2025-01-02 03:04:05 UTC' www/f.bin
: >www/e.bin
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu HOME=$work

cat >lighttpd.conf <<X
server.document-root = "$work/www"
server.bind = "127.0.0.1"
server.port = 17002
mimetype.assign = (".bin" => "application/octet-stream")
X
cat >apache.conf <<X
ServerRoot $work/root
LoadModule mpm_event_module usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module usr/lib/apache2/modules/mod_authz_core.so
Listen 127.0.0.1:17003
ServerName localhost
PidFile $work/apache.pid
ErrorLog $work/apache.log
DocumentRoot $work/www
X
cat >h2o.conf <<X
listen: {host: 127.0.0.1, port: 17005}
hosts: {default: {paths: {/: {file.dir: $work/www}}}}
num-threads: 1
X
root/usr/sbin/lighttpd -D -f lighttpd.conf -m root/usr/lib/lighttpd 2>lighttpd.log & pids+=($!)
root/usr/sbin/apache2 -X -f "$work/apache.conf" & pids+=($!)
root/usr/bin/caddy file-server --root www --listen 127.0.0.1:17004 >caddy.log 2>&1 & pids+=($!)
root/usr/bin/h2o -c h2o.conf >h2o.log 2>&1 & pids+=($!)
root/bin/busybox httpd -f -p 127.0.0.1:17006 -h www & pids+=($!)

cat >ask.py <<'X'
import socket
import time

SERVERS = {"lighttpd": 17002, "apache": 17003, "caddy": 17004, "h2o": 17005, "busybox": 17006}
RANGES = [
    ("GET /f.bin HTTP/1.1", "bytes=0-9"),
    ("HEAD /f.bin HTTP/1.1", "bytes=0-9"),
    ("GET /f.bin HTTP/1.0", "bytes=0-9"),
    ("GET /f.bin HTTP/1.1", "bytes=0-0,2-2"),
    ("GET /f.bin HTTP/1.1", "bytes=20-29,0-9"),
    ("GET /f.bin HTTP/1.1", "bytes=-0"),
    ("GET /f.bin HTTP/1.1", "bytes= 0-9"),
    ("GET /f.bin HTTP/1.1", "lines=0-9"),
    ("GET /e.bin HTTP/1.1", "bytes=0-"),
    ("GET /e.bin HTTP/1.1", "bytes=-5"),
]
PRECONDITIONS = [
    "If-Match: TAG",
    'If-Match: "other"',
    "If-None-Match: W/TAG",
    'If-None-Match: "other", TAG',
    "If-None-Match: *",
    "If-Unmodified-Since: Wed, 01 Jan 2025 00:00:00 GMT",
    "If-Modified-Since: Thu, 02 Jan 2025 03:04:05 GMT",
    "If-Modified-Since: Thursday, 02-Jan-25 03:04:05 GMT",
    "If-Modified-Since: Thu Jan  2 03:04:05 2025",
    "If-Modified-Since: Fri, 31 Dec 2060 23:59:59 GMT",
]


def connect(port):
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port}")


def ask(port, line, field):
    """The status, the fields and the body."""
    with connect(port) as s:
        s.sendall(f"{line}\r\nHost: localhost\r\nConnection: close\r\n{field}\r\n\r\n".encode())
        answer = b""
        while part := s.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    fields = {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in head.decode("latin-1").split("\r\n")[1:])}
    return head.split()[1].decode(), fields, body


def span(port, line, value):
    status, fields, body = ask(port, line, f"Range: {value}")
    found = fields.get("content-range", "-").removeprefix("bytes ")
    if fields.get("content-type", "").startswith("multipart/byteranges"):
        found = "multi"
    # How long an error's page or a multipart answer is does not matter here.
    return f"{status} {found}" + (f" {len(body)}" if status in ("200", "206") and found != "multi" else "")


def row(name, cell):
    print(f"{name}: " + "; ".join(f"{server} {cell(port)}" for server, port in SERVERS.items()))


for line, value in RANGES:
    row(f"{line}, {value}", lambda port: span(port, line, value))
tags = {port: ask(port, "GET /f.bin HTTP/1.1", "X-Nothing: 1")[1].get("etag", "") for port in SERVERS.values()}
for field in PRECONDITIONS:
    row(field, lambda port: ask(port, "GET /f.bin HTTP/1.1", field.replace("TAG", tags[port]))[0])
X
/usr/bin/python3 ask.py | tee seen
diff - seen <<'X'
GET /f.bin HTTP/1.1, bytes=0-9: lighttpd 206 0-9/3000 10; apache 206 0-9/3000 10; caddy 206 0-9/3000 10; h2o 206 0-9/3000 10; busybox 206 0-9/3000 10
HEAD /f.bin HTTP/1.1, bytes=0-9: lighttpd 200 - 0; apache 206 0-9/3000 0; caddy 206 0-9/3000 0; h2o 206 0-9/3000 0; busybox 206 0-9/3000 10
GET /f.bin HTTP/1.0, bytes=0-9: lighttpd 200 - 3000; apache 206 0-9/3000 10; caddy 206 0-9/3000 10; h2o 206 0-9/3000 10; busybox 206 0-9/3000 10
GET /f.bin HTTP/1.1, bytes=0-0,2-2: lighttpd 206 0-2/3000 3; apache 206 multi; caddy 206 multi; h2o 206 multi; busybox 200 - 3000
GET /f.bin HTTP/1.1, bytes=20-29,0-9: lighttpd 206 0-29/3000 30; apache 206 multi; caddy 206 multi; h2o 206 multi; busybox 200 - 3000
GET /f.bin HTTP/1.1, bytes=-0: lighttpd 416 -; apache 200 - 3000; caddy 206 3000-2999/3000 0; h2o 416 */3000; busybox 200 - 3000
GET /f.bin HTTP/1.1, bytes= 0-9: lighttpd 206 0-9/3000 10; apache 200 - 3000; caddy 206 0-9/3000 10; h2o 416 */3000; busybox 200 - 3000
GET /f.bin HTTP/1.1, lines=0-9: lighttpd 200 - 3000; apache 200 - 3000; caddy 416 -; h2o 416 */3000; busybox 200 - 3000
GET /e.bin HTTP/1.1, bytes=0-: lighttpd 200 - 0; apache 200 - 0; caddy 416 */0; h2o 416 */0; busybox 200 - 0
GET /e.bin HTTP/1.1, bytes=-5: lighttpd 200 - 0; apache 200 - 0; caddy 206 0--1/0 0; h2o 206 0--1/0 0; busybox 200 - 0
If-Match: TAG: lighttpd 200; apache 200; caddy 200; h2o 200; busybox 200
If-Match: "other": lighttpd 200; apache 412; caddy 412; h2o 200; busybox 200
If-None-Match: W/TAG: lighttpd 304; apache 304; caddy 304; h2o 200; busybox 304
If-None-Match: "other", TAG: lighttpd 304; apache 304; caddy 304; h2o 200; busybox 304
If-None-Match: *: lighttpd 304; apache 304; caddy 304; h2o 200; busybox 200
If-Unmodified-Since: Wed, 01 Jan 2025 00:00:00 GMT: lighttpd 200; apache 412; caddy 412; h2o 200; busybox 200
If-Modified-Since: Thu, 02 Jan 2025 03:04:05 GMT: lighttpd 304; apache 304; caddy 304; h2o 304; busybox 200
If-Modified-Since: Thursday, 02-Jan-25 03:04:05 GMT: lighttpd 304; apache 304; caddy 304; h2o 200; busybox 200
If-Modified-Since: Thu Jan  2 03:04:05 2025: lighttpd 304; apache 304; caddy 304; h2o 200; busybox 200
If-Modified-Since: Fri, 31 Dec 2060 23:59:59 GMT: lighttpd 304; apache 200; caddy 304; h2o 304; busybox 200
X
echo "as before"

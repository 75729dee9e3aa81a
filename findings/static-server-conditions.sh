#!/usr/bin/env bash
# Static files and preconditions (RFC 9110, section 13): lighttpd 1.4.69, Apache 2.4.71, Caddy 2.6.2, h2o 2.2.5, busybox
# 1.35.0 (Debian 12's builds). One file of 3,000 bytes, last modified 2025-01-02 03:04:05 UTC. Each cell: the status.
# Guessed: all five obey If-Match and read the three date formats that a recipient must take (section 5.6.7).
# Seen:
# - lighttpd, h2o and busybox ignore If-Match and If-Unmodified-Since: a client that asks for the rest of a file by
#   If-Match is given the rest of another one.
# - h2o and busybox read no RFC 850 and no asctime date; h2o knows no list, no star and no weak tag in If-None-Match, busybox no star.
# - A future If-Modified-Since, which section 13.1.3 has recipients ignore, is 304 for lighttpd, Caddy and h2o.
# Matters to an adopter: only the ETag of the answer itself shows that the file is the same.
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
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu HOME=$work

cat >lighttpd.conf <<X
server.document-root = "$work/www"
server.bind = "127.0.0.1"
server.port = 17012
mimetype.assign = (".bin" => "application/octet-stream")
X
cat >apache.conf <<X
ServerRoot $work/root
LoadModule mpm_event_module usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module usr/lib/apache2/modules/mod_authz_core.so
Listen 127.0.0.1:17013
ServerName localhost
PidFile $work/apache.pid
ErrorLog $work/apache.log
DocumentRoot $work/www
X
cat >h2o.conf <<X
listen: {host: 127.0.0.1, port: 17015}
hosts: {default: {paths: {/: {file.dir: $work/www}}}}
num-threads: 1
X
root/usr/sbin/lighttpd -D -f lighttpd.conf -m root/usr/lib/lighttpd 2>lighttpd.log & pids+=($!)
root/usr/sbin/apache2 -X -f "$work/apache.conf" & pids+=($!)
root/usr/bin/caddy file-server --root www --listen 127.0.0.1:17014 >caddy.log 2>&1 & pids+=($!)
root/usr/bin/h2o -c h2o.conf >h2o.log 2>&1 & pids+=($!)
root/bin/busybox httpd -f -p 127.0.0.1:17016 -h www & pids+=($!)

cat >ask.py <<'X'
import socket
import time

SERVERS = {"lighttpd": 17012, "apache": 17013, "caddy": 17014, "h2o": 17015, "busybox": 17016}
ROWS = [
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


def ask(port, field):
    with connect(port) as s:
        s.sendall(f"GET /f.bin HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{field}\r\n\r\n".encode())
        answer = b""
        while part := s.recv(65536):
            answer += part
    head = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    tag = next((x.partition(":")[2].strip() for x in head if x.lower().startswith("etag:")), "")
    return head[0].split()[1], tag


tags = {port: ask(port, "X-Nothing: 1")[1] for port in SERVERS.values()}
for field in ROWS:
    print(f"{field}: " + "; ".join(f"{name} {ask(port, field.replace('TAG', tags[port]))[0]}" for name, port in SERVERS.items()))
X
/usr/bin/python3 ask.py | tee seen
diff - seen <<'X'
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

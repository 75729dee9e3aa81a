#!/usr/bin/env bash
# Requests at the edges of RFC 9110 and 9112, as nginx 1.22.1 (Debian 12's) answers them.
# Guessed: white space in front of a field's value does not matter, HTTP/1.10 is no version, `Connection: closed` is an
# unknown option, a false precondition leaves the connection open, lists may end with a comma, and PUT (ngx_http_dav) obeys
# `If-None-Match: *`.
# Seen: a tab behind `Host:` is 400 and a space is not; HTTP/1.10 is served; any value of Connection that contains "close"
# closes; a 412 closes the connection, a 404 does not; two If-None-Match lines are 400;
# `bytes=0-0,` is 416; PUT overwrites in spite of `If-None-Match: *`.
# Matters to a server that is held against nginx request by request.
set -euo pipefail
work=$(mktemp -d)
pid=
trap '[[ -z $pid ]] || kill "$pid" 2>/dev/null; wait; rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
apt-get download -qq nginx=1.22.1-9+deb12u11 2>apt.log || { cat apt.log >&2; exit 1; }
dpkg-deb -x ./*.deb root
mkdir www
echo 0123456789 >www/f
cat >nginx.conf <<X
daemon off;
master_process off;
user root;
pid $work/nginx.pid;
error_log $work/error.log;
events {}
http {
  access_log off;
  client_body_temp_path $work/body;
  server { listen 127.0.0.1:17031; root $work/www; location /up/ { dav_methods PUT; create_full_put_path on; } }
}
X
root/usr/sbin/nginx -p "$work" -e "$work/error.log" -c "$work/nginx.conf" & pid=$!
cat >ask.py <<'X'
import socket
import time


def connect():
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", 17031), 5)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("nginx does not listen")


def ask(text):
    """The status, and whether the connection is open afterwards."""
    with connect() as s:
        s.sendall(text.encode())
        s.settimeout(1)
        answer, state = b"", "stays open"
        try:
            while part := s.recv(65536):
                answer += part
            state = "closes"
        except TimeoutError:
            pass
    return f"{answer.split()[1].decode()}, {state}"


ROWS = [
    "GET /f HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /f HTTP/1.1\r\nHost:\ta\r\n\r\n",
    "GET /f HTTP/1.10\r\nHost: a\r\n\r\n",
    "GET /f HTTP/1.1\r\nHost: a\r\nConnection: closed\r\n\r\n",
    "GET /none HTTP/1.1\r\nHost: a\r\n\r\n",
    'GET /f HTTP/1.1\r\nHost: a\r\nIf-Match: "x"\r\n\r\n',
    'GET /f HTTP/1.1\r\nHost: a\r\nIf-None-Match: "x"\r\nIf-None-Match: "y"\r\n\r\n',
    "GET /f HTTP/1.1\r\nHost: a\r\nRange: bytes=0-0,\r\n\r\n",
    "PUT /up/g HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1",
    "PUT /up/g HTTP/1.1\r\nHost: a\r\nIf-None-Match: *\r\nContent-Length: 1\r\n\r\n2",
]
for row in ROWS:
    line, _, fields = row.partition("\r\n")
    shown = "; ".join(repr(f)[1:-1] for f in fields.split("\r\n\r\n")[0].split("\r\n"))
    print(f"{line}; {shown}: {ask(row)}")
print("the file holds", open("www/up/g").read())
X
/usr/bin/python3 ask.py | tee seen
diff - seen <<'X'
GET /f HTTP/1.1; Host: a: 200, stays open
GET /f HTTP/1.1; Host:\ta: 400, closes
GET /f HTTP/1.10; Host: a: 200, stays open
GET /f HTTP/1.1; Host: a; Connection: closed: 200, closes
GET /none HTTP/1.1; Host: a: 404, stays open
GET /f HTTP/1.1; Host: a; If-Match: "x": 412, closes
GET /f HTTP/1.1; Host: a; If-None-Match: "x"; If-None-Match: "y": 400, closes
GET /f HTTP/1.1; Host: a; Range: bytes=0-0,: 416, stays open
PUT /up/g HTTP/1.1; Host: a; Content-Length: 1: 201, stays open
PUT /up/g HTTP/1.1; Host: a; If-None-Match: *; Content-Length: 1: 204, stays open
the file holds 2
X
echo "as before"

#!/usr/bin/env bash
# A file is replaced on the server while a download of it is interrupted: curl 7.88.1, wget 1.21.3, aria2 1.36.0, lftp 4.9.2
# and apt 2.6.2 (Debian 12's) go on. The server sends 1,000,000 of 2,000,000 bytes `A` and closes; from then on it serves
# 2,000,000 bytes `B` with another ETag and a later Last-Modified, and obeys If-Range.
# Guessed: a client that resumes with what it was told about the file (ETag, Last-Modified) sends If-Range.
# Seen: apt alone does (by date), and gets the new file whole. wget, aria2, lftp and `curl -C -` send a bare Range and
# leave a file of both, with exit code 0. `curl --retry -C -` begins again from the first byte.
# Matters to whoever compares with "a client that reconnects": such a client can end well with a mixed file.
set -euo pipefail
work=$(mktemp -d)
pid=
trap '[[ -z $pid ]] || kill "$pid" 2>/dev/null; wait; rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
for package in curl=7.88.1-10+deb12u15 libcurl4=7.88.1-10+deb12u15 wget=1.21.3-1+deb12u1 aria2=1.36.0-1 libaria2-0=1.36.0-1 libc-ares2=1.18.1-3 libssh2-1=1.10.0-3+deb12u1 lftp=4.9.2-2+b1; do
  apt-get download -qq "$package" 2>apt.log || { cat apt.log >&2; exit 1; }
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu PATH=$work/root/usr/bin:$PATH HOME=$work
cat >serve.py <<'X'
import http.server
import sys

SIZE = 2_000_000


class Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = True
    requests = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self.server.requests += 1
        first = self.server.requests == 1
        body = (b"A" if first else b"B") * SIZE
        tag = '"a"' if first else '"b"'
        modified = f"{'Thu, 02' if first else 'Fri, 03'} Jan 2025 03:04:05 GMT"
        span, condition = self.headers.get("Range"), self.headers.get("If-Range")
        with open("requests", "a") as log:
            print("range" if span else "whole", "if-range" if condition else "bare", file=log)
        if span and condition in (None, tag, modified):
            begin, _, end = span.removeprefix("bytes=").partition("-")
            body = body[int(begin) : int(end or SIZE - 1) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end or SIZE - 1}/{SIZE}")
        else:
            self.send_response(200)
        for name, value in (("Content-Length", len(body)), ("ETag", tag), ("Last-Modified", modified)):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body[: SIZE // 2] if first else body)
        if first:
            self.close_connection = True


server = Server(("127.0.0.1", 0), Handler)
print(server.server_address[1], file=open("port.new", "w"), flush=True)
__import__("os").rename("port.new", "port")
server.serve_forever()
X
# try NAME COMMANDS: how the last request was made, bytes of either version, exit code.
try() {
  rm -f out* requests port
  /usr/bin/python3 serve.py & pid=$!
  until [[ -e port ]]; do sleep 0.1; done
  local code=0
  u=http://127.0.0.1:$(cat port)/f bash -c "$2" >command.log 2>&1 || code=$?
  kill "$pid"
  wait "$pid" 2>/dev/null || true
  echo "$1: last request $(tail -n 1 requests), $(tr -dc A <out | wc -c) old and $(tr -dc B <out | wc -c) new bytes, exit code $code"
}
{
  try "curl, then curl -C -" 'curl -sS -o out $u; curl -sS -C - -o out $u'
  try "curl --retry -C -" 'curl -sS --retry 3 --retry-all-errors --retry-delay 0 -C - -o out $u'
  try "wget" 'wget -q -t 3 --waitretry=0 -O out $u'
  try "aria2" 'aria2c -q -x1 -m 5 --retry-wait=0 -o out $u'
  try "lftp get -c" 'lftp -c "set net:max-retries 3; set net:reconnect-interval-base 1; get -c $u -o out"'
  try "apt" '/usr/lib/apt/apt-helper download-file $u out'
} | tee seen
diff - seen <<'X'
curl, then curl -C -: last request range bare, 1000000 old and 1000000 new bytes, exit code 0
curl --retry -C -: last request whole bare, 0 old and 2000000 new bytes, exit code 0
wget: last request range bare, 1000000 old and 1000000 new bytes, exit code 0
aria2: last request range bare, 1000000 old and 1000000 new bytes, exit code 0
lftp get -c: last request range bare, 1000000 old and 1000000 new bytes, exit code 0
apt: last request range if-range, 0 old and 2000000 new bytes, exit code 0
X
echo "as before"

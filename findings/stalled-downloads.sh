#!/usr/bin/env bash
# A download of 2 MB stops at its half, and the connection stays open: how long do clients wait, and what do they ask for
# then? curl 7.88.1, wget 1.21.3, aria2 1.36.0, apt 2.6.2, lftp 4.9.2, axel 2.17.11, rclone 1.60.1 (Debian 12's builds), pip 26.3,
# uv 0.13.9, httpx 0.28.1, aiohttp 3.14.5, requests 2.34.2, Python 3.11's urllib, undici 7.30.2; all with defaults. The server
# gives a strong ETag and a date, and answers later requests whole and at once. Watched for 330 s.
# Guessed: tools for downloads give up after about a minute and ask for the rest by Range and If-Range; libraries wait for ever.
# Seen:
# - httpx waits 5 s, pip 15, apt and uv 30, axel 45, aria2 60; lftp, rclone, undici and aiohttp 300. curl, wget, requests and
#   urllib wait longer.
# - Those that ask again: apt and pip by Range with If-Range; aria2, axel and lftp by Range alone; uv and rclone from the first
#   byte. The file is whole in all cases. The libraries report an error.
# - aiohttp's 300 s hold for the whole response: a download that makes progress at 2 kB a second ends after 300 s too, and
#   undici's goes on.
# Matters to a service that moves connections between replicas: a gap of 5 s is an error for httpx alone, and curl never notices
# a connection that nobody serves.
set -euo pipefail
work=$(mktemp -d)
pid=
trap '[[ -z $pid ]] || kill "$pid" 2>/dev/null; wait; chmod -R u+w "$work"; rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
for package in curl=7.88.1-10+deb12u15 libcurl4=7.88.1-10+deb12u15 wget=1.21.3-1+deb12u1 aria2=1.36.0-1 libaria2-0=1.36.0-1 \
  libc-ares2=1.18.1-3 libssh2-1=1.10.0-3+deb12u1 lftp=4.9.2-2+b1 axel=2.17.11-3 rclone=1.60.1+dfsg-2+b5; do
  apt-get download -qq "$package" 2>apt.txt || { cat apt.txt >&2; exit 1; }
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check pip==26.3 uv==0.13.9 httpx==0.28.1 aiohttp==3.14.5 requests==2.34.2
npm install --silent --no-fund --no-audit undici@7.30.2
unset ${!PIP_*} ${!UV_*}
export PIP_CONFIG_FILE=/dev/null LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu PATH=$work/root/usr/bin:$PATH HOME=$work

cat >server.py <<'P'
"""The first answer to each client stops at its half; later answers are whole. Prints a line a client when all have ended."""
import http.server, json, os, select, time, zipfile

with zipfile.ZipFile("x-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("x/data", os.urandom(2_000_000))
    wheel.writestr("x-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: x\nVersion: 1.0\n")
    wheel.writestr("x-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("x-1.0.dist-info/RECORD", "x/data,,\n")
body = open("x-1.0-py3-none-any.whl", "rb").read()
began = set()


def waited(seconds):
    return f"waits {5 * round(seconds / 5)} s" if seconds < 320 else ""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.send_response(200)
        self.fields(len(body))

    def fields(self, length):
        for name, value in (("Content-Length", length), ("ETag", '"a"'), ("Accept-Ranges", "bytes"), ("Content-Type", "application/zip"),
                            ("Last-Modified", "Thu, 02 Jan 2025 03:04:05 GMT")):
            self.send_header(name, str(value))
        self.end_headers()

    def do_GET(self):
        client = self.path.split("/")[1]
        span = self.headers.get("Range")
        first, last = 0, len(body) - 1
        if span:
            low, _, high = span.removeprefix("bytes=").partition("-")
            first, last = int(low), int(high or last)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
        else:
            self.send_response(200)
        self.fields(last + 1 - first)
        with open(f"seen.{client}", "a") as log:
            if client.endswith("-slowly"):
                return self.slowly(log)
            if client in began:
                print("range" + " with If-Range" * ("If-Range" in self.headers) if first else "whole", end="; ", file=log)
                log.flush()
                self.wfile.write(body[first : last + 1])
                return
            if first:  # uv reads the directory of the archive before the archive
                return self.wfile.write(body[first : last + 1])
            start = time.monotonic()
            self.wfile.write(body[: last // 2])
            select.select([self.connection], [], [], 400)
            seconds = time.monotonic() - start
            if seconds > 2:  # else it was a look at the head alone, which is axel's
                began.add(client)
                print(waited(seconds) or "waits longer", end="; ", file=log)
        self.close_connection = True

    def slowly(self, log):
        """2 kB a second, which would take 1,000 s."""
        start = time.monotonic()
        while time.monotonic() - start < 320 and not select.select([self.connection], [], [], 1)[0]:
            self.wfile.write(bytes(2000))
        seconds = time.monotonic() - start
        print(waited(seconds) or "goes on", end="; ", file=log)
        self.close_connection = True


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
P
python3 server.py >port & pid=$!
until [ -s port ]; do sleep 0.1; done
base=http://127.0.0.1:$(cat port) file=x-1.0-py3-none-any.whl

cat >get.py <<'P'
import asyncio, sys

client, url = sys.argv[1:]
if client == "httpx":
    import httpx
    httpx.get(url)
elif client == "requests":
    import requests
    requests.get(url)
elif client == "urllib":
    import urllib.request
    urllib.request.urlopen(url).read()
else:
    import aiohttp

    async def run():
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            await answer.read()

    asyncio.run(run())
P
cat >get.mjs <<'P'
import { request } from "undici";
await (await request(process.argv[2])).body.arrayBuffer();
P
run() {
  local name=$1 code=0; shift
  mkdir "in.$name"
  (cd "in.$name"; timeout 330 "$@" >../out."$name" 2>&1 </dev/null) || code=$?
  echo "$code" >"code.$name"
}
run curl curl -sO $base/curl/$file &
run wget wget -q $base/wget/$file &
run aria2 aria2c -q $base/aria2/$file &
run apt /usr/lib/apt/apt-helper download-file $base/apt/$file $file &
run lftp lftp -c "set xfer:log no; get $base/lftp/$file" &
run axel axel -q -n 1 $base/axel/$file &
run rclone rclone copyurl $base/rclone/$file $file &
run pip ../venv/bin/pip download -q --no-cache-dir --no-deps $base/pip/$file &
run uv ../venv/bin/uv pip install -q --no-cache --no-deps --target . $base/uv/$file &
for client in httpx requests urllib aiohttp; do run $client ../venv/bin/python ../get.py $client $base/$client/$file & done
run aiohttp-slowly ../venv/bin/python ../get.py aiohttp $base/aiohttp-slowly/$file &
run undici-slowly node ../get.mjs $base/undici-slowly/$file &
run undici node ../get.mjs $base/undici/$file &
for job in $(jobs -p); do [ "$job" = "$pid" ] || wait "$job"; done
for c in code.*; do echo "${c#code.}: $(cat "seen.${c#code.}")exit $(cat "$c")"; done | tee seen
diff - seen <<'X'
aiohttp: waits 300 s; exit 1
aiohttp-slowly: waits 300 s; exit 1
apt: waits 30 s; range with If-Range; exit 0
aria2: waits 60 s; range; exit 0
axel: waits 45 s; range; exit 0
curl: waits longer; exit 124
httpx: waits 5 s; exit 1
lftp: waits 300 s; range; exit 0
pip: waits 15 s; range with If-Range; exit 0
rclone: waits 300 s; whole; exit 0
requests: waits longer; exit 124
undici: waits 300 s; exit 1
undici-slowly: goes on; exit 1
urllib: waits longer; exit 124
uv: waits 30 s; whole; exit 0
wget: waits longer; exit 124
X
echo "as before"

#!/usr/bin/env bash
# TLS 1.3 clients that keep a connection on which the server sends a KeyUpdate, or a session ticket, after its response
# (RFC 8446 sections 4.6.1 and 4.6.3): curl 7.88.1 with OpenSSL 3.0.22, Wget 1.21.3 with GnuTLS 3.7.9 (Debian 12's builds),
# and, with Python's ssl, http.client, urllib3 2.6.3, httpx 0.28.1 and aiohttp 3.13.3. The server is tlslite-ng 0.8.2. Each
# client fetches two documents, the second 0.3 s after the first where the client allows a pause.
# Guessed: messages of TLS alone carry no data of the application, so a client that keeps a connection uses it again.
# Seen: curl, http.client and aiohttp do. Wget, urllib3 and httpx open a second connection after either message; all documents
# arrive. Without such a message all six use one connection.
# Matters to a server that changes its keys: it must send the KeyUpdate right before a response, not after one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for package in curl=7.88.1-10+deb12u15 libcurl4=7.88.1-10+deb12u15 libssl3=3.0.22-1~deb12u2 wget=1.21.3-1+deb12u1 \
  libgnutls30=3.7.9-2+deb12u7; do
  apt-get download -qq "$package" 2>apt.log || { cat apt.log >&2; exit 1; }
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
/usr/bin/python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check tlslite-ng==0.8.2 ecdsa==0.19.2 urllib3==2.6.3 httpx==0.28.1 aiohttp==3.13.3
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost \
  -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE -keyout key.pem -out cert.pem 2>openssl.log || { cat openssl.log >&2; exit 1; }
cat >fetch.py <<'X'
import asyncio
import http.client
import ssl
import sys
import time

import aiohttp
import httpx
import urllib3

name, port = sys.argv[1], int(sys.argv[2])
context = ssl.create_default_context(cafile="cert.pem")
URL = f"https://localhost:{port}/"


async def by_aiohttp():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        for _ in range(2):
            async with session.get(URL) as response:
                assert len(await response.read()) == 1000
            await asyncio.sleep(0.3)


if name == "http.client":
    connection = http.client.HTTPSConnection("localhost", port, context=context)
    fetch = lambda: (connection.request("GET", "/"), connection.getresponse().read())[1]
elif name == "urllib3":
    pool = urllib3.PoolManager(ssl_context=context)
    fetch = lambda: pool.request("GET", URL).data
elif name == "httpx":
    client = httpx.Client(verify=context, trust_env=False)
    fetch = lambda: client.get(URL).content
else:
    asyncio.run(by_aiohttp())
    sys.exit()
for _ in range(2):
    assert len(fetch()) == 1000
    time.sleep(0.3)
X
cat >ask.py <<'X'
import os
import socket
import subprocess
import threading

from tlslite.api import HandshakeSettings, TLSConnection, X509CertChain, parsePEMKey
from tlslite.constants import KeyUpdateMessageType

chain = X509CertChain()
chain.parsePemList(open("cert.pem").read())
key = parsePEMKey(open("key.pem").read(), private=True)
URLS = ["https://localhost:{}/a", "https://localhost:{}/b"]
PYTHON = ["venv/bin/python", "fetch.py"]
CLIENTS = {
    "curl": ["root/usr/bin/curl", "-s", "--rate", "200/m", "--cacert", "cert.pem", "-o", "a", "-o", "b", *URLS],
    "wget": ["root/usr/bin/wget", "-q", "--wait=0.3", "--ca-certificate=cert.pem", "--tries=1", "-O", "a", *URLS],
    **{name: [*PYTHON, name, "{}"] for name in ("http.client", "urllib3", "httpx", "aiohttp")},
}


def serve(connected, after):
    connection, settings = TLSConnection(connected), HandshakeSettings()
    settings.minVersion, settings.ticket_count = (3, 4), 0
    settings.ticketKeys = [bytearray(32)]
    try:
        connection.handshakeServer(certChain=chain, privateKey=key, settings=settings, alpn=[b"http/1.1"])
        for _ in range(2):
            request = b""
            while b"\r\n\r\n" not in request:
                got = bytes(connection.read(max=4096, min=1))
                if not got:
                    return
                request += got
            connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000)
            if after == "a KeyUpdate":
                for _ in connection.send_keyupdate_request(KeyUpdateMessageType.update_not_requested):
                    pass
            elif after == "a ticket":
                settings.ticket_count = 1
                for _ in connection._serverSendTickets(settings):
                    pass
    except Exception:
        pass  # The client has ended the connection.
    finally:
        connected.close()


def ask(client, after):
    listener, count = socket.create_server(("127.0.0.1", 0)), 0
    command = [word.format(listener.getsockname()[1]) for word in CLIENTS[client]]
    environment = dict(os.environ)
    if not command[0].startswith("venv"):
        environment["LD_LIBRARY_PATH"] = "root/usr/lib/x86_64-linux-gnu"
    process = subprocess.Popen(command, env=environment)
    listener.settimeout(0.1)
    while process.poll() is None:
        try:
            connected = listener.accept()[0]
        except TimeoutError:
            continue
        connected.settimeout(20)
        count += 1
        threading.Thread(target=serve, args=(connected, after)).start()
    listener.close()
    print(f"{client}: {count} connection{'s' if count > 1 else ''}, exit {process.returncode}")


for after in "nothing", "a KeyUpdate", "a ticket":
    print(f"= {after} after the response")
    for client in CLIENTS:
        ask(client, after)
X
venv/bin/python ask.py | tee seen
diff - seen <<'X'
= nothing after the response
curl: 1 connection, exit 0
wget: 1 connection, exit 0
http.client: 1 connection, exit 0
urllib3: 1 connection, exit 0
httpx: 1 connection, exit 0
aiohttp: 1 connection, exit 0
= a KeyUpdate after the response
curl: 1 connection, exit 0
wget: 2 connections, exit 0
http.client: 1 connection, exit 0
urllib3: 2 connections, exit 0
httpx: 2 connections, exit 0
aiohttp: 1 connection, exit 0
= a ticket after the response
curl: 1 connection, exit 0
wget: 2 connections, exit 0
http.client: 1 connection, exit 0
urllib3: 2 connections, exit 0
httpx: 2 connections, exit 0
aiohttp: 1 connection, exit 0
X
echo "as before"

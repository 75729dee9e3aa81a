#!/usr/bin/env bash
# TLS 1.3 clients whose server changes its keys during a download (KeyUpdate, RFC 8446 section 4.6.3): curl 7.88.1 with OpenSSL
# 3.0.22, Wget 1.21.3 with GnuTLS 3.7.9 (Debian 12's builds), rustls 0.23.46. The server is tlslite-ng 0.8.2 and sends a KeyUpdate
# before each 1,000 bytes.
# Guessed: a client answers each request for an update with its own KeyUpdate soon after it was read, and takes any number of
# updates, as TLS demands no limit.
# Seen:
# - With update_requested in each of four updates 0.2 s apart, curl answers three: the answer to one leaves when the next is read.
#   To a single request, after which only data follows, there is no answer before the end.
# - Wget and rustls never answer while they only read. The RFC asks for an answer before the client's next data, and there is none.
# - Twelve updates in a row that request nothing: Wget ends with exit code 4 after 8,000 bytes, and curl and rustls have all.
#   With a pause of 0.2 s between them Wget has all too.
# Matters to a server that must know which keys its client uses: it cannot wait for the client's KeyUpdate in a download, and may
# change its own keys at most eight times a second.
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
venv/bin/pip install -q --disable-pip-version-check tlslite-ng==0.8.2 ecdsa==0.19.2
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost \
  -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE -keyout key.pem -out cert.pem 2>openssl.log || { cat openssl.log >&2; exit 1; }
mkdir src
cat >Cargo.toml <<'X'
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"
[dependencies]
rustls = { version = "=0.23.46", default-features = false, features = ["std", "ring"] }
X
cat >src/main.rs <<'X'
use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, pem::PemObject};

fn main() {
    let port: u16 = std::env::args().nth(1).unwrap().parse().unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file("cert.pem").unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let client = rustls::ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    let mut tls = rustls::StreamOwned::new(client, std::net::TcpStream::connect(("localhost", port)).unwrap());
    tls.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (mut all, mut block) = (Vec::new(), [0; 4096]);
    loop {
        let n = tls.read(&mut block).unwrap();
        assert!(n > 0);
        all.extend_from_slice(&block[..n]);
        let text = String::from_utf8_lossy(&all).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        if head.ends_with(&format!("Content-Length: {}", body.len())) {
            return std::fs::write("body", body).unwrap();
        }
    }
}
X
CARGO_TARGET_DIR=$work/target cargo build -q 2>cargo.log || { cat cargo.log >&2; exit 1; }
cat >ask.py <<'X'
import os
import socket
import subprocess
import time

from tlslite.api import HandshakeSettings, TLSConnection, X509CertChain, parsePEMKey
from tlslite.constants import KeyUpdateMessageType
from tlslite.errors import TLSError

chain = X509CertChain()
chain.parsePemList(open("cert.pem").read())
key = parsePEMKey(open("key.pem").read(), private=True)
KEY_UPDATE = 5  # A message of 4 + 1 bytes; the tag and the kind of what is inside add 17.
CLIENTS = {
    "curl": ["root/usr/bin/curl", "-s", "--cacert", "cert.pem", "-o", "body", "https://localhost:{}/"],
    "wget": ["root/usr/bin/wget", "-q", "--ca-certificate=cert.pem", "--tries=1", "-O", "body", "https://localhost:{}/"],
    "rustls": ["target/debug/fetch", "{}"],
}


class Observed:
    """A socket that keeps what comes, to read the lengths of records from it."""

    def __init__(self, connected):
        self.socket, self.bytes = connected, bytearray()

    def recv(self, count):
        got = self.socket.recv(count)
        self.bytes += got
        return got

    def __getattr__(self, name):
        return getattr(self.socket, name)

    def key_updates(self):
        at = found = 0
        while at < len(self.bytes):
            length = int.from_bytes(self.bytes[at + 3 : at + 5])
            found += length == KEY_UPDATE + 17
            at += 5 + length
        return found


def ask(client, updates, requested, pause):
    listener = socket.create_server(("127.0.0.1", 0))
    command = [word.format(listener.getsockname()[1]) for word in CLIENTS[client]]
    environment = dict(os.environ, LD_LIBRARY_PATH="root/usr/lib/x86_64-linux-gnu")
    process = subprocess.Popen(command, env=environment)
    listener.settimeout(20)
    observed = Observed(listener.accept()[0])
    connection, settings = TLSConnection(observed), HandshakeSettings()
    settings.minVersion, settings.ticket_count = (3, 4), 0
    connection.handshakeServer(certChain=chain, privateKey=key, settings=settings, alpn=[b"http/1.1"])
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.read(max=4096, min=1)
    kind = KeyUpdateMessageType.update_requested if requested else KeyUpdateMessageType.update_not_requested
    try:
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (updates * 1000))
        for _ in range(updates):
            for _ in connection.send_keyupdate_request(kind):
                pass
            connection.write(b"x" * 1000)
            time.sleep(pause)
    except (OSError, TLSError):
        pass  # The client has ended the connection.
    code = process.wait(30)
    try:
        while observed.recv(65536):
            pass
    except ConnectionError:
        pass
    size = os.path.getsize("body") if os.path.exists("body") else 0
    print(f"{client}: {size} bytes, exit {code}, {observed.key_updates()} updates of its own")
    observed.socket.close()


for updates, requested, pause in (1, True, 0.2), (4, True, 0.2), (12, False, 0), (12, False, 0.2):
    print(f"= {updates} updates, {'requested' if requested else 'not requested'}, {pause} s apart")
    for client in CLIENTS:
        if os.path.exists("body"):
            os.remove("body")
        ask(client, updates, requested, pause)
X
venv/bin/python ask.py | tee seen
diff - seen <<'X'
= 1 updates, requested, 0.2 s apart
curl: 1000 bytes, exit 0, 0 updates of its own
wget: 1000 bytes, exit 0, 0 updates of its own
rustls: 1000 bytes, exit 0, 0 updates of its own
= 4 updates, requested, 0.2 s apart
curl: 4000 bytes, exit 0, 3 updates of its own
wget: 4000 bytes, exit 0, 0 updates of its own
rustls: 4000 bytes, exit 0, 0 updates of its own
= 12 updates, not requested, 0 s apart
curl: 12000 bytes, exit 0, 0 updates of its own
wget: 8000 bytes, exit 4, 0 updates of its own
rustls: 12000 bytes, exit 0, 0 updates of its own
= 12 updates, not requested, 0.2 s apart
curl: 12000 bytes, exit 0, 0 updates of its own
wget: 12000 bytes, exit 0, 0 updates of its own
rustls: 12000 bytes, exit 0, 0 updates of its own
X
echo "as before"

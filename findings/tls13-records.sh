#!/usr/bin/env bash
# TLS 1.3 servers, one GET of a file of 200,000 bytes: where records begin, and tickets. lighttpd 1.4.69, Apache 2.4.71,
# Caddy 2.6.2, h2o 2.2.5, HAProxy 2.6.12, nginx 1.22.1 (Debian 12's builds, defaults), asked by tlslite-ng 0.8.2.
# Guessed: the head is a record, the body is cut into records of 16,384 bytes, or of one segment at first; a new connection is
# given two tickets by OpenSSL and one by Go, and a resumed one is given one more, so that each ticket is used once (RFC 8446,
# appendix C.4).
# Seen:
# - Only lighttpd and nginx cut at 16,384, and both put the head into the first record together with the body.
# - Apache writes 8,192 and then 8,000 bytes a record. h2o stays at 1,368 bytes, a segment, for all of the 200,000, with a record
#   of 1,240 behind each 47. HAProxy's largest is 16,320, and it cuts the same answer differently from run to run.
# - Caddy's records grow by one segment each, with short ones between: 1,186, 2,372, 538, 4,744 and so on.
# - A resumed connection gets no ticket at all from lighttpd and h2o: a client that uses a ticket once does a full handshake
#   at every third connection. All six accept the same ticket twice.
# - Tickets are announced for 300 s (Apache, nginx), 3,600 s (h2o), 7,200 s (lighttpd, HAProxy) and 7 days (Caddy).
# Matters to whoever must make a server's ciphertext again elsewhere: where records begin cannot be guessed from the length of an
# answer, so the terminator has to cut them by a rule of its own.
set -euo pipefail
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
chmod 755 "$work" # h2o gives up root and still has to read the files
cd "$work"
for package in lighttpd=1.4.69-1 lighttpd-mod-openssl=1.4.69-1 apache2-bin=2.4.71-1~deb12u1 libapr1=1.7.2-3+deb12u1 \
  libaprutil1=1.6.3-1+deb12u1 caddy=2.6.2-5 h2o=2.2.5+dfsg2-7 libh2o0.13=2.2.5+dfsg2-7 libh2o-evloop0.13=2.2.5+dfsg2-7 \
  libwslay1=1.1.1-3+b1 haproxy=2.6.12-1+deb12u4 libopentracing-c-wrapper0=1.1.3-3+b1 libopentracing1=1.6.0-4 \
  nginx=1.22.1-9+deb12u11; do
  apt-get download -qq "$package" 2>apt.log || { cat apt.log >&2; exit 1; }
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
/usr/bin/python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check tlslite-ng==0.8.2 ecdsa==0.19.2
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost \
  -keyout key.pem -out cert.pem 2>openssl.log || { cat openssl.log >&2; exit 1; }
cat cert.pem key.pem >both.pem
chmod 644 ./*.pem
mkdir www
head -c 200000 /dev/zero >www/f.bin
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu HOME=$work

cat >lighttpd.conf <<X
server.modules = ("mod_openssl")
server.document-root = "$work/www"
server.bind = "127.0.0.1"
server.port = 17102
ssl.engine = "enable"
ssl.pemfile = "$work/both.pem"
X
cat >apache.conf <<X
ServerRoot $work/root
LoadModule mpm_event_module usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module usr/lib/apache2/modules/mod_authz_core.so
LoadModule ssl_module usr/lib/apache2/modules/mod_ssl.so
Listen 127.0.0.1:17103
ServerName localhost
PidFile $work/apache.pid
ErrorLog $work/apache.log
DocumentRoot $work/www
SSLEngine on
SSLCertificateFile $work/cert.pem
SSLCertificateKeyFile $work/key.pem
X
cat >Caddyfile <<X
{
 admin off
 auto_https off
}
https://localhost:17104 {
 bind 127.0.0.1
 tls $work/cert.pem $work/key.pem
 root * $work/www
 file_server
}
X
cat >h2o.conf <<X
listen: {host: 127.0.0.1, port: 17105, ssl: {certificate-file: $work/cert.pem, key-file: $work/key.pem}}
hosts: {default: {paths: {/: {file.dir: $work/www}}}}
num-threads: 1
X
cat >haproxy.cfg <<X
defaults
 mode http
 timeout client 10s
 timeout server 10s
 timeout connect 10s
frontend tls
 bind 127.0.0.1:17106 ssl crt $work/both.pem
 default_backend files
backend files
 server one 127.0.0.1:17108
X
temp=$(for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path $work/temp;"; done)
cat >nginx.conf <<X
daemon off;
master_process off;
pid $work/nginx.pid;
events {}
http {
 access_log off;
 $temp
 server {
  listen 127.0.0.1:17107 ssl;
  listen 127.0.0.1:17108;
  ssl_protocols TLSv1.3;
  ssl_certificate $work/cert.pem;
  ssl_certificate_key $work/key.pem;
  root $work/www;
 }
}
X
root/usr/sbin/lighttpd -D -f lighttpd.conf -m root/usr/lib/lighttpd 2>lighttpd.log & pids+=($!)
root/usr/sbin/apache2 -X -f "$work/apache.conf" 2>apache.err & pids+=($!)
root/usr/bin/caddy run --config Caddyfile --adapter caddyfile >caddy.log 2>&1 & pids+=($!)
root/usr/bin/h2o -c h2o.conf >h2o.log 2>&1 & pids+=($!)
root/usr/sbin/haproxy -db -f haproxy.cfg >haproxy.log 2>&1 & pids+=($!)
root/usr/sbin/nginx -c "$work/nginx.conf" >nginx.log 2>&1 & pids+=($!)

cat >ask.py <<'X'
import socket
import time

from tlslite.api import HandshakeSettings, TLSConnection

SERVERS = {"lighttpd": 17102, "apache": 17103, "caddy": 17104, "h2o": 17105, "haproxy": 17106, "nginx": 17107}


class Observed:
    """A socket that keeps what comes, to read the lengths of records from it."""

    def __init__(self, port):
        self.socket, self.bytes = socket.create_connection(("127.0.0.1", port), 10), bytearray()

    def recv(self, count):
        got = self.socket.recv(count)
        self.bytes += got
        return got

    def __getattr__(self, name):
        return getattr(self.socket, name)

    def application_records(self):
        at = 0
        while at < len(self.bytes):
            length = int.from_bytes(self.bytes[at + 3 : at + 5])
            if self.bytes[at] == 23:
                yield length - 17  # The tag, and the kind of what is inside.
            at += 5 + length


def ask(port, session=None):
    deadline = time.monotonic() + 20
    while True:
        try:
            observed = Observed(port)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    connection, settings = TLSConnection(observed), HandshakeSettings()
    settings.minVersion = settings.maxVersion = (3, 4)
    settings.cipherNames = ["aes128gcm"]
    settings.keyShares = settings.eccCurves = ["secp256r1"]
    connection.handshakeClientCert(settings=settings, session=session, serverName="localhost")
    before = len(list(observed.application_records()))
    connection.send(b"GET /f.bin HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    length = 0
    while got := connection.read(max=65536, min=1):
        length += len(got)
    records = list(observed.application_records())[before:]
    data = [record for record in records if record != 2]  # Less close_notify.
    while sum(data) > length:
        data.pop(0)  # A ticket: some servers send them before the client's Finished, others behind it.
    assert sum(data) == length > 200_000
    return connection, data


for name, port in SERVERS.items():
    connection, data = ask(port)
    tickets = connection.tickets
    # Equal neighbours are counted: 16384*12.
    shown = []
    for size in data[1:-1]:
        if shown and shown[-1][0] == size:
            shown[-1][1] += 1
        else:
            shown.append([size, 1])
    sizes = " ".join(f"{size}*{count}" if count > 1 else str(size) for size, count in shown[:8])
    first = f"the head in a record of {data[0]}, then {sizes}"
    print(f"{name}: {f'largest record {max(data)}' if name == 'haproxy' else first}")
    again = []
    for _ in range(2):
        resumed, _ = ask(port, connection.session)
        again.append(f"{'resumed' if resumed.resumed else 'full'}, {len(resumed.tickets)} tickets")
    print(f"  tickets {len(tickets)} for {tickets[0].ticket_lifetime} s; the same ticket twice: {'; '.join(again)}")
X
venv/bin/python ask.py | tee seen
diff - seen <<'X'
lighttpd: the head in a record of 16384, then 16384*11
  tickets 2 for 7200 s; the same ticket twice: resumed, 0 tickets; resumed, 0 tickets
apache: the head in a record of 8192, then 8000*24
  tickets 2 for 300 s; the same ticket twice: resumed, 1 tickets; resumed, 1 tickets
caddy: the head in a record of 1186, then 2372 538 4744 5930 7116 8302 2816 10674
  tickets 1 for 604800 s; the same ticket twice: resumed, 1 tickets; resumed, 1 tickets
h2o: the head in a record of 1368, then 1368*46 1240 1368*47 1240 1368*47 1240 1368*2
  tickets 2 for 3600 s; the same ticket twice: resumed, 0 tickets; resumed, 0 tickets
haproxy: largest record 16320
  tickets 2 for 7200 s; the same ticket twice: resumed, 1 tickets; resumed, 1 tickets
nginx: the head in a record of 16384, then 16384*11
  tickets 2 for 300 s; the same ticket twice: resumed, 1 tickets; resumed, 1 tickets
X
echo "as before"

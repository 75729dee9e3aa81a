#!/usr/bin/env bash
# One TCP connection to five authoritative DNS servers (RFC 7766): BIND 9.18.49, NSD 4.6.1, Knot 3.2.6, PowerDNS 4.7.3,
# YADIFA 2.6.4 (Debian 12's builds, defaults). Their zone has 3,004 records, 244 kB as a transfer.
# Guessed: all answer a thousand queries that arrive in one piece, in order or not, also when the client ends its side behind
# them; a query may come in pieces over some seconds; an idle connection lives for about ten seconds, and a server that
# knows edns-tcp-keepalive (RFC 7828) says for how long; a query behind AXFR is answered after the transfer.
# Seen:
# - A thousand queries: so, and always in order.
# - A query whose second half comes 3 s after the first half: Knot has closed by then, the others answer.
# - Idle connections: 3 s at YADIFA, 5 at PowerDNS, 10 at Knot, 30 at BIND, more than 70 at NSD. Only BIND answers
#   edns-tcp-keepalive, with the 30 s that it keeps.
# - A query right behind AXFR: BIND's answer comes in the middle of the transfer's messages, and YADIFA resets the
#   connection behind the transfer, so the query is lost. The other three answer it after the transfer.
# Matters to a relay in front of such servers: connections kept for later queries last 3 s at most unless the server is known,
# messages of two queries can be mixed, and pieces of a query are best collected before they are passed on.
set -euo pipefail
work=$(mktemp -d)
trap 'for p in $(jobs -p); do kill "$p" 2>/dev/null || true; done; wait; rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
libraries="libfstrm0 libprotobuf-c1 libevent-2.1-7 libdnssec9 libknot13 libzscanner4 liblmdb0 liburcu8 libcap-ng0 libedit2 libmaxminddb0
 libnghttp2-14 libuv1 libjemalloc2 libjson-c5 libboost-program-options1.74.0 libluajit-5.1-2 libluajit2-5.1-2 libsodium23 libsqlite3-0
 libxml2 libbpf1 libxdp1 libbsd0 libhogweed6 libnettle8"
for package in bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 nsd=4.6.1-1 knot=3.2.6-1 pdns-server=4.7.3-2 \
  pdns-backend-bind=4.7.3-2 yadifa=2.6.4-1 $libraries; do
  apt-get download -qq "$package" 2>apt.txt || { cat apt.txt >&2; exit 1; }
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu:$work/root/lib/x86_64-linux-gnu
mkdir run zones
cat >zones/example.test <<'Z'
$TTL 60
@ IN SOA ns.example.test. admin.example.test. 1 3600 600 86400 60
@ IN NS ns.example.test.
ns IN A 192.0.2.1
www IN A 192.0.2.2
Z
for i in $(seq 3000); do echo "host$i IN TXT \"text of host $i, which is long enough to fill a large zone\""; done >>zones/example.test
cat >named.conf <<X
options { directory "$work/run"; listen-on port 5301 { 127.0.0.1; }; listen-on-v6 { none; }; recursion no; pid-file none;
  session-keyfile none; allow-transfer { any; }; };
controls { };
zone "example.test" { type primary; file "$work/zones/example.test"; };
X
cat >nsd.conf <<X
server:
  ip-address: 127.0.0.1@5302
  username: ""
  zonesdir: "$work/zones"
  pidfile: ""
  database: ""
  zonelistfile: "$work/run/nsd.list"
  xfrdfile: "$work/run/xfrd"
  xfrdir: "$work/run"
remote-control:
  control-enable: no
zone:
  name: example.test
  zonefile: example.test
  provide-xfr: 127.0.0.1 NOKEY
X
cat >knot.conf <<X
server:
  listen: 127.0.0.1@5303
  rundir: "$work/run"
database:
  storage: "$work/run"
acl:
  - id: local
    address: 127.0.0.1
    action: transfer
zone:
  - domain: example.test
    file: "$work/zones/example.test"
    acl: local
X
echo "zone \"example.test\" { type master; file \"$work/zones/example.test\"; };" >bind.conf
cat >yadifad.conf <<X
<main>
  listen 127.0.0.1 port 5305
  datapath "$work/zones"
  keyspath "$work/run"
  logpath "$work/run"
  xfrpath "$work/run"
  pidfile "$work/run/yadifad.pid"
  allow-transfer any
  daemonize off
</main>
<zone>
  type primary
  domain example.test
  file example.test
</zone>
X
root/usr/sbin/named -g -c named.conf >named.txt 2>&1 &
root/usr/sbin/nsd -d -c nsd.conf >nsd.txt 2>&1 &
root/usr/sbin/knotd -c knot.conf >knot.txt 2>&1 &
touch run/pdns.conf
root/usr/sbin/pdns_server --config-dir="$work/run" --module-dir=root/usr/lib/x86_64-linux-gnu/pdns --launch=bind --bind-config=bind.conf \
  --local-address=127.0.0.1 --local-port=5304 --socket-dir=run --daemon=no --guardian=no --disable-axfr=no --allow-axfr-ips=127.0.0.1 >pdns.txt 2>&1 &
root/usr/sbin/yadifad -c yadifad.conf >yadifa.txt 2>&1 &
cat >ask.py <<'P'
import select, socket, struct, threading, time

SERVERS = {"BIND": 5301, "NSD": 5302, "Knot": 5303, "PowerDNS": 5304, "YADIFA": 5305}


def query(number, name="www.example.test", kind=1, options=None):
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split(".")) + b"\0"
    extra = b"" if options is None else b"\0" + struct.pack("!HHIH", 41, 1232, 0, len(options)) + options
    message = struct.pack("!6H", number, 0, 1, 0, 0, bool(extra)) + labels + struct.pack("!HH", kind, 1) + extra
    return struct.pack("!H", len(message)) + message


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer, self.sizes = b"", []

    def send(self, data):
        self.socket.sendall(data)

    def message(self, seconds=3.0):
        """The next message, or how the connection ended."""
        while len(self.buffer) < 2 or len(self.buffer) < 2 + int.from_bytes(self.buffer[:2]):
            if not select.select([self.socket], [], [], seconds)[0]:
                return "silence"
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return "RST"
            if not data:
                return "FIN"
            self.sizes.append(len(data))
            self.buffer += data
        length = int.from_bytes(self.buffer[:2])
        message, self.buffer = self.buffer[2 : 2 + length], self.buffer[2 + length :]
        return message

    def numbers(self, count):
        found = []
        while len(found) < count:
            message = self.message()
            if not isinstance(message, bytes):
                return found, message
            found.append(int.from_bytes(message[:2]))
        return found, "all"


def pipelined(port, count, end=False):
    c = Connection(port)

    def write():
        try:
            c.send(b"".join(query(i) for i in range(count)))
            if end:
                c.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    threading.Thread(target=write, daemon=True).start()
    found, how = c.numbers(count + end)
    return f"{len(found)}" + (" in order" if found == sorted(found) else " reordered") + ("" if how == "all" else f", then {how}")


def pieces(port, size, pause):
    c = Connection(port)
    data = query(1)
    for i in range(0, len(data), size):
        c.send(data[i : i + size])
        time.sleep(pause)
    return f"{c.numbers(1)[1]}"


def behind_transfer(port):
    c = Connection(port)
    c.send(query(1, "example.test", 252) + query(2))
    order = []
    while isinstance(message := c.message(), bytes):
        number = int.from_bytes(message[:2])
        if not order or order[-1] != number:
            order.append(number)
    return " ".join({1: "transfer", 2: "answer"}[n] for n in order) + f", then {message}"


def idle(port, first):
    c = Connection(port)
    if first:
        c.send(query(1))
        c.message()
    start = time.monotonic()
    end = c.message(70)
    return f"{end} after {time.monotonic() - start:.0f} s"


def keepalive(port):
    c = Connection(port)
    c.send(query(1, options=struct.pack("!HH", 11, 0)))
    m = c.message()
    i = m.find(struct.pack("!HH", 11, 2)) if isinstance(m, bytes) else -1
    return "none" if i < 0 else f"{int.from_bytes(m[i + 4 : i + 6]) / 10:.0f} s"


ROWS = {
    "1,000 queries in one write": lambda p: pipelined(p, 1000),
    "1,000 queries, then FIN": lambda p: pipelined(p, 1000, True),
    "byte by byte, 10 ms apart": lambda p: pieces(p, 1, 0.01),
    "two pieces, 3 s apart": lambda p: pieces(p, 20, 3),
    "transfer and a query": behind_transfer,
    "edns-tcp-keepalive": keepalive,
    "no query at all": lambda p: idle(p, False),
    "no second query": lambda p: idle(p, True),
}
table = {}


def ask(name, port):
    for row, f in ROWS.items():
        try:
            table[row, name] = f(port)
        except OSError as e:
            table[row, name] = repr(e)


for port in SERVERS.values():
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.1)
threads = [threading.Thread(target=ask, args=i) for i in SERVERS.items()]
[t.start() for t in threads]
[t.join() for t in threads]
for row in ROWS:
    print(f"{row}: " + "; ".join(f"{name} {table[row, name]}" for name in SERVERS))
P
python3 ask.py | tee seen
diff - seen <<'X'
1,000 queries in one write: BIND 1000 in order; NSD 1000 in order; Knot 1000 in order; PowerDNS 1000 in order; YADIFA 1000 in order
1,000 queries, then FIN: BIND 1000 in order, then FIN; NSD 1000 in order, then FIN; Knot 1000 in order, then FIN; PowerDNS 1000 in order, then FIN; YADIFA 1000 in order, then FIN
byte by byte, 10 ms apart: BIND all; NSD all; Knot all; PowerDNS all; YADIFA all
two pieces, 3 s apart: BIND all; NSD all; Knot FIN; PowerDNS all; YADIFA all
transfer and a query: BIND transfer answer transfer, then silence; NSD transfer answer, then silence; Knot transfer answer, then silence; PowerDNS transfer answer, then silence; YADIFA transfer, then RST
edns-tcp-keepalive: BIND 30 s; NSD none; Knot none; PowerDNS none; YADIFA none
no query at all: BIND FIN after 30 s; NSD silence after 70 s; Knot FIN after 10 s; PowerDNS FIN after 5 s; YADIFA FIN after 3 s
no second query: BIND FIN after 30 s; NSD silence after 70 s; Knot FIN after 10 s; PowerDNS FIN after 5 s; YADIFA FIN after 3 s
X
echo "as before"

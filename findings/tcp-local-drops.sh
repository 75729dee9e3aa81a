#!/usr/bin/env bash
# Where a sender's own host drops a TCP segment decides how long the connection lives. Linux 6.18.44, iproute2 6.1.0 and
# nftables 1.0.6 (Debian 12), two network namespaces and a veth pair; needs root. Each rule drops every segment from one
# moment on, and the sender is watched for ten seconds. tc ingress is the peer's side, all others the sender's own.
# Guessed: to TCP every drop is a loss. The segment is retransmitted with exponential backoff for about a quarter of an hour.
# Seen: that holds for drops at the peer and in nftables' output and postrouting hooks, only that a segment which those
# hooks drop at its first transmission never counts as sent (`notsent`), so the persist timer repeats it. A drop in the
# egress hook of the device, by tc or by nftables' netdev family, counts as local congestion instead: a segment that
# had been sent before is repeated every 500 ms without backoff, and a segment that was never sent ends the connection with
# ETIMEDOUT after about eight seconds, because each attempt counts as one of the 15 window probes of tcp_retries2.
# Matters to programs that hold back segments at tcx egress, and to tests that cut a link by a rule.
set -euo pipefail
work=$(mktemp -d)
cd "$work"
chmod 755 .
trap 'wait; rm -rf "$work"' EXIT
apt-get download -qq iproute2=6.1.0-3 nftables=1.0.6-2+deb12u2
for package in ./*.deb; do dpkg-deb -x "$package" root; done
PATH=$work/root/sbin:$work/root/usr/sbin:$work/root/bin:$PATH
cat >watch.sh <<'X2'
set -euo pipefail
a=drops$$a b=drops$$b listener=
trap '[[ -z $listener ]] || kill "$listener"; ip netns del $a; ip netns del $b' EXIT
ip netns add $a
ip netns add $b
ip -n $a link add veth0 type veth peer name veth0 netns $b
ip -n $a addr add 10.9.0.1/24 dev veth0
ip -n $b addr add 10.9.0.2/24 dev veth0
ip -n $a link set veth0 up
ip -n $b link set veth0 up
ip netns exec $b /usr/bin/python3 -c 'if True:
    import socket
    server = socket.create_server(("10.9.0.2", 5000))
    first = server.accept()
    server.accept()' & listener=$!
sleep 0.5
ip netns exec $a /usr/bin/python3 watch.py "$1" "$2" $a $b
X2
cat >watch.py <<'X2'
import os
import re
import socket
import subprocess
import sys
import time

place, segment, a, b = sys.argv[1:]


def run(namespace, *command):
    done = subprocess.run(["ip", "netns", "exec", namespace, *command], check=True, capture_output=True, text=True)
    return done.stdout


def drop():
    if place.startswith("tc"):
        side = a if place == "tc egress" else b
        run(side, "tc", "qdisc", "add", "dev", "veth0", "clsact")
        run(side, "tc", "filter", "add", "dev", "veth0", place.split()[1], "bpf", "da", "bytecode", "1,6 0 0 2")
        return
    family, hook = place[4:].split()
    device = "device veth0 " if family == "netdev" else ""
    run(a, "nft", f"add table {family} t; add chain {family} t c {{ type filter hook {hook} {device}priority 0; }};"
        f" add rule {family} t c meta l4proto tcp drop")


sender = socket.create_connection(("10.9.0.2", 5000))
sender.sendall(b"x")
time.sleep(0.3)
if segment == "sent before":
    # The peer's address changes, so the byte leaves this host and nobody acknowledges it.
    run(b, "ip", "link", "set", "veth0", "address", "02:00:00:00:00:77")
    sender.sendall(b"y")
    time.sleep(0.05)
    drop()
else:
    drop()
    sender.sendall(b"y")
began, died = time.monotonic(), ""
while time.monotonic() < began + 10 and not died:
    time.sleep(0.1)
    error = sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    died = error and os.strerror(error)
seconds = time.monotonic() - began
state = run(a, "ss", "-tino", "dst", "10.9.0.2")
backoff = re.search(r"backoff:(\d+)", state)
repeats = re.search(r"bytes_retrans:(\d+)", state)
print(f"{place}, {segment}:", end=" ")
if died:
    print(f"{died} after {'7 to 9' if 7 <= seconds <= 9 else f'{seconds:.1f}'} s")
else:
    timer = re.search(r"timer:\((\w+)", state)[1].replace("on", "retransmission")
    count = int(repeats[1]) if repeats else 0
    often = f", {count} repeats"
    for least, most in ((4, 8), (17, 22)):
        if least <= count <= most:
            often = f", {least} to {most} repeats"
    often = "" if timer == "persist" else often
    print(f"alive, {timer} timer, {'backoff' if backoff else 'no backoff'}{often}")
X2
for place in "tc ingress" "nft ip output" "nft ip postrouting" "tc egress" "nft netdev egress"; do
  for segment in "never sent" "sent before"; do
    bash watch.sh "${place/nft /nft-}" "$segment" >"out.$place.$segment" &
    sleep 0.2
  done
done
wait
for place in "tc ingress" "nft ip output" "nft ip postrouting" "tc egress" "nft netdev egress"; do
  for segment in "never sent" "sent before"; do cat "out.$place.$segment"; done
done | tee seen
diff - seen <<'X2'
tc ingress, never sent: alive, retransmission timer, backoff, 4 to 8 repeats
tc ingress, sent before: alive, retransmission timer, backoff, 4 to 8 repeats
nft-ip output, never sent: alive, persist timer, backoff
nft-ip output, sent before: alive, retransmission timer, backoff, 4 to 8 repeats
nft-ip postrouting, never sent: alive, persist timer, backoff
nft-ip postrouting, sent before: alive, retransmission timer, backoff, 4 to 8 repeats
tc egress, never sent: Connection timed out after 7 to 9 s
tc egress, sent before: alive, retransmission timer, no backoff, 17 to 22 repeats
nft-netdev egress, never sent: Connection timed out after 7 to 9 s
nft-netdev egress, sent before: alive, retransmission timer, no backoff, 17 to 22 repeats
X2

#!/usr/bin/env bash
# Leases of etcd 3.4.23 (Debian 12's etcd-server) seen through aetcd 1.0.0, an asyncio client.
# Guessed: a lease of one second is granted for one second, and refreshing a lease that was revoked is an error.
# Seen: one second is granted as two (the server's shortest lease is 1.5 election timeouts, rounded up); the remaining time
# is one less right after the grant; refresh() of a revoked lease raises nothing, only the TTL in its answer is 0, and
# remaining_ttl() is -1. A put under that lease is the first call that fails.
# Matters to a leader that keeps its place by a lease: it must read `ttl` of what it was granted and of every refresh.
set -euo pipefail
work=$(mktemp -d)
pid=
trap '[[ -z $pid ]] || kill "$pid" 2>/dev/null; wait; rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq etcd-server=3.4.23-4+b4
dpkg-deb -x ./*.deb root
/usr/bin/python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check aetcd==1.0.0 grpcio==1.85.3 protobuf==6.33.6
root/usr/bin/etcd --data-dir data --listen-client-urls http://127.0.0.1:23791 --advertise-client-urls http://127.0.0.1:23791 \
  --listen-peer-urls http://127.0.0.1:23792 >etcd.log 2>&1 & pid=$!
cat >ask.py <<'X'
import asyncio

import aetcd


async def main():
    for _ in range(100):
        try:
            client = aetcd.Client(port=23791)
            await client.connect()
            await client.status()
            break
        except Exception:
            await asyncio.sleep(0.1)
    for asked in (1, 2, 3, 10):
        lease = await client.lease(asked)
        print(f"asked {asked}, granted {lease.ttl}, remaining {await lease.remaining_ttl()}")
    await lease.revoke()
    answer = await lease.refresh()
    print(f"refreshed a revoked lease: ttl {answer.TTL}")
    print(f"remaining of a revoked lease: {await lease.remaining_ttl()}")
    try:
        await client.put(b"/leader", b"me", lease=lease)
        print("put under a revoked lease: no error")
    except aetcd.exceptions.ClientError as e:
        print(f"put under a revoked lease: {e}")
    await client.close()


asyncio.run(main())
X
venv/bin/python ask.py | tee seen
diff - seen <<'X'
asked 1, granted 2, remaining 1
asked 2, granted 2, remaining 1
asked 3, granted 3, remaining 2
asked 10, granted 10, remaining 9
refreshed a revoked lease: ttl 0
remaining of a revoked lease: -1
put under a revoked lease: etcdserver: requested lease not found
X
echo "as before"

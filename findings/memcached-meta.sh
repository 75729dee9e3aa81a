#!/usr/bin/env bash
# Meta commands of memcached 1.6.18 (Debian 12's): what their answers look like beside the protocol's text.
# Guessed: a miss is the bare line EN; the quiet flag hides that nothing was deleted; a TTL that is set in the same command
# is the TTL that is returned; a key comes back in the form in which it was asked for.
# Seen:
# - EN carries the flags that were asked for (`EN kabsent O7`).
# - `md KEY q` hides HD and shows NF, so that a pipeline of quiet deletions gets answers after all.
# - Flags act in the order in which they stand: `t T100` returns the time that was left before, `T1000 t` the new one.
# - An item that was stored under a base64 key keeps that form: asked for by its plain key it is answered with the base64
#   key and the flag b.
# - A key that exists is told apart from one with another CAS by EX and NF, but a replacement of an absent key (MR) is NS.
# Matters to records of connections in memcached: an answer has to be read by its code and its opaque, never by its place.
set -euo pipefail
work=$(mktemp -d)
pid=
trap '[[ -z $pid ]] || kill "$pid" 2>/dev/null; wait; rm -rf "$work"' EXIT
cd "$work"
for package in memcached=1.6.18-1+deb12u1 libevent-2.1-7=2.1.12-stable-8+deb12u1; do
  apt-get download -qq "$package" 2>apt.log || { cat apt.log >&2; exit 1; }
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu
root/usr/bin/memcached -l 127.0.0.1 -p 17021 -U 0 -u nobody & pid=$!
cat >ask.py <<'X'
import socket
import time

for _ in range(100):
    try:
        s = socket.create_connection(("127.0.0.1", 17021))
        break
    except OSError:
        time.sleep(0.1)
reader = s.makefile("rb")
# `mn` is answered behind everything else, quiet or not.
for command in (
    "mg absent k O7 v",
    "ms here 2 T1000\r\nhi",
    "md absent q O1",
    "md here q O2",
    "ms here 2 T1000\r\nhi",
    "mg here t T100",
    "mg here T1000 t",
    "mg here t",
    "ms Zm9v 3 b\r\nbar",
    "mg foo k v",
    "mg absent q v",
    "ms here 2 C1\r\nno",
    "ms absent 2 C1\r\nno",
    "ms absent 2 MR\r\nno",
):
    s.sendall(f"{command}\r\nmn\r\n".encode())
    lines = []
    while (line := reader.readline().decode().strip()) != "MN":
        lines.append(line)
    print(f"{command.splitlines()[0]}: {' | '.join(lines) or 'nothing'}")
X
/usr/bin/python3 ask.py | tee seen
diff - seen <<'X'
mg absent k O7 v: EN kabsent O7
ms here 2 T1000: HD
md absent q O1: NF O1
md here q O2: nothing
ms here 2 T1000: HD
mg here t T100: HD t1000
mg here T1000 t: HD t1000
mg here t: HD t1000
ms Zm9v 3 b: HD
mg foo k v: VA 3 kZm9v b | bar
mg absent q v: nothing
ms here 2 C1: EX
ms absent 2 C1: NF
ms absent 2 MR: NS
X
echo "as before"

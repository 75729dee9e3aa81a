#!/usr/bin/env bash
# Mininet 2.3.0 (Debian 12's mininet 2.3.0-1), command `mn --custom FILE --topo NAME` with a correct topology of two hosts, in PID,
# network and mount namespaces of its own.
# Guessed: mn takes from FILE what its manual names (topos, switches, hosts, links, controllers, tests); other names in the file
# are the file's own. Commands come from standard input alike, whether it is a pipe or a file.
# Seen:
# - Every top-level name of FILE, imports too, replaces the name of the same spelling in mn itself. `from time import time` ends mn
#   with "'builtin_function_or_method' object has no attribute 'time'", and VERSION = "mine" changes what `mn --version` prints.
# - The cleaning up behind such an error deletes every /tmp/*.log and /tmp/*.out, whichever program wrote them.
# - Of commands in a regular file, the lines behind one that takes time are not run: while a host's command runs, mn reads its
#   input and gives it to that command. The same commands through a pipe all run.
# Matters to a file for `mn --custom`: it imports only modules that mn uses under the same names, or keeps all in functions; and a
# script for mn's prompt is piped into it.
set -euo pipefail
work=$(mktemp -d -p /var/tmp)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
apt-get download -qq mininet=2.3.0-1 2>apt.log || { cat apt.log >&2; exit 1; }
dpkg-deb -x mininet_*.deb root
cat >topo.py <<'P'
from mininet.topo import Topo


class Pair(Topo):
    def build(self):
        self.addLink(self.addHost("h1"), self.addHost("h2"))


topos = {"pair": Pair}
P
{ echo "from time import time"; cat topo.py; } >timed.py
{ echo 'VERSION = "mine"'; cat topo.py; } >versioned.py
printf '%s\n' 'h1 sleep 1' 'h1 echo beta' 'h1 echo gamma' >commands
export PYTHONPATH=$work/root/usr/lib/python3/dist-packages PATH=$work/root/usr/bin:$PATH
# /tmp is a file system of this run alone: mn deletes files there.
own() { timeout 60 unshare --fork --pid --kill-child --mount-proc -n -m sh -c 'mount -t tmpfs none /tmp && touch /tmp/other.log && "$@"; ls /tmp/other.log 2>&1' sh "$@"; }
mn() { own /usr/bin/python3 root/usr/bin/mn --controller none "$@" 2>&1; }

version=$(mn --custom versioned.py --version)
plain=$(mn --custom topo.py --version)
echo "--version: $(head -1 <<<"$plain") with topo.py, $(head -1 <<<"$version") with versioned.py"
[[ $plain == 2.3.0* && $version == mine* ]]

good=$(echo 'h1 echo first' | mn --custom topo.py --topo pair)
grep -q '^mininet> first' <<<"$good" && grep -qx /tmp/other.log <<<"$good"
bad=$(echo 'h1 echo first' | mn --custom timed.py --topo pair) || true
grep "AttributeError" <<<"$bad"
grep "other.log" <<<"$bad"
grep -q "has no attribute 'time'" <<<"$bad"
grep -q "cannot access '/tmp/other.log'" <<<"$bad"

piped=$(mn --custom topo.py --topo pair < <(cat commands))
filed=$(mn --custom topo.py --topo pair <commands)
echo "run from a pipe: $(grep -c 'beta\|gamma' <<<"$piped"), from a file: $(grep -c 'beta\|gamma' <<<"$filed" || true)"
[ "$(grep -c 'beta\|gamma' <<<"$piped")" = 2 ]
[ "$(grep -c 'beta\|gamma' <<<"$filed")" = 0 ]

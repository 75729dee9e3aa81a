#!/usr/bin/env bash
# `make demo-tiny`: a server with 64 KiB of memory on a TAP, 50 clients at once, and a download that survives kill -9 of
# the server. Needs root; everything happens in two network namespaces, which are removed at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."

CLIENTS=50
SERVICE=10.9.0.1
program=${CARGO_TARGET_DIR:-target}/x86_64-unknown-none/tiny/rivulet-tiny
rivulet=${RIVULET:-target/release/rivulet}
picture=docs/pictures/failover.png
[[ -x $program ]] || { echo "demo-tiny: there is no $program: make tiny"; exit 1; }
[[ -x $rivulet ]] || { echo "demo-tiny: there is no $rivulet: make build"; exit 1; }

client=tiny-c$$ router=tiny-r$$ folder=$(mktemp -d) server=
cleanup() {
  [[ -z $server ]] || kill -9 "$server" 2>/dev/null || true
  ip netns del "$client" 2>/dev/null || true
  ip netns del "$router" 2>/dev/null || true
  rm -rf "$folder"
}
trap cleanup EXIT

# client -- veth -- router -- TAP -- rivulet-tiny
ip netns add "$client"
ip netns add "$router"
ip -n "$client" link add c0 type veth peer name r0 netns "$router"
ip -n "$client" addr add 10.88.0.1/24 dev c0
ip -n "$router" addr add 10.88.0.2/24 dev r0
ip -n "$router" tuntap add dev t0 mode tap
for end in "$client c0" "$router r0" "$router t0"; do ip -n ${end% *} link set dev ${end#* } up; done
ip -n "$client" route add $SERVICE/32 via 10.88.0.2
ip -n "$router" route add $SERVICE/32 dev t0
ip netns exec "$router" sysctl -qw net.ipv4.ip_forward=1

head -c 48 /dev/urandom >"$folder/keys"
start() {
  ip netns exec "$router" "$program" t0 $SERVICE:80 "$folder/keys" >"$folder/log" &
  server=$!
  disown
  until grep -q serving "$folder/log"; do sleep 0.02; done
}
get() { RIVULET_STATE='' ip netns exec "$client" "$rivulet" get -q "http://$SERVICE/$1" -o "$2"; }

start
cat "$folder/log"
get memory - | sed 's/^/after one request:   /'
pids=()
for ((i = 0; i < CLIENTS; i++)); do
  get failover.png "$folder/$i" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
for ((i = 0; i < CLIENTS; i++)); do cmp "$folder/$i" $picture; done
get memory - | sed "s/^/after $CLIENTS downloads: /"

echo "a download at 200 kbit/s, and kill -9 of the server in its middle"
ip netns exec "$router" tc qdisc replace dev r0 root tbf rate 200kbit burst 4kb limit 16kb
get failover.png "$folder/slow" &
download=$!
until (($(stat -c %s "$folder/slow.part" 2>/dev/null || echo 0) > 30000)); do sleep 0.02; done
kill -9 "$server"
while kill -0 "$server" 2>/dev/null; do sleep 0.01; done
echo "killed after $(stat -c %s "$folder/slow.part") of $(stat -c %s $picture) bytes"
start
wait $download
cmp "$folder/slow" $picture
echo "the same connection delivered the rest: the file equals $picture"
get memory - | sed 's/^/the second server:   /'

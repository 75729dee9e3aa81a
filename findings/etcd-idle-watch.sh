#!/usr/bin/env bash
# A watch of etcd's prefix /k that has seen no event yet when its server (etcd 3.4.23, Debian 12's etcd-server) is killed and comes
# back, seen through the clients that resume a watch by themselves: Go's clientv3 3.7.3 and npm's etcd3 1.1.2. /k0 is written before
# the watch, /k1 while the server is away from the clients, /k2 after its return. In "compacted", writes outside the prefix follow
# on /k0 while the watch stands, the history is compacted up to the last of them, and /k1 is left out.
# Guessed: the watch resumes behind the revision at which it began, so it delivers /k1 and /k2. A compaction that
# takes no event of the prefix away does not end it.
# Seen:
# - Go delivers /k0 first, an event from before the watch: it resumes at the revision at which the watch began, not behind it. With one
#   event before the death of the server it resumes behind that.
# - The compaction ends both watches with an error, although no event was lost: both ask for revisions right behind the watch's
#   beginning, however far the store has gone on since.
# Matters to controllers that react to changes in a store: an event can be one that they had read with the initial state, and a quiet
# prefix in a busy store loses its watch at a restart, so both have to read the state again and compare revisions.
set -euo pipefail
work=$(mktemp -d)
server='' watch=''
trap 'kill $server $watch 2>/dev/null || true; wait; chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq etcd-server=3.4.23-4+b4 2>apt.txt || { cat apt.txt >&2; exit 1; }
dpkg-deb -x etcd-server*.deb root
npm install --silent --no-fund --no-audit etcd3@1.1.2
cat >watch.mjs <<'J'
import { Etcd3 } from 'etcd3'
const watcher = await new Etcd3({ hosts: 'http://127.0.0.1:23791' }).watch().prefix('/k').create()
watcher.on('put', pair => console.log(pair.key.toString()))
watcher.on('error', () => console.log('error'))
console.log('watching')
J
mkdir go
cat >go/go.mod <<'X'
module watch
go 1.26.8
require go.etcd.io/etcd/client/v3 v3.7.3
X
cat >go/main.go <<'X'
package main

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:23791"}})
	if err != nil {
		panic(err)
	}
	for answer := range client.Watch(context.Background(), "/k", clientv3.WithPrefix(), clientv3.WithCreatedNotify()) {
		if answer.Created {
			fmt.Println("watching")
		}
		for _, event := range answer.Events {
			fmt.Println(string(event.Kv.Key))
		}
		if answer.Err() != nil {
			fmt.Println("error:", answer.Err())
		}
	}
}
X
(cd go && GOFLAGS="-mod=mod -modcacherw" GOPATH=$work/gopath GOCACHE=$work/gocache go build -o ../go-watch . 2>../go.txt) || { cat go.txt >&2; exit 1; }
# ask PORT CALL JSON: a call of the server's HTTP gateway.
ask() { curl -sf --retry 5 "http://127.0.0.1:$1/v3/kv/$2" -d "$3" -o answer.json; }
put() { ask "$1" put "{\"key\":\"$(printf %s "$2" | base64)\",\"value\":\"eA==\"}"; }
start() {
  root/usr/bin/etcd --data-dir data --listen-client-urls "http://127.0.0.1:$1" --advertise-client-urls "http://127.0.0.1:$1" \
    --listen-peer-urls http://127.0.0.1:23793 >>etcd.log 2>&1 &
  server=$!
  until curl -s "http://127.0.0.1:$1/health" | grep -q true; do sleep 0.1; done
}
stop() {
  kill -9 $server
  wait $server 2>/dev/null || true
}
await() { for _ in $(seq 300); do ! grep -q "$1" out || return 0; sleep 0.1; done; }
for case in idle event compacted; do
  for client in go npm; do
    rm -rf data
    start 23791
    put 23791 /k0
    if [ $client = go ]; then run=(./go-watch); else run=(node watch.mjs); fi
    "${run[@]}" >out 2>>log &
    watch=$!
    await watching
    if [ $case = event ]; then
      put 23791 /kept
      await /kept
    fi
    if [ $case = compacted ]; then for key in /a /b /c; do put 23791 $key; done; fi # revisions 3 to 5
    stop
    start 23795 # where the client does not look
    if [ $case = compacted ]; then ask 23795 compaction '{"revision":"5"}'; else put 23795 /k1; fi
    stop
    start 23791
    sleep 8 # until the client has connected again
    put 23791 /k2
    await '/k2\|error'
    kill $watch 2>/dev/null || true
    wait $watch 2>/dev/null || true
    stop
    echo "$case, $client: $(paste -sd ' ' out)"
  done
done | tee seen
diff - seen <<'X'
idle, go: watching /k0 /k1 /k2
idle, npm: watching /k1 /k2
event, go: watching /kept /k1 /k2
event, npm: watching /kept /k1 /k2
compacted, go: watching error: etcdserver: mvcc: required revision has been compacted
compacted, npm: watching error
X
echo "as before"

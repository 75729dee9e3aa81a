#!/usr/bin/env bash
# Names in a served folder that are no ordinary files, and requests for them: lighttpd 1.4.69, Apache 2.4.71, Caddy 2.6.2,
# h2o 2.2.5, busybox 1.35.0 (Debian 12's builds).
# Guessed: a folder without slash is redirected to on the same host whatever slashes stand in front of it, and by a URL
# that leads there; %00 is refused; what is neither file nor folder is 403 or 404 at once; %2F is a slash for all or none.
# Seen:
# - h2o redirects `//sub` to `//sub/`, which is the host "sub" to a client. busybox redirects `/q%3Fx` to `/q?x/`, which is
#   another resource. lighttpd alone encodes the semicolon in its redirect.
# - h2o serves f.txt for `/f.txt%00.html`, and Caddy answers 500 to it.
# - A named pipe gets no answer from Apache, Caddy, h2o and busybox, and h2o with one thread gives no answer to any request from then on.
# - A link to itself is 500 for lighttpd and Caddy, a dangling one 403 for Apache.
# - `%2F` is a slash for lighttpd, Caddy and h2o, and 404 for Apache and busybox. lighttpd serves f.txt for `/f.txt/x` too.
# - An index.html that is a folder: 200 from busybox, a redirect into it from Apache and h2o, 403 and 404 from the others.
# Matters to a server whose answers are to be those of others for every name: there are no others to agree with, so the
# table of requests is held against nginx alone.
set -euo pipefail
work=$(mktemp -d)
pids=()
trap ': <>"$work/www/pipe" || true; kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
chmod 755 "$work" # h2o and lighttpd give up root and still have to read the files
cd "$work"
for package in lighttpd=1.4.69-1 apache2-bin=2.4.71-1~deb12u1 libapr1=1.7.2-3+deb12u1 libaprutil1=1.6.3-1+deb12u1 \
  caddy=2.6.2-5 h2o=2.2.5+dfsg2-7 libh2o0.13=2.2.5+dfsg2-7 libh2o-evloop0.13=2.2.5+dfsg2-7 libwslay1=1.1.1-3+b1 \
  busybox-static=1:1.35.0-4+deb12u1+b1; do
  apt-get download -qq "$package" 2>apt.log || { cat apt.log >&2; exit 1; }
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
mkdir -p www/sub www/loop/index.html 'www/a;b' 'www/q?x'
echo file >www/f.txt
echo inner >www/sub/g.txt
ln -s circle www/circle
ln -s nothing www/dangling
mkfifo www/pipe
/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("www/socket")'
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu HOME=$work

cat >lighttpd.conf <<X
server.document-root = "$work/www"
server.bind = "127.0.0.1"
server.port = 17042
mimetype.assign = (".bin" => "application/octet-stream")
X
cat >apache.conf <<X
ServerRoot $work/root
LoadModule mpm_event_module usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module usr/lib/apache2/modules/mod_authz_core.so
LoadModule dir_module usr/lib/apache2/modules/mod_dir.so
Listen 127.0.0.1:17043
ServerName localhost
PidFile $work/apache.pid
ErrorLog $work/apache.log
DocumentRoot $work/www
X
cat >h2o.conf <<X
listen: {host: 127.0.0.1, port: 17045}
hosts: {default: {paths: {/: {file.dir: $work/www}}}}
num-threads: 1
X
root/usr/sbin/lighttpd -D -f lighttpd.conf -m root/usr/lib/lighttpd 2>lighttpd.log & pids+=($!)
root/usr/sbin/apache2 -X -f "$work/apache.conf" & pids+=($!)
root/usr/bin/caddy file-server --root www --listen 127.0.0.1:17044 >caddy.log 2>&1 & pids+=($!)
root/usr/bin/h2o -c h2o.conf >h2o.log 2>&1 & pids+=($!)
root/bin/busybox httpd -f -p 127.0.0.1:17046 -h www & pids+=($!)

cat >ask.py <<'X'
import socket
import time

SERVERS = {"lighttpd": 17042, "apache": 17043, "caddy": 17044, "h2o": 17045, "busybox": 17046}
TARGETS = [
    "/f.txt", "/f.txt/", "/f.txt/x", "/sub", "//sub", "/sub?a=b", "/a;b", "/q%3Fx", "/sub%2Fg.txt", "/sub/..%2Ff.txt",
    "/sub%5Cg.txt", "/f.txt%00.html", "/100%.txt", "/loop/", "/circle", "/dangling", "/socket", "/pipe", "/f.txt",
]


def connect(port):
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port}")


def ask(port, target):
    """The status, and where it redirects to."""
    with connect(port) as s:
        s.sendall(f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        s.settimeout(3)
        answer = b""
        try:
            while part := s.recv(65536):
                answer += part
        except TimeoutError:
            pass
        except ConnectionResetError:
            return "reset"
    if not answer:
        return "nothing"
    head = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    location = [line.partition(":")[2].strip() for line in head if line.lower().startswith("location:")]
    return " ".join([head[0].split()[1], *location])


for target in TARGETS:
    print(f"{target}: " + "; ".join(f"{server} {ask(port, target)}" for server, port in SERVERS.items()))
X
/usr/bin/python3 ask.py | tee seen
diff - seen <<'X'
/f.txt: lighttpd 200; apache 200; caddy 200; h2o 200; busybox 200
/f.txt/: lighttpd 200; apache 404; caddy 404; h2o 404; busybox 404
/f.txt/x: lighttpd 200; apache 404; caddy 404; h2o 404; busybox 404
/sub: lighttpd 301 /sub/; apache 301 http://h/sub/; caddy 404; h2o 301 /sub/; busybox 302 /sub/
//sub: lighttpd 301 /sub/; apache 301 http://h/sub/; caddy 404; h2o 301 //sub/; busybox 302 /sub/
/sub?a=b: lighttpd 301 /sub/?a=b; apache 301 http://h/sub/?a=b; caddy 404; h2o 301 /sub/?a=b; busybox 302 /sub/?a=b
/a;b: lighttpd 301 /a%3Bb/; apache 301 http://h/a;b/; caddy 404; h2o 301 /a;b/; busybox 302 /a;b/
/q%3Fx: lighttpd 301 /q%3Fx/; apache 301 http://h/q%3fx/; caddy 404; h2o 301 /q%3Fx/; busybox 302 /q?x/
/sub%2Fg.txt: lighttpd 200; apache 404; caddy 200; h2o 200; busybox 404
/sub/..%2Ff.txt: lighttpd 200; apache 404; caddy 200; h2o 200; busybox 404
/sub%5Cg.txt: lighttpd 404; apache 404; caddy 404; h2o 404; busybox 404
/f.txt%00.html: lighttpd 400; apache 404; caddy 500; h2o 200; busybox 404
/100%.txt: lighttpd 404; apache 400; caddy 400; h2o 404; busybox 400
/loop/: lighttpd 403; apache 301 http://h/loop/index.html/; caddy 404; h2o 301 /loop/index.html/; busybox 200
/circle: lighttpd 500; apache 403; caddy 500; h2o 403; busybox 404
/dangling: lighttpd 404; apache 403; caddy 404; h2o 404; busybox 404
/socket: lighttpd 403; apache 403; caddy 404; h2o 403; busybox 404
/pipe: lighttpd 403; apache nothing; caddy nothing; h2o nothing; busybox nothing
/f.txt: lighttpd 200; apache 200; caddy 200; h2o nothing; busybox 200
X
echo "as before"

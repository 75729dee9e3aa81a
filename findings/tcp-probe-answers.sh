#!/usr/bin/env bash
# What a TCP client answers to a server's segments that bring it nothing new: Linux 6.18.44, gVisor's netstack
# v0.0.0-20260905035102, smoltcp 0.14.0, lwIP 2.1.3 (Debian 12's liblwip0), each as a client that has sent a request of 10 bytes and
# read 1,000 bytes. The server's packets are made by hand; needs root for one network namespace.
# Guessed: a segment with nothing inside the window is acknowledged whatever else is wrong with it (RFC 9293 section 3.10.7.4), and
# at a limited rate when it has no data. Stacks that offer SACK report a repeated byte in a duplicate SACK (RFC 2883). Stacks
# that offer timestamps echo a newer one of a repeated byte, and refuse new data with an older one (RFC 7323).
# Seen:
# - smoltcp checks the acknowledgement number first: it drops a repeated byte whose number is older than what the server had
#   acknowledged before. A number beyond what the client sent draws the ACK.
# - Only Linux sends a duplicate SACK. gVisor and smoltcp use SACK for gaps alone, and lwIP does not offer it here.
# - gVisor echoes the newer timestamp of new data, but not that of a repeated byte, and takes new data with an older timestamp.
# - An empty segment in order that acknowledges more than the client sent: gVisor alone does not answer. It does when the segment
#   repeats a byte; lwIP then answers twice.
# - Five repeated segments at once: with a byte in each all four stacks answer each of them, without data lwIP alone does and the
#   others answer one. Linux alone drops an empty one with an older timestamp. No stack insists on a timestamp.
# Matters to a replica that probes the client of a connection whose state it does not know: the probe needs a byte of data and an
# acknowledgement number that is not too old, and some answers have neither a duplicate SACK nor the probe's timestamp.
set -euo pipefail
work=$(mktemp -d)
name=probe$$
trap 'ip netns del $name 2>/dev/null || true; wait; chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
chmod 755 .
mkdir go src
apt-get download -qq liblwip0=2.1.3+dfsg1-2 liblwip-dev=2.1.3+dfsg1-2 2>apt.txt || { cat apt.txt >&2; exit 1; }
for deb in *.deb; do dpkg-deb -x "$deb" root; done
cat >lwip.c <<'X'
#include <lwip/api.h>
#include <lwip/tcpip.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static struct netif device;

static err_t output(struct netif *n, struct pbuf *p, const ip4_addr_t *to) {
    char data[2000];
    return write(0, data, pbuf_copy_partial(p, data, sizeof data, 0)) > 0 ? ERR_OK : ERR_IF;
}
static err_t start(struct netif *n) {
    n->mtu = 1500;
    n->output = output;
    return ERR_OK;
}
static void *receive(void *none) {
    char data[2000];
    for (ssize_t size; (size = read(0, data, sizeof data)) > 0;) {
        struct pbuf *p = pbuf_alloc(PBUF_RAW, size, PBUF_RAM);
        pbuf_take(p, data, size);
        device.input(p, &device);
    }
    exit(0);
}
int main(void) {
    ip4_addr_t us, mask, server;
    IP4_ADDR(&us, 10, 9, 0, 2);
    IP4_ADDR(&mask, 255, 255, 255, 0);
    IP4_ADDR(&server, 10, 9, 0, 1);
    tcpip_init(NULL, NULL);
    LOCK_TCPIP_CORE();
    netif_add(&device, &us, &mask, &server, NULL, start, tcpip_input);
    netif_set_default(&device);
    netif_set_up(&device);
    netif_set_link_up(&device);
    UNLOCK_TCPIP_CORE();
    pthread_t thread;
    pthread_create(&thread, NULL, receive, NULL);
    struct netconn *c = netconn_new(NETCONN_TCP);
    ip_addr_t to;
    ip_addr_copy_from_ip4(to, server);
    if (netconn_connect(c, &to, 80) != ERR_OK || netconn_write(c, "0123456789", 10, NETCONN_COPY) != ERR_OK) return 1;
    for (struct pbuf *p; netconn_recv_tcp_pbuf(c, &p) == ERR_OK;) pbuf_free(p);
    pause();
}
X
library=$work/root/usr/lib/x86_64-linux-gnu
gcc -o lwip lwip.c -Iroot/usr/include/lwip -L"$library" -l:liblwip.so.0 -Wl,-rpath,"$library"
cat >go/go.mod <<'X'
module client
go 1.26.8
require gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237
X
cat >go/main.go <<'X'
package main

import (
	"os"
	"syscall"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

type output struct{ link *channel.Endpoint }

func (o output) WriteNotify() {
	for packet := o.link.Read(); packet != nil; packet = o.link.Read() {
		syscall.Write(0, packet.ToView().AsSlice())
		packet.DecRef()
	}
}

func main() {
	link := channel.New(256, 1500, "")
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack := tcpip.TCPSACKEnabled(true) // as in gVisor's own sandbox
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)
	s.CreateNIC(1, link)
	s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddrFrom4([4]byte{10, 9, 0, 2}).WithPrefix()}, stack.AddressProperties{})
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	link.AddNotify(output{link})
	go func() {
		for {
			data := make([]byte, 2000)
			n, err := syscall.Read(0, data)
			if n <= 0 || err != nil {
				os.Exit(0)
			}
			packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(data[:n])})
			link.InjectInbound(ipv4.ProtocolNumber, packet)
			packet.DecRef()
		}
	}()
	server := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4([4]byte{10, 9, 0, 1}), Port: 80}
	c, err := gonet.DialTCP(s, server, ipv4.ProtocolNumber)
	if err != nil {
		panic(err)
	}
	c.Write([]byte("0123456789"))
	for data := make([]byte, 65536); err == nil; {
		_, err = c.Read(data)
	}
	select {}
}
X
(cd go && GOFLAGS="-mod=mod -modcacherw" GOPATH=$work/gopath GOCACHE=$work/gocache go build -o ../gvisor . 2>../go.txt) || { cat go.txt >&2; exit 1; }
cat >Cargo.toml <<'X'
[package]
name = "client"
version = "0.0.0"
edition = "2021"
[dependencies]
libc = "=0.2.180"
smoltcp = { version = "=0.14.0", default-features = false, features = ["std", "medium-ip", "proto-ipv4", "socket-tcp"] }
X
cat >src/main.rs <<'X'
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

struct Link;
struct Rx(Vec<u8>);
struct Tx;

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}
impl TxToken for Tx {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut data = vec![0; len];
        let result = f(&mut data);
        unsafe { libc::send(0, data.as_ptr().cast(), len, 0) };
        result
    }
}
impl Device for Link {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx;
    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx)> {
        let mut data = vec![0; 2000];
        let n = unsafe { libc::recv(0, data.as_mut_ptr().cast(), 2000, libc::MSG_DONTWAIT) };
        if n == 0 {
            std::process::exit(0);
        }
        data.truncate(n.max(0) as usize);
        (n > 0).then_some((Rx(data), Tx))
    }
    fn transmit(&mut self, _: Instant) -> Option<Tx> {
        Some(Tx)
    }
    fn capabilities(&self) -> DeviceCapabilities {
        let mut of = DeviceCapabilities::default();
        (of.medium, of.max_transmission_unit) = (Medium::Ip, 1500);
        of
    }
}

fn main() {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = std::process::id().into();
    let mut interface = Interface::new(config, &mut Link, Instant::now());
    interface.update_ip_addrs(|a| a.push(IpCidr::new(IpAddress::v4(10, 9, 0, 2), 24)).unwrap());
    let buffer = || tcp::SocketBuffer::new(vec![0; 65535]);
    let mut sockets = SocketSet::new(vec![]);
    let handle = sockets.add(tcp::Socket::new(buffer(), buffer()));
    let server = (IpAddress::v4(10, 9, 0, 1), 80);
    sockets.get_mut::<tcp::Socket>(handle).connect(interface.context(), server, 50000).unwrap();
    let mut sent = false;
    loop {
        interface.poll(Instant::now(), &mut Link, &mut sockets);
        let socket = sockets.get_mut::<tcp::Socket>(handle);
        if socket.may_send() && !sent {
            sent = socket.send_slice(b"0123456789").is_ok();
        } else if socket.can_recv() {
            socket.recv(|data| (data.len(), ())).unwrap();
        } else {
            let wait = interface.poll_delay(Instant::now(), &sockets).map_or(1000, |d| d.total_millis() as i32);
            let mut fd = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
            unsafe { libc::poll(&mut fd, 1, wait) };
        }
    }
}
X
CARGO_TARGET_DIR=$work/target cargo build -q 2>cargo.txt || { cat cargo.txt >&2; exit 1; }
cp target/debug/client smoltcp
cat >ask.py <<'X'
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time

stack = sys.argv[1]
SERVER, CLIENT = bytes([10, 9, 0, 1]), bytes([10, 9, 0, 2])
FIRST = 1_000_000
LINUX = """
import socket
c = socket.create_connection(("10.9.0.1", 80))
c.sendall(b"0123456789")
while c.recv(65536):
    pass
"""


def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def distance(a, b):
    return (a - b + 2**31) % 2**32 - 2**31


class Client:
    """One connection of a client of this stack, up to the acknowledged answer; this side makes the server's packets."""

    def __init__(self):
        if stack == "Linux":
            self.link, command, near = tun, [sys.executable, "-c", LINUX], None
        else:
            self.near, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.link, command = self.near.fileno(), ["./" + stack.lower()]
        self.port, self.stamp, self.has_stamps = None, int(time.monotonic() * 1000) & 0x3FFFFFFF, False
        self.process = subprocess.Popen(command, stdin=near)
        # A packet of the former client may be left.
        while not (syn := self.receive(10))["flags"] & 2:
            pass
        self.port, self.client_next, self.offers = syn["port"], syn["seq"] + 1, syn["options"]
        self.has_stamps = 8 in self.offers
        options = b"\x02\x04\x05\xb4" + (b"\x04\x02\x01\x01" if 4 in self.offers else b"") + b"\x03\x03\x07\x01"
        self.send(FIRST, flags=0x12, options=options)
        self.next, request = FIRST + 1, b""
        while len(request) < 10:
            request += self.receive(10)["data"]
        self.client_next += 10
        self.send(self.next, b"x" * 1000)
        self.next += 1000
        while distance(self.receive(10)["ack"], self.next):
            pass
        self.answers(0.3)

    def send(self, seq, data=b"", ack=0, flags=0x10, options=b"", age=0, has_stamp=True):
        if self.has_stamps and has_stamp:
            self.stamp += 1
            options += b"\x01\x01\x08\x0a" + struct.pack("!II", self.stamp - age, 0)
        ack = (self.client_next + ack) % 2**32
        header = struct.pack("!HHIIBBHI", 80, self.port, seq % 2**32, ack, (20 + len(options)) // 4 << 4, flags, 8000, 0) + options
        pseudo = SERVER + CLIENT + struct.pack("!HH", 6, len(header + data))
        header = header[:16] + struct.pack("!H", checksum(pseudo + header + data)) + header[18:]
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(header + data), 0, 0, 64, 6, 0) + SERVER + CLIENT
        os.write(self.link, ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + header + data)

    def receive(self, seconds):
        end = time.monotonic() + seconds
        while select.select([self.link], [], [], max(0, end - time.monotonic()))[0]:
            packet = os.read(self.link, 2000)
            if packet[0] != 0x45 or packet[9] != 6:
                continue
            port, _, seq, ack, offset = struct.unpack("!HHIIB", packet[20:33])
            if self.port not in (None, port):
                continue
            left, data = packet[40 : 20 + (offset >> 4) * 4], packet[20 + (offset >> 4) * 4 :]
            options = {}
            while left and left[0]:
                if left[0] > 1:
                    options[left[0]] = left[2 : left[1]]
                left = left[left[1] if left[0] > 1 else 1 :]
            return dict(port=port, seq=seq, ack=ack, flags=packet[33], options=options, data=data)
        return None

    def answers(self, seconds):
        """All that comes until the client has been silent for this long."""
        found = []
        while answer := self.receive(seconds):
            found.append(self.text(answer))
        return found

    def text(self, answer):
        text, ahead = "ACK", distance(answer["ack"], self.next)
        if answer["flags"] != 0x10 or answer["data"] or distance(answer["seq"], self.client_next):
            text = f"other {answer}"
        text += f" of {ahead} more" if ahead else ""
        if blocks := answer["options"].get(5):
            text += " D-SACK" if distance(int.from_bytes(blocks[:4]), self.next) < 0 else " SACK"
        if self.has_stamps:
            text += " echo" if int.from_bytes(answer["options"][8][4:]) == self.stamp else ""
        return text

    def close(self):
        self.process.kill()
        self.process.wait()


if stack == "Linux":
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH", b"tun0", 0x1001))
    for command in ("addr add 10.9.0.2/24 dev tun0", "link set tun0 up"):
        subprocess.run(["ip", *command.split()], check=True)
names = {2: "MSS", 3: "scale", 4: "SACK", 8: "timestamps"}
# Name, distance from the next sequence number, bytes, the rest.
CASES = {
    "last byte again": (-1, 1, {}),
    "last byte again, empty": (-1, 0, {}),
    "byte before it, no timestamp": (-2, 1, {"has_stamp": False}),
    "byte before it, older ack": (-2, 1, {"ack": -5}),
    "byte before it, ack ahead": (-2, 1, {"ack": 100}),
    "in order, empty, ack ahead": (0, 0, {"ack": 100}),
    "last byte again, older timestamp": (-1, 1, {"age": 1000}),
    "last byte again, empty, older timestamp": (-1, 0, {"age": 1000}),
    "behind a gap": (1000, 1000, {}),
    "new byte": (0, 1, {}),
    "new byte, older timestamp": (0, 1, {"age": 1000}),
}
client = Client()
print("offers: " + " ".join(names[kind] for kind in sorted(client.offers)))
client.close()
for name, (at, size, more) in CASES.items():
    client = Client()
    client.send(client.next + at, bytes(size), **more)
    print(f"{name}: " + (", ".join(client.answers(0.5)) or "nothing"))
    client.close()
for size in (1, 0):
    client = Client()
    for _ in range(5):
        client.send(client.next - 1, bytes(size))
    print(f"five of {size} bytes: {len(client.answers(0.5))}")
    client.close()
X
ip netns add $name
for stack in Linux gVisor smoltcp lwIP; do
  ip netns exec $name python3 ask.py $stack >"$stack.txt" &
done
for job in $(jobs -p); do wait "$job"; done
paste -d'\n' Linux.txt gVisor.txt smoltcp.txt lwIP.txt | awk -F': ' '
  { names = "Linux gVisor smoltcp lwIP"; split(names, of, " "); if (NR % 4 == 1) printf "%s: ", $1;
    printf "%s %s%s", of[(NR - 1) % 4 + 1], $2, NR % 4 ? "; " : "\n" }' | tee seen
diff - seen <<'X'
offers: Linux MSS scale SACK timestamps; gVisor MSS scale SACK timestamps; smoltcp MSS scale SACK; lwIP MSS scale
last byte again: Linux ACK D-SACK echo; gVisor ACK; smoltcp ACK; lwIP ACK
last byte again, empty: Linux ACK; gVisor ACK; smoltcp ACK; lwIP ACK
byte before it, no timestamp: Linux ACK D-SACK echo; gVisor ACK echo; smoltcp ACK; lwIP ACK
byte before it, older ack: Linux ACK D-SACK; gVisor ACK; smoltcp nothing; lwIP ACK
byte before it, ack ahead: Linux ACK D-SACK; gVisor ACK; smoltcp ACK; lwIP ACK, ACK
in order, empty, ack ahead: Linux ACK; gVisor nothing; smoltcp ACK; lwIP ACK
last byte again, older timestamp: Linux ACK D-SACK; gVisor ACK; smoltcp ACK; lwIP ACK
last byte again, empty, older timestamp: Linux nothing; gVisor ACK; smoltcp ACK; lwIP ACK
behind a gap: Linux ACK SACK; gVisor ACK SACK; smoltcp ACK SACK; lwIP ACK
new byte: Linux ACK of 1 more echo; gVisor ACK of 1 more echo; smoltcp ACK of 1 more; lwIP ACK of 1 more
new byte, older timestamp: Linux ACK; gVisor ACK of 1 more; smoltcp ACK of 1 more; lwIP ACK of 1 more
five of 1 bytes: Linux 5; gVisor 5; smoltcp 5; lwIP 5
five of 0 bytes: Linux 1; gVisor 1; smoltcp 1; lwIP 5
X
echo "as before"

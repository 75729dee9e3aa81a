#!/usr/bin/env bash
# When was a packet of a pcapng file captured? Nine files, whose interface descriptions give the unit and offset (if_tsresol,
# if_tsoffset), in eight readers: scapy 2.8.0, dpkt 1.9.8, python-pcapng 2.1.1, tcpdump 4.99.3 with libpcap 1.10.3, tshark 4.0.17 (Debian 12's
# builds), gopacket 1.7.7, and the Rust crates pcap-file 2.0.0 and pcap-parser 0.17.0. All packets are of second 1735787045.5, or
# 1735787045 where the unit is a second.
# Guessed: all know the default, microseconds, and powers of ten; powers of two and offsets are missing here and there, with an error.
# Seen: only dpkt and tcpdump are right in all nine files, and none reports an error with a wrong time:
# - pcap-file takes every number for nanoseconds, the default unit too.
# - scapy and python-pcapng leave out the offset, pcap-parser leaves it out in big-endian files.
# - gopacket takes a unit of one second for a millisecond, and is off by 37 ms at units of 2^-32 s.
# - pcap-parser gives no unit for powers of two, the one case that a program can notice.
# - At picoseconds, whose numbers fit only with an offset, tshark and pcap-parser have a wrong fraction of the second.
# Matters to programs that write captures: microseconds or nanoseconds as a power of ten and without an offset are safe, and a
# test of the times needs a reader that was held against another one.
set -euo pipefail
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
for package in tcpdump=4.99.3-1 libpcap0.8=1.10.3-1 tshark=4.0.17-0+deb12u3 libwireshark16=4.0.17-0+deb12u3 \
  libwiretap13=4.0.17-0+deb12u3 libwsutil14=4.0.17-0+deb12u3 libbcg729-0 libc-ares2 liblua5.2-0 libopencore-amrnb0 libsbc1 libsmi2ldbl \
  libsnappy1v5 libspandsp2 libspeexdsp1 libssh-gcrypt-4 libopus0 libnl-3-200 libnl-genl-3-200 libnl-route-3-200; do
  apt-get download -qq "$package" 2>apt.txt || { cat apt.txt >&2; exit 1; }
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check scapy==2.8.0 dpkt==1.9.8 python-pcapng==2.1.1

cat >write.py <<'P'
"""One file an interface description; the one packet of each was captured at 1735787045.5 seconds after 1970."""
import struct
from fractions import Fraction

TIME = Fraction(17357870455, 10)
FRAME = bytes(12) + b"\x88\xb5" + bytes(46)


def option(e, code, value):
    return struct.pack(e + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def block(e, kind, body):
    body += bytes(-len(body) % 4)
    length = struct.pack(e + "I", len(body) + 12)
    return struct.pack(e + "I", kind) + length + body + length


def write(name, units, resolution=None, offset=None, e="<"):
    interface = struct.pack(e + "HHI", 1, 0, 0)
    if resolution is not None:
        interface += option(e, 9, bytes([resolution]))
    if offset is not None:
        interface += option(e, 14, struct.pack(e + "q", offset))
    if len(interface) > 8:
        interface += option(e, 0, b"")
    stamp = int((TIME - (offset or 0)) * units)
    with open(name + ".pcapng", "wb") as f:
        f.write(block(e, 0x0A0D0D0A, struct.pack(e + "IHHq", 0x1A2B3C4D, 1, 0, -1)))
        f.write(block(e, 1, interface))
        f.write(block(e, 6, struct.pack(e + "5I", 0, stamp >> 32, stamp & 0xFFFFFFFF, len(FRAME), len(FRAME)) + FRAME))


write("microseconds", 10**6)
write("nanoseconds", 10**9, 9)
write("milliseconds", 10**3, 3)
write("seconds", 10**0, 0)
write("binary-10", 2**10, 0x8A)
write("binary-32", 2**32, 0xA0)
write("offset", 10**6, 6, 1_700_000_000)
write("picoseconds-offset", 10**12, 12, 1_735_787_000)
write("big-endian-offset", 10**6, 6, 1_700_000_000, ">")
P
python3 write.py

cat >read.py <<'P'
import sys
from decimal import Decimal

reader, name = sys.argv[1:]
if reader == "scapy":
    from scapy.utils import PcapNgReader
    with PcapNgReader(name) as r:
        print(Decimal(str(next(iter(r)).time)))
elif reader == "dpkt":
    import dpkt
    print(next(iter(dpkt.pcapng.Reader(open(name, "rb"))))[0])
else:
    from pcapng import FileScanner
    from pcapng.blocks import EnhancedPacket
    print(next(b.timestamp for b in FileScanner(open(name, "rb")) if isinstance(b, EnhancedPacket)))
P
mkdir go && cd go && cat >main.go <<'G'
package main

import (
	"fmt"
	"os"

	"github.com/gopacket/gopacket/pcapgo"
)

func main() {
	f, _ := os.Open(os.Args[1])
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	_, ci, err := r.ReadPacketData()
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	fmt.Printf("%d.%09d\n", ci.Timestamp.Unix(), ci.Timestamp.Nanosecond())
}
G
export GOFLAGS=-modcacherw GOPATH=$work/gopath
go mod init x >/dev/null 2>&1; go get github.com/gopacket/gopacket/pcapgo@v1.7.7 >/dev/null 2>&1; go build -o ../gopacket .; cd ..
mkdir rs && cd rs && cargo init -q --name x . && cargo add -q pcap-file@2 pcap-parser@0.17 && cat >src/main.rs <<'R'
use std::fs::File;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let file = File::open(&a[2]).unwrap();
    if a[1] == "pcap-file" {
        let mut r = pcap_file::pcapng::PcapNgReader::new(file).unwrap();
        while let Some(b) = r.next_block() {
            match b {
                Ok(pcap_file::pcapng::Block::EnhancedPacket(p)) => println!("{}.{:09}", p.timestamp.as_secs(), p.timestamp.subsec_nanos()),
                Ok(_) => (),
                Err(e) => return println!("error: {e}"),
            }
        }
    } else {
        use pcap_parser::{pcapng::*, *};
        let mut r = create_reader(65536, file).unwrap();
        let (mut res, mut off) = (1_000_000, 0);
        loop {
            let n = match r.next() {
                Ok((n, PcapBlockOwned::NG(Block::InterfaceDescription(i)))) => {
                    match i.ts_resolution() { Some(x) => res = x, None => { println!("no resolution"); return } }
                    off = i.ts_offset();
                    n
                }
                Ok((n, PcapBlockOwned::NG(Block::EnhancedPacket(p)))) => {
                    println!("{:.9}", p.decode_ts_f64(off as u64, res));
                    n
                }
                Ok((n, _)) => n,
                Err(PcapError::Eof) => break,
                Err(PcapError::Incomplete(_)) => { r.refill().unwrap(); continue }
                Err(e) => { println!("error: {e:?}"); break }
            };
            r.consume(n);
        }
    }
}
R
cargo build -q 2>&1 | tail -30; cp target/debug/x ../rust; cd ..
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu HOME=$work
for f in microseconds nanoseconds milliseconds seconds binary-10 binary-32 offset picoseconds-offset big-endian-offset; do
  echo "$f:"
  {
    for r in scapy dpkt python-pcapng; do echo "$(venv/bin/python read.py $r $f.pcapng) $r"; done
    echo "$(root/usr/bin/tcpdump -tt --nano -q -r $f.pcapng 2>/dev/null | head -n 1 | cut -d' ' -f1) tcpdump"
    echo "$(root/usr/bin/tshark -r $f.pcapng -T fields -e frame.time_epoch 2>/dev/null) tshark"
    echo "$(./gopacket $f.pcapng) gopacket"
    for r in pcap-file pcap-parser; do echo "$(./rust $r $f.pcapng) $r"; done
  } | awk '{ if ($1 ~ /^[0-9.]+$/) { if ($1 ~ /[.]/) sub(/[.]?0*$/, "", $1) } t = $1; if (NF > 2) { t = $1 " " $2; $2 = "" } if (!(t in who)) order[++n] = t; who[t] = who[t] " " $NF }
      END { for (i = 1; i <= n; i++) print "  " order[i] ":" who[order[i]] }'
done | tee seen
diff - seen <<'X'
microseconds:
  1735787045.5: scapy dpkt python-pcapng tcpdump tshark gopacket pcap-parser
  1735787.0455: pcap-file
nanoseconds:
  1735787045.5: scapy dpkt python-pcapng tcpdump tshark gopacket pcap-file pcap-parser
milliseconds:
  1735787045.5: scapy dpkt python-pcapng tcpdump tshark gopacket pcap-parser
  1735.7870455: pcap-file
seconds:
  1735787045: scapy dpkt python-pcapng tcpdump tshark pcap-parser
  1735.787045: gopacket
  1.735787045: pcap-file
binary-10:
  1735787045.5: scapy dpkt python-pcapng tcpdump tshark
  1735787045.499999744: gopacket
  1777.445934592: pcap-file
  no resolution: pcap-parser
binary-32:
  1735787045.5: scapy dpkt python-pcapng tcpdump tshark
  1735787045.536870912: gopacket
  7455148593.242963968: pcap-file
  no resolution: pcap-parser
offset:
  35787045.5: scapy python-pcapng
  1735787045.5: dpkt tcpdump tshark gopacket pcap-parser
  35787.0455: pcap-file
picoseconds-offset:
  45.5: scapy python-pcapng
  1735787045.5: dpkt tcpdump gopacket
  1735787045.00193791: tshark
  45500: pcap-file
  1735787045.001783848: pcap-parser
big-endian-offset:
  35787045.5: scapy python-pcapng pcap-parser
  1735787045.5: dpkt tcpdump tshark gopacket
  35787.0455: pcap-file
X
echo "as before"

#!/usr/bin/env bash
# What did the server send on this TCP connection? Twelve captures of 4,000 bytes of response in four segments, read by tshark 4.0.17,
# tcpflow 1.6.1, tcptrace 6.6.7 (Debian 12's builds), scapy 2.8.0 (TCPSession: once with a class that takes each piece, once with one that
# waits for the end), PyPCAPKit 1.4.1.post2, and gopacket 1.7.7's packages tcpassembly and reassembly.
# Guessed: all put segments in order, drop what is repeated, and go by the length in the IP header. Bytes that a capture lacks are
# reported, or are zeros in the stream.
# Seen: only gopacket's packages are right in all of them; scapy's class for pieces is wrong in seven.
# - Ethernet's padding of short frames: tcpflow appends that of the FIN and the last ACK to the stream. scapy puts that of the
#   SYN and of ACKs in front of the response, or into it.
# - scapy's pieces are in the order of capture: swapped segments stay swapped, and a frame that was captured twice, a probe that repeats
#   one byte and a retransmission that begins elsewhere add bytes. The class that waits is right there, but has zeros in place of
#   a segment that comes behind the FIN (PyPCAPKit returns 5,000 bytes there).
# - A segment missing in the capture: tcpflow, tcptrace, PyPCAPKit and scapy's class that waits have zeros, scapy's pieces close up
#   without a word, gopacket closes up and reports the number. tshark writes a sentence of 37 bytes into the stream, in raw mode too.
# - A pause of a day makes two connections of one for tcptrace. VLAN tags, checksums left to the device and ports that are used
#   again harm no reader.
# - Programs that import both packages of gopacket end at their start, because both define the same command-line flags.
# Matters to tests that compare a client's bytes with a capture, above all captures of each interface and of connections that are
# probed: a difference can be the reader's, and zeros or a missing piece can be the capture's.
set -euo pipefail
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
for package in tcpflow=1.6.1-2+b1 libhttp-parser2.9=2.9.4-5 libcairo2 libpixman-1-0 libfontconfig1 libfreetype6 libxcb-shm0 libxcb1 libxcb-render0 \
  libxrender1 libx11-6 libxext6 tcptrace=6.6.7-6+b1 libpcap0.8=1.10.3-1 tshark=4.0.17-0+deb12u3 libwireshark16=4.0.17-0+deb12u3 \
  libwiretap13=4.0.17-0+deb12u3 libwsutil14=4.0.17-0+deb12u3 libbcg729-0 libc-ares2 liblua5.2-0 libopencore-amrnb0 libsbc1 libsmi2ldbl \
  libsnappy1v5 libspandsp2 libspeexdsp1 libssh-gcrypt-4 libopus0 libnl-3-200 libnl-genl-3-200 libnl-route-3-200; do
  apt-get download -qq "$package" 2>apt.txt || { cat apt.txt >&2; exit 1; }
done
for deb in *.deb; do dpkg-deb -x "$deb" root; done
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check scapy==2.8.0 pypcapkit==1.4.1.post2
cat >write.py <<'P'
"""One capture a case: a request of 10 bytes and a response of 4,000, which no two places of share bytes."""
import hashlib
import struct

CLIENT, SERVER = bytes([10, 9, 0, 2]), bytes([10, 9, 0, 1])
REQUEST, RESPONSE = b"0123456789", b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(125))
FIN, SYN, PSH, ACK = 1, 2, 8, 16


def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


class Connection:
    def __init__(self, start=1000, client_start=5000, link="ethernet", offload=False):
        self.start, self.client_start, self.link, self.offload, self.frames = start, client_start, link, offload, []
        self.frame(True, 0, 0, SYN)
        self.frame(False, 0, 1, SYN | ACK)
        self.frame(True, 1, 1, ACK)
        self.frame(True, 1, 1, PSH | ACK, REQUEST)
        self.frame(False, 1, 11, ACK)

    def frame(self, from_client, number, acked, flags, data=b""):
        source, target = (CLIENT, SERVER) if from_client else (SERVER, CLIENT)
        begin, other = (self.client_start, self.start) if from_client else (self.start, self.client_start)
        head = struct.pack(">HHIIBBHHH", *((40000, 80) if from_client else (80, 40000)), (begin + number) % 2**32,
                           (other + acked) % 2**32 if flags & ACK else 0, 80, flags, 60000, 0, 0)
        pseudo = source + target + struct.pack(">HH", 6, (len(head) + len(data)) & 0xFFFF)
        check = checksum(pseudo) if self.offload and not from_client else checksum(pseudo + head + data) ^ 0xFFFF
        segment = head[:16] + struct.pack(">H", check) + head[18:] + data
        ip = struct.pack(">BBHHHBBH", 69, 0, 20 + len(segment), len(self.frames), 0x4000, 64, 6, 0)
        ip += source + target
        packet = ip[:10] + struct.pack(">H", checksum(ip) ^ 0xFFFF) + ip[12:] + segment
        vlan = b"\x81\x00\x00\x07" if self.link == "vlan" else b""
        frame = b"\x02" + bytes(4) + b"\x01\x02" + bytes(4) + b"\x02" + vlan + b"\x08\x00" + packet
        if self.link == "padded":
            frame += bytes(max(0, 60 - len(frame)))
        self.frames.append(frame)

    def data(self, *spans):
        """Each span in a segment, and the ACK that a client sends when it has all up to there."""
        have = 0
        for begin, end in spans:
            self.frame(False, 1 + begin, 11, PSH | ACK, RESPONSE[begin:end])
            if begin <= have:
                have = max(have, end)
                self.frame(True, 11, 1 + have, ACK)
        return self

    def close(self):
        self.frame(False, 4001, 11, FIN | ACK)
        self.frame(True, 11, 4002, FIN | ACK)
        self.frame(False, 4002, 12, ACK)
        return self

    def write(self, name, pause=None):
        time = 1_735_787_045_000_000
        with open(name + ".pcap", "wb") as f:
            f.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))
            for i, frame in enumerate(self.frames):
                time += 86_400_000_000 if i == pause else 1000
                f.write(struct.pack("<IIII", time // 10**6, time % 10**6, len(frame), len(frame)) + frame)


QUARTERS = (0, 1000), (1000, 2000), (2000, 3000), (3000, 4000)


def whole(**how):
    return Connection(**how).data(*QUARTERS).close()


if __name__ == "__main__":
    whole().write("plain")
    whole(link="padded").write("padded")
    whole(link="vlan").write("vlan")
    whole(offload=True).write("offload")
    whole().write("pause", pause=9)
    c = whole()
    c.frames = [f for f in c.frames for _ in range(2)]
    c.write("twice")
    c = whole()
    del c.frames[7]
    c.write("hole")
    Connection().data((0, 1000), (2000, 3000), (1000, 2000), (3000, 4000)).close().write("swapped")
    c = Connection().data((0, 1000), (1000, 2000), (3000, 4000))
    c.frame(False, 4001, 11, FIN | ACK)
    c.frame(False, 2001, 11, PSH | ACK, RESPONSE[2000:3000])
    c.frame(True, 11, 4002, FIN | ACK)
    c.write("FIN-first")
    Connection().data((0, 1000), (1000, 2000), (999, 1000), (2000, 3000), (3000, 4000)).close().write("probe")
    Connection().data((0, 1000), (1000, 2000), (1000, 3000), (2500, 4000)).close().write("repacked")
    c = whole()
    c.frames += whole(start=3_000_000, client_start=7_000_000).frames
    c.write("reused")
P
python3 write.py
cat >read.py <<'P'
import sys

reader, name = sys.argv[1:]
if reader == "pcapkit":
    import pcapkit

    read = pcapkit.extract(fin=name, nofile=True, tcp=True, reassembly=True, reasm_strict=False)
    for stream in read.reassembly.tcp:
        if stream.id.src[1] == 80:
            sys.stdout.buffer.write(stream.payload)
else:
    from scapy.all import TCP, Packet, StrField, TCPSession, bind_layers, sniff

    class Stream(Packet):
        fields_desc = [StrField("data", b"")]

        @classmethod
        def tcp_reassemble(cls, data, metadata, session):
            if reader == "scapy-pieces" or "tcp_end" in metadata:
                return cls(data)

    bind_layers(TCP, Stream, sport=80)
    for packet in sniff(offline=name, session=TCPSession, quiet=True):
        if Stream in packet:
            sys.stdout.buffer.write(packet[Stream].data)
P
mkdir go go/tcpassembly go/reassembly go/both
cat >go/tcpassembly/main.go <<'G'
package main

import (
	"os"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/gopacket/gopacket/tcpassembly"
)

type stream struct{ gopacket.Flow }

func (s stream) New(_, ports gopacket.Flow) tcpassembly.Stream { return stream{ports} }
func (s stream) ReassemblyComplete()                           {}
func (s stream) Reassembled(parts []tcpassembly.Reassembly) {
	for _, part := range parts {
		if s.Src().String() == "80" {
			for ; part.Skip > 0; part.Skip-- {
				os.Stdout.WriteString("?")
			}
			os.Stdout.Write(part.Bytes)
		}
	}
}

func main() {
	f, _ := os.Open(os.Args[1])
	r, err := pcapgo.NewReader(f)
	if err != nil {
		panic(err)
	}
	a := tcpassembly.NewAssembler(tcpassembly.NewStreamPool(stream{}))
	for p := range gopacket.NewPacketSource(r, r.LinkType()).Packets() {
		a.AssembleWithTimestamp(p.NetworkLayer().NetworkFlow(), p.TransportLayer().(*layers.TCP), p.Metadata().Timestamp)
	}
	a.FlushAll()
}
G
cat >go/reassembly/main.go <<'G'
package main

import (
	"os"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/gopacket/gopacket/reassembly"
)

type stream struct{ gopacket.Flow }
type context = reassembly.AssemblerContext

func (s stream) New(_, ports gopacket.Flow, _ *layers.TCP, _ context) reassembly.Stream { return stream{ports} }
func (s stream) Accept(*layers.TCP, gopacket.CaptureInfo, reassembly.TCPFlowDirection, reassembly.Sequence, *bool, context) bool {
	return true
}
func (s stream) ReassemblyComplete(context) bool { return true }
func (s stream) ReassembledSG(parts reassembly.ScatterGather, _ context) {
	way, _, _, skip := parts.Info()
	if (s.Src().String() == "80") == (way == reassembly.TCPDirClientToServer) {
		for ; skip > 0; skip-- {
			os.Stdout.WriteString("?")
		}
		size, _ := parts.Lengths()
		os.Stdout.Write(parts.Fetch(size))
	}
}

type frame gopacket.CaptureInfo

func (f *frame) GetCaptureInfo() gopacket.CaptureInfo { return gopacket.CaptureInfo(*f) }

func main() {
	f, _ := os.Open(os.Args[1])
	r, err := pcapgo.NewReader(f)
	if err != nil {
		panic(err)
	}
	a := reassembly.NewAssembler(reassembly.NewStreamPool(stream{}))
	for p := range gopacket.NewPacketSource(r, r.LinkType()).Packets() {
		a.AssembleWithContext(p.NetworkLayer().NetworkFlow(), p.TransportLayer().(*layers.TCP), (*frame)(&p.Metadata().CaptureInfo))
	}
	a.FlushAll()
}
G
cat >go/both/main.go <<'G'
package main

import (
	_ "github.com/gopacket/gopacket/reassembly"
	_ "github.com/gopacket/gopacket/tcpassembly"
)

func main() {}
G
cat >go/go.mod <<'G'
module read
go 1.26.8
require github.com/gopacket/gopacket v1.7.7
G
(cd go && GOFLAGS="-mod=mod -modcacherw" GOPATH=$work/gopath GOCACHE=$work/gocache go build -o ../bin/ ./... 2>../go.txt) || { cat go.txt >&2; exit 1; }
export LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu HOME=$work
cat >judge.py <<'P'
"""Compares the bytes on standard input with the response, and says what is wrong."""
import sys

from write import RESPONSE

name, data = sys.argv[1], sys.stdin.buffer.read()
whole = RESPONSE * (2 if name == "reused" else 1)
same = next((i for i, (a, b) in enumerate(zip(data, whole)) if a != b), min(len(data), len(whole)))
more = len(data) - len(whole)
zeros = len(data[same:]) - len(data[same:].lstrip(b"\0"))
unknown = data.count(b"?" * 1000) * 1000
if data == whole:
    print("whole")
elif more == 0 and unknown and data[same + unknown :] == whole[same + unknown :]:
    print(f"reports {unknown} bytes missing")
elif more == 0 and data[same + zeros :] == whole[same + zeros :]:
    print(f"{zeros} zeros at byte {same}")
elif more < 0 and same == len(data):
    print(f"ends at byte {same}")
elif more < 0 and data[same:] == whole[same - more :]:
    print(f"{-more} bytes missing at byte {same}")
elif more == 0 and sorted(data) == sorted(whole):
    print(f"order is wrong from byte {same} on")
else:
    print(f"{abs(more)} bytes too {'many' if more > 0 else 'few'}, wrong from byte {same} on")
P
# stream READER CASE: the server's bytes. tcptrace has a pair of files for each connection that it sees.
stream() {
  rm -rf out
  mkdir out
  case $1 in
  tshark)
    for number in 0 1; do
      root/usr/bin/tshark -r "$2.pcap" -q -z "follow,tcp,raw,$number" 2>>log | grep $'^\t' | tr -d '\t\n' | xxd -r -p || true
    done
    ;;
  tcpflow)
    root/usr/bin/tcpflow -q -r "$2.pcap" -o out >>log 2>&1
    cat out/010.009.000.001*
    ;;
  tcptrace)
    (cd out && ../root/usr/bin/tcptrace -e -n "../$2.pcap" >>../log 2>&1)
    cat out/b2a_contents.dat
    if [[ -e out/c2d_contents.dat ]]; then grep -q 0123456789 out/c2d_contents.dat && cat out/d2c_contents.dat; fi
    ;;
  scapy-* | pcapkit) venv/bin/python read.py "$1" "$2.pcap" 2>>log ;;
  *) "bin/$1" "$2.pcap" ;;
  esac
}
for case in plain vlan offload padded pause reused twice hole swapped FIN-first probe repacked; do
  echo "$case:"
  for reader in tshark tcpflow tcptrace scapy-pieces scapy-whole pcapkit tcpassembly reassembly; do
    { stream $reader $case || true; } >bytes
    echo "$reader $(python3 judge.py $case <bytes)"
  done | awk '{ r = $1; $1 = ""; if (!($0 in who)) order[++n] = $0; who[$0] = who[$0] " " r }
      END { for (i = 1; i <= n; i++) print " " order[i] ":" who[order[i]] }'
done | tee seen
if bin/both 2>both; then echo "both packages: no error"; else grep -m 1 -o 'flag redefined' both; fi | tee -a seen
diff - seen <<'X'
plain:
  whole: tshark tcpflow tcptrace scapy-pieces scapy-whole pcapkit tcpassembly reassembly
vlan:
  whole: tshark tcpflow tcptrace scapy-pieces scapy-whole pcapkit tcpassembly reassembly
offload:
  whole: tshark tcpflow tcptrace scapy-pieces scapy-whole pcapkit tcpassembly reassembly
padded:
  whole: tshark tcptrace pcapkit tcpassembly reassembly
  12 bytes too many, wrong from byte 4000 on: tcpflow
  24 bytes too many, wrong from byte 0 on: scapy-pieces
  7 bytes too many, wrong from byte 0 on: scapy-whole
pause:
  whole: tshark tcpflow scapy-pieces scapy-whole pcapkit tcpassembly reassembly
  ends at byte 2000: tcptrace
reused:
  whole: tshark tcpflow tcptrace scapy-pieces scapy-whole pcapkit tcpassembly reassembly
twice:
  whole: tshark tcpflow tcptrace scapy-whole pcapkit tcpassembly reassembly
  4000 bytes too many, wrong from byte 1000 on: scapy-pieces
hole:
  963 bytes too few, wrong from byte 1000 on: tshark
  1000 zeros at byte 1000: tcpflow tcptrace scapy-whole pcapkit
  1000 bytes missing at byte 1000: scapy-pieces
  reports 1000 bytes missing: tcpassembly reassembly
swapped:
  whole: tshark tcpflow tcptrace scapy-whole pcapkit tcpassembly reassembly
  order is wrong from byte 1000 on: scapy-pieces
FIN-first:
  whole: tshark tcpflow tcptrace tcpassembly reassembly
  order is wrong from byte 2000 on: scapy-pieces
  1000 zeros at byte 2000: scapy-whole
  1000 bytes too many, wrong from byte 0 on: pcapkit
probe:
  whole: tshark tcpflow tcptrace scapy-whole pcapkit tcpassembly reassembly
  1 bytes too many, wrong from byte 2000 on: scapy-pieces
repacked:
  whole: tshark tcpflow tcptrace scapy-whole pcapkit tcpassembly reassembly
  1500 bytes too many, wrong from byte 2000 on: scapy-pieces
flag redefined
X
echo "as before"

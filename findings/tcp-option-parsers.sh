#!/usr/bin/env bash
# The TCP options of one segment, as five parsers read them: scapy 2.8.0, dpkt 1.9.8, etherparse 0.21.0, smoltcp 0.14.0,
# pnet_packet 0.35.0.
# Guessed: an option of an unknown kind is passed over by its length (RFC 9293, section 3.1), and kind 0 ends the list.
# Seen:
# - etherparse stops at the first kind that it does not know: behind an experimental option (kind 253, RFC 6994) it shows
#   neither MSS nor timestamps. Its iterator yields one error and ends.
# - dpkt and pnet_packet read on behind kind 0, so padding that is not zero becomes options.
# Matters to a protocol that puts an experimental option first: tools built on etherparse lose the others behind it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
/usr/bin/python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check scapy==2.8.0 dpkt==1.9.8
mkdir src
cat >Cargo.toml <<'X'
[package]
name = "options"
version = "0.0.0"
edition = "2021"
[dependencies]
etherparse = "=0.21.0"
pnet_packet = "=0.35.0"
smoltcp = { version = "=0.14.0", default-features = false, features = ["std", "medium-ip", "proto-ipv4", "socket-tcp"] }
X
cat >src/main.rs <<'X'
use pnet_packet::tcp::TcpPacket;

fn main() {
    for hex in std::env::args().skip(1) {
        let options: Vec<u8> = (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
        let mut segment = vec![0; 20];
        segment[1] = 1;
        segment[3] = 1;
        segment[12] = (((20 + options.len()) / 4) as u8) << 4;
        segment.extend_from_slice(&options);
        let read = etherparse::TcpSlice::from_slice(&segment).unwrap();
        println!("etherparse {:?}", read.options_iterator().collect::<Vec<_>>());
        let mut rest = &options[..];
        let mut found = vec![];
        while !rest.is_empty() {
            match smoltcp::wire::TcpOption::parse(rest) {
                Ok((_, smoltcp::wire::TcpOption::EndOfList)) => break,
                Ok((behind, option)) => {
                    found.push(format!("{option:?}"));
                    rest = behind;
                }
                Err(e) => {
                    found.push(format!("{e:?}"));
                    break;
                }
            }
        }
        println!("smoltcp {}", found.join(", "));
        let kinds: Vec<u8> = TcpPacket::new(&segment).unwrap().get_options_iter().map(|o| o.get_number().0).collect();
        println!("pnet_packet kinds {kinds:?}");
    }
}
X
cat >ask.py <<'X'
import sys

import dpkt
from scapy.layers.inet import TCP

for text in sys.argv[1:]:
    options = bytes.fromhex(text)
    segment = bytes.fromhex("0001000100000000000000000002ffff00000000")
    segment = segment[:12] + bytes([(20 + len(options)) // 4 << 4]) + segment[13:] + options
    print("scapy", TCP(segment).options)
    print("dpkt kinds", [kind for kind, _ in dpkt.tcp.parse_opts(options)])
X
# An experimental option, then MSS 1460; MSS 1460, the end of the list, then padding that is not zero.
cases=(fd041234020405b4 020405b400010101)
CARGO_TARGET_DIR=$work/target cargo build -q 2>cargo.log || { cat cargo.log >&2; exit 1; }
for case in "${cases[@]}"; do
  echo "= $case"
  venv/bin/python ask.py "$case"
  target/debug/options "$case"
done | tee seen
diff - seen <<'X'
= fd041234020405b4
scapy [(253, b'\x124'), ('MSS', 1460)]
dpkt kinds [253, 2]
etherparse [Err(UnknownId(253))]
smoltcp Unknown { kind: 253, data: [18, 52] }, MaxSegmentSize(1460)
pnet_packet kinds [253, 2]
= 020405b400010101
scapy [('MSS', 1460), ('EOL', None)]
dpkt kinds [2, 0, 1, 1, 1]
etherparse [Ok(MaximumSegmentSize(1460))]
smoltcp MaxSegmentSize(1460)
pnet_packet kinds [2, 0, 1, 1, 1]
X
echo "as before"

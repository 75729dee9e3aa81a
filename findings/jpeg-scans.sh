#!/usr/bin/env bash
# Baseline JPEGs (ITU-T T.81) of one smooth picture, 70 by 50, made by an encoder of 60 lines below, in seven decoders:
# Pillow 13.0.0, OpenCV 5.0.0.93, PyAV 18.1.0 (FFmpeg), Go 1.26.8's image/jpeg, jpeg-js 0.4.4, zune-jpeg 0.5.15, jpeg-decoder 0.3.2.
# Guessed: all read what the standard's baseline process allows; a decoder that lacks a feature says so; for the same file they
# differ by 3 steps of 255 at most, and by some more where colour is stored at half the resolution.
# Seen (largest difference from Pillow's pixels):
# - At full colour resolution they differ by 4, at a half of it each way by 12 (Go, jpeg-js, FFmpeg) or 4 (both of Rust, which
#   interpolate as Pillow does). At a quarter it turns around: Go and jpeg-js are within 3, FFmpeg is off by 28.
# - One scan a component (no interleaving): zune-jpeg returns Ok and a wrong picture (off by 255). With restart markers in such
#   scans Go and jpeg-js refuse the file, and the others differ as before.
# - Colour at a higher resolution than luma: zune-jpeg returns Ok and a wrong picture (off by 227), and Go refuses it.
# - A third of the resolution across: Go and zune-jpeg refuse it, and five read it.
# - Components named R, G, B without a marker that says so are RGB for all but jpeg-js, which takes them for YCbCr.
# - A height given behind the first scan (DNL), mandatory for decoders, is read by no one of them.
# - Padding by zeros and fill bytes before markers change nothing.
# Matters to whoever writes JPEGs for any browser or compares decoders: keep the scan of the original as it is, one interleaved
# scan is the safe form, and an Ok of zune-jpeg does not mean that it could read the file.
set -euo pipefail
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check pillow==13.0.0 opencv-python-headless==5.0.0.93 av==18.1.0 numpy==2.4.6

cat >make.py <<'P'
import numpy as np

ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, (i // 8 if (i // 8 + i % 8) % 2 else i % 8)))
DC, AC = list(range(12)), [0, 0xF0] + [r << 4 | s for r in range(16) for s in range(1, 11)]
C = np.array([[np.sqrt((1 if u == 0 else 2) / 8) * np.cos((2 * x + 1) * u * np.pi / 16) for x in range(8)] for u in range(8)])
WIDTH, HEIGHT, STEP = 70, 50, 2


def segment(marker, body):
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def codes(kind, symbols):  # all codes of a table have one length: 8 bits (DC) or 9 (AC, of which symbols fit into 8)
    counts = [0] * 16
    counts[7] = len(symbols)
    return segment(0xC4, bytes([kind << 4]) + bytes(counts) + bytes(symbols))


class Bits:
    def __init__(self):
        self.value, self.count, self.out = 0, 0, bytearray()

    def put(self, value, count):
        self.value, self.count = self.value << count | value & (1 << count) - 1, self.count + count
        while self.count >= 8:
            self.count -= 8
            byte = self.value >> self.count & 255
            self.out += bytes([byte, 0]) if byte == 255 else bytes([byte])

    def number(self, value, size):
        self.put(value if value >= 0 else value + (1 << size) - 1, size)

    def pad(self, ones):
        if self.count:
            self.put(255 if ones else 0, 8 - self.count)


def block(pixels, before, bits):
    k = [int(v) for v in np.rint(C @ (pixels - 128.0) @ C.T / STEP).ravel()[ZIGZAG]]
    size = abs(k[0] - before).bit_length()
    bits.put(size, 8)
    bits.number(k[0] - before, size)
    end = max((i for i in range(1, 64) if k[i]), default=0)
    run = 0
    for v in k[1 : end + 1]:
        if v == 0:
            run += 1
            continue
        for _ in range(run // 16):
            bits.put(AC.index(0xF0), 8)
        size = abs(v).bit_length()
        bits.put(AC.index(run % 16 << 4 | size), 8)
        bits.number(v, size)
        run = 0
    if end < 63:
        bits.put(0, 8)
    return k[0]


def encode(planes, sampling, names=(1, 2, 3), together=True, restart=0, height_behind=False, ones=True, fill=b""):
    across, down = max(h for h, _ in sampling), max(v for _, v in sampling)
    out = bytearray(b"\xff\xd8" + fill + segment(0xDB, bytes([0] + [STEP] * 64)))
    frame = b"\x08" + (0 if height_behind else HEIGHT).to_bytes(2, "big") + WIDTH.to_bytes(2, "big") + bytes([len(planes)])
    out += fill + segment(0xC0, frame + b"".join(bytes([n, h << 4 | v, 0]) for n, (h, v) in zip(names, sampling)))
    out += codes(0, DC) + codes(1, AC) + (segment(0xDD, restart.to_bytes(2, "big")) if restart else b"")
    wide, high = -(-WIDTH // (8 * across)), -(-HEIGHT // (8 * down))
    parts = []
    for plane, (h, v) in zip(planes, sampling):
        full = np.pad(plane, ((0, high * 8 * down - HEIGHT), (0, wide * 8 * across - WIDTH)), mode="edge")
        a, d = across // h, down // v
        parts.append(full.reshape(full.shape[0] // d, d, full.shape[1] // a, a).mean((1, 3)))

    def scan(members):
        if len(members) > 1:
            units = [
                [(c, y * sampling[c][1] + j, x * sampling[c][0] + i) for c in members
                 for j in range(sampling[c][1]) for i in range(sampling[c][0])]
                for y in range(high) for x in range(wide)
            ]
        else:
            (c,), (h, v) = members, sampling[members[0]]
            rows, columns = -(-(-(-HEIGHT * v // down)) // 8), -(-(-(-WIDTH * h // across)) // 8)
            units = [[(c, y, x)] for y in range(rows) for x in range(columns)]
        bits, before = Bits(), dict.fromkeys(members, 0)
        for i, unit in enumerate(units):
            if restart and i and i % restart == 0:
                bits.pad(ones)
                bits.out += bytes([0xFF, 0xD0 + (i // restart - 1) % 8])
                before = dict.fromkeys(members, 0)
            for c, y, x in unit:
                before[c] = block(parts[c][8 * y : 8 * y + 8, 8 * x : 8 * x + 8], before[c], bits)
        bits.pad(ones)
        head = bytes([len(members)]) + b"".join(bytes([names[c], 0]) for c in members) + b"\x00\x3f\x00"
        return fill + segment(0xDA, head) + bytes(bits.out)

    for n, members in enumerate([list(range(len(planes)))] if together else [[c] for c in range(len(planes))]):
        out += scan(members) + (segment(0xDC, HEIGHT.to_bytes(2, "big")) if height_behind and n == 0 else b"")
    return bytes(out + fill + b"\xff\xd9")


y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
planes = [128 + 60 * np.sin(x / 7) + 40 * np.cos(y / 5), 128 + 50 * np.sin((x + y) / 9), 128 + 50 * np.cos((x - 2 * y) / 11)]
half = [(2, 2), (1, 1), (1, 1)]
for name, picture in {
    "full": encode(planes, [(1, 1)] * 3),
    "half": encode(planes, half),
    "quarter": encode(planes, [(4, 1), (1, 1), (1, 1)]),
    "third": encode(planes, [(3, 1), (1, 1), (1, 1)]),
    "more-colour": encode(planes, [(1, 1), (2, 2), (2, 2)]),
    "apart": encode(planes, half, together=False),
    "apart-restarts": encode(planes, half, together=False, restart=2),
    "restarts": encode(planes, half, restart=3),
    "zeros": encode(planes, half, restart=3, ones=False),
    "fill": encode(planes, half, fill=b"\xff" * 5),
    "rgb": encode(planes, [(1, 1)] * 3, names=b"RGB"),
    "height-behind": encode(planes, half, height_behind=True),
}.items():
    with open(f"{name}.jpg", "wb") as file:
        file.write(picture)
P
venv/bin/python make.py

mkdir -p go rust/src
cat >go/go.mod <<'X'
module decode
go 1.26.8
X
cat >go/main.go <<'X'
package main

import (
	"fmt"
	"image/jpeg"
	"os"
)

func main() {
	for _, name := range os.Args[1:] {
		in, _ := os.Open(name)
		m, err := jpeg.Decode(in)
		if err != nil {
			fmt.Fprintln(os.Stderr, "go", name, err)
			continue
		}
		out, _ := os.Create(name + ".go")
		for y := 0; y < m.Bounds().Dy(); y++ {
			for x := 0; x < m.Bounds().Dx(); x++ {
				r, g, b, _ := m.At(x, y).RGBA()
				out.Write([]byte{byte(r >> 8), byte(g >> 8), byte(b >> 8)})
			}
		}
		out.Close()
	}
}
X
(cd go && GOFLAGS=-mod=mod GOTOOLCHAIN=go1.26.8 GOPATH=$work/gopath GOCACHE=$work/gocache go run . ../*.jpg) 2>go.log || { cat go.log; exit 1; }

npm install --silent --no-fund --no-audit jpeg-js@0.4.4
cat >decode.js <<'X'
const jpeg = require('jpeg-js'), fs = require('fs')
for (const name of process.argv.slice(2)) {
  try {
    fs.writeFileSync(name + '.js', jpeg.decode(fs.readFileSync(name), { useTArray: true, formatAsRGBA: false }).data)
  } catch (error) { console.error('js', name, error.message) }
}
X
node decode.js ./*.jpg 2>js.log

cat >rust/Cargo.toml <<'X'
[package]
name = "decode"
version = "0.1.0"
edition = "2021"
[dependencies]
zune-jpeg = "=0.5.15"
jpeg-decoder = { version = "=0.3.2", default-features = false }
X
cat >rust/src/main.rs <<'X'
use zune_jpeg::zune_core::{colorspace::ColorSpace, options::DecoderOptions};

fn main() {
    for name in std::env::args().skip(1) {
        let data = std::fs::read(&name).unwrap();
        let rgb = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
        match zune_jpeg::JpegDecoder::new_with_options(std::io::Cursor::new(&data), rgb).decode() {
            Ok(pixels) => std::fs::write(format!("{name}.zune"), pixels).unwrap(),
            Err(error) => eprintln!("zune {name} {error:?}"),
        }
        match jpeg_decoder::Decoder::new(&data[..]).decode() {
            Ok(pixels) => std::fs::write(format!("{name}.jd"), pixels).unwrap(),
            Err(error) => eprintln!("jd {name} {error}"),
        }
    }
}
X
(cd rust && cargo run -q --release -- ../*.jpg) 2>rust.log || { cat rust.log; exit 1; }

cat >compare.py <<'P'
import glob, os
import av, cv2, numpy as np
from PIL import Image

av.logging.set_level(av.logging.PANIC)


def pillow(name):
    return np.asarray(Image.open(name).convert("RGB"))


def opencv(name):
    return cv2.cvtColor(cv2.imread(name), cv2.COLOR_BGR2RGB)


def ffmpeg(name):
    with av.open(name) as file:
        return next(file.decode(video=0)).to_ndarray(format="rgb24")


def kept(end):
    return lambda name: np.fromfile(name + end, np.uint8).reshape(50, 70, 3)


decoders = {"pillow": pillow, "opencv": opencv, "ffmpeg": ffmpeg, "go": kept(".go"), "jpeg-js": kept(".js"),
            "zune-jpeg": kept(".zune"), "jpeg-decoder": kept(".jd")}
seen = {}
for path in sorted(glob.glob("*.jpg")):
    pictures = {}
    for decoder, read in decoders.items():
        try:
            pictures[decoder] = read(path).astype(int)
        except Exception:
            pictures[decoder] = None
    of = pictures["pillow"]
    seen[path[:-4]] = {d: None if p is None else int(abs(p - of).max()) for d, p in pictures.items()}
    print(f"{path[:-4]:15}", "  ".join(f"{d} {'refused' if v is None else v}" for d, v in seen[path[:-4]].items()))


def close(name, limit, but=()):
    assert all(v is not None and v <= limit for d, v in seen[name].items() if d not in but), name


def refused(name):
    return {d for d, v in seen[name].items() if v is None}


close("full", 4)
for name in ("half", "restarts", "zeros", "fill"):
    close(name, 12)
    assert seen[name]["zune-jpeg"] <= 4 and seen[name]["jpeg-decoder"] <= 4 and seen[name]["go"] == 12, name
close("quarter", 3, but={"ffmpeg"})
assert seen["quarter"]["ffmpeg"] > 20
assert refused("apart") == set() and seen["apart"]["zune-jpeg"] > 200
close("apart", 12, but={"zune-jpeg"})
assert refused("apart-restarts") == {"go", "jpeg-js"} and seen["apart-restarts"]["zune-jpeg"] > 200
assert refused("more-colour") == {"go"} and seen["more-colour"]["zune-jpeg"] > 200
assert refused("third") == {"go", "zune-jpeg"}
assert refused("height-behind") == set(decoders)
assert refused("rgb") == set() and seen["rgb"]["jpeg-js"] > 100
close("rgb", 1, but={"jpeg-js"})
P
venv/bin/python compare.py

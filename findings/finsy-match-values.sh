#!/usr/bin/env bash
# Match values of finsy 0.30.0, an asyncio client of P4Runtime.
# Guessed: what it writes to the wire always keeps the P4Runtime specification's rules for match values (section 9.1.1):
# no bit of a ternary value outside of its mask, and no range whose low end is above its high end.
# Seen: values given as prefixes are masked (`10.0.0.1/8`, also as a ternary), values given with a mask are not
# (`255/&15` is sent as 0xff with mask 0x0f), and the range `5...1` is sent as it is. A switch that keeps to the
# specification refuses such an entry with INVALID_ARGUMENT, and the caller learns of it only there.
# Also: dotted addresses and MAC addresses are taken as exact values of their own width alone; True is 1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
/usr/bin/python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check finsy==0.30.0 grpcio==1.85.3 protobuf==6.33.6
cat >ask.py <<'X'
from finsy import p4values as v


def show(encode, value, bits):
    try:
        found = encode(value, bits)
        found = "/".join(x.hex() if isinstance(x, bytes) else str(x) for x in (found if isinstance(found, tuple) else (found,)))
    except ValueError as e:
        found = f"ValueError: {e}"
    print(f"{encode.__name__}({value!r}, {bits}): {found}")


show(v.encode_lpm, "10.0.0.1/8", 32)
show(v.encode_lpm, (0x0A000001, 8), 32)
show(v.encode_ternary, "10.0.0.1/8", 32)
show(v.encode_ternary, "255/&15", 8)
show(v.encode_ternary, (255, 15), 8)
show(v.encode_range, "5...1", 8)
show(v.encode_range, (5, 1), 8)
show(v.encode_exact, "10.0.0.1", 16)
show(v.encode_exact, True, 9)
show(v.encode_exact, 512, 9)
X
venv/bin/python ask.py | tee seen
diff - seen <<'X'
encode_lpm('10.0.0.1/8', 32): 0a000000/8
encode_lpm((167772161, 8), 32): 0a000000/8
encode_ternary('10.0.0.1/8', 32): 0a000000/ff000000
encode_ternary('255/&15', 8): ff/0f
encode_ternary((255, 15), 8): ff/0f
encode_range('5...1', 8): 05/01
encode_range((5, 1), 8): 05/01
encode_exact('10.0.0.1', 16): ValueError: invalid value for bitwidth 16: '10.0.0.1'
encode_exact(True, 9): 01
encode_exact(512, 9): ValueError: invalid value for bitwidth 9: 512
X
echo "as before"

#!/usr/bin/env bash
# Compiles the test programs with p4c 1.2.5 and drops what differs between machines: paths and source lines.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in *.p4; do
    name=${program%.p4}
    p4c --target bmv2 --arch v1model --p4runtime-files "$name.p4info.txtpb" -o "$work" "$program"
    python3 - "$work/$name.json" "$name.json" <<'PYTHON'
import json
import sys


def strip(value):
    if isinstance(value, dict):
        return {k: strip(v) for k, v in value.items() if k != "source_info"}
    return [strip(v) for v in value] if isinstance(value, list) else value


with open(sys.argv[1]) as source, open(sys.argv[2], "w") as target:
    program = strip(json.load(source))
    program.pop("program", None)
    json.dump(program, target, separators=(",", ":"))
    target.write("\n")
PYTHON
done

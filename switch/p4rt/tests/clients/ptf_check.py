#!/usr/bin/env python3
"""Runs tests over p4c's PTF base class, unmodified, against the embedded switch: namespace, veth ports, switch, ptf.

    ptf_check.py P4C PYTHON

P4C: a checkout of p4lang/p4c (`tools/ptf/base_test.py`). PYTHON: the interpreter of an environment of its own with
`ptf scapy p4runtime grpcio googleapis-common-protos protobuf<3.21` from PyPI. As root; the switch is the
one that `make build` made.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "ptf-tests"))

import run  # noqa: E402

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "programs"


def main() -> int:
    p4c, python = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).absolute()
    log = ROOT / "build" / "ptf_check.log"
    log.parent.mkdir(exist_ok=True)
    files = f"p4info='{PROGRAMS / 'everything.p4info.txtpb'}';config='{PROGRAMS / 'everything.json'}'"
    with run.namespace() as name, run.running_switch(name, "embedded", run.find_binary("embedded"), log):
        interfaces = [part for port in run.PORTS for part in ("-i", f"{port}@t{port}")]
        command = [
            *("ip", "netns", "exec", name, str(python), str(python.parent / "ptf")),
            *("--test-dir", str(HERE / "ptf"), "--pypath", str(p4c / "tools" / "ptf")),
            *(*interfaces, "--log-file", "/dev/null"),
            *("--test-params", f"grpcaddr='{run.GRPC}';{files}"),
        ]
        return subprocess.run(command, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

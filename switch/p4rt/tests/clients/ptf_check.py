#!/usr/bin/env python3
"""Runs tests over p4c's PTF base class, unmodified, against the embedded switch: namespace, veth ports, switch, ptf.

    ptf_check.py P4C PYTHON

P4C: a checkout of p4lang/p4c (`tools/ptf/base_test.py`). PYTHON: the interpreter of a separate environment with
`ptf scapy p4runtime grpcio googleapis-common-protos protobuf<3.21` from PyPI. Run it as root after `make build`,
which builds the switch.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "ptf-tests"))

import run  # noqa: E402

from rivulet_lab import switches  # noqa: E402

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "programs"


def main() -> int:
    p4c, python = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).absolute()
    files = f"p4info='{PROGRAMS / 'everything.p4info.txtpb'}';config='{PROGRAMS / 'everything.json'}'"
    with run.running_switch("embedded", switches.program("embedded"), ROOT / "build" / "ptf_check") as (lab, _):
        command = [
            *(str(python), str(python.parent / "ptf")),
            *("--test-dir", str(HERE / "ptf"), "--pypath", str(p4c / "tools" / "ptf")),
            *(*run.INTERFACES, "--log-file", "/dev/null"),
            *("--test-params", f"grpcaddr='{run.GRPC}';{files}"),
        ]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        return lab.start("ptf", command, lab.spaces["ptf"], env=environment, stdout=None, stderr=None).popen.wait()


if __name__ == "__main__":
    sys.exit(main())

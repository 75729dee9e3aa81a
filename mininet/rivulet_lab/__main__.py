"""`rivulet-lab`: runs topologies of p4lang/tutorials, and a console for P4Runtime switches."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .binaries import RackError


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="rivulet-lab", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a topology.json of p4lang/tutorials in Mininet (needs root)")
    run.add_argument("topology", type=Path, help="the topology")
    run.add_argument("--program", default="", help="BMv2 JSON of switches without a program of their own")
    run.add_argument("--switch", default="embedded", help="embedded (default), bmv2, or the path of a switch")
    run.add_argument("--log-dir", default="logs", help="folder of the logs (default logs)")
    run.add_argument("--pcap-dir", default="pcaps", help='folder of the pcap files (default pcaps; "": write none)')
    run.add_argument("--trace", action="store_true", help="log each packet's way through the program")
    run.add_argument(
        "--grpc-port", type=int, default=50051, help="P4Runtime port of the first switch (default 50051; 0: none)"
    )
    run.add_argument("--test", choices=["pingall"], default="", help="run this test instead of the prompt")
    console = commands.add_parser("console", help="simple_switch_CLI's words over P4Runtime")
    console.add_argument("--address", default="127.0.0.1:50051", help="the switch: HOST:PORT or unix:PATH")
    console.add_argument("--device-id", type=int, default=0, help="its device id (default 0)")
    console.add_argument("--p4info", type=Path, help="P4Info of its program; without it the switch is asked")
    console.add_argument("--election-id", type=int, default=1, help="the highest one may write (default 1)")
    return top


def main() -> int:
    """Runs a command; returns the exit code."""
    options = parser().parse_args()
    try:
        if options.command == "run":
            # Mininet is imported here only: the console runs without it.
            from .exercise import run

            arguments = {key: value for key, value in vars(options).items() if key not in ("command", "topology")}
            return run(options.topology, **arguments)
        from .console import main as console

        return console(options.address, options.device_id, options.election_id, options.p4info)
    except RackError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

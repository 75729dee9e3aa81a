#!/usr/bin/env python3
"""A rack in Mininet: one P4 switch, clients and replicas of Rivulet.

    sudo python3 mininet/topo.py
    sudo mn --custom mininet/topo.py --topo rack,replicas=4 --switch rivulet

docs/mininet.md has the options. Run it with the system's Python, which has Debian's Mininet.
"""

import argparse
import os
import signal
import sys
from functools import partial

# `mn` executes this file without `__file__`; the code object has the path.
sys.path.insert(0, os.path.dirname(os.path.abspath(sys._getframe().f_code.co_filename)))
try:
    from mininet.net import Mininet
    from mininet.node import NullController
except ImportError:
    sys.exit("Mininet is not installed for this Python: `sudo apt install mininet`, then run with /usr/bin/python3")

from rivulet_lab import RackError, standing
from rivulet_lab.mininet_nodes import LAB, SERVICE_URL, Bmv2Switch, P4Switch, RackCLI, RackTopo, RivuletController

# Names that `mn --custom` looks up.
topos = {"rack": RackTopo}
switches = {"rivulet": P4Switch, "bmv2": Bmv2Switch}
controllers = {"rivulet": RivuletController}
CLI = RackCLI


def findController() -> type[RivuletController]:
    """The controller that `mn` uses without --controller."""
    return RivuletController


def cleanup() -> None:
    """What `mn` calls after an error. Mininet's own would kill processes by name, those of other racks too."""
    LAB.down()


def main() -> int:
    """Starts a rack and its prompt, or one test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=3, help="number of replicas (default 3)")
    parser.add_argument("--clients", type=int, default=2, help="number of clients (default 2)")
    parser.add_argument("--switch", default="embedded", help="embedded (default), bmv2, or the path of a switch")
    parser.add_argument("--program", default="", help="BMv2 JSON that the switch starts with")
    parser.add_argument("--p4info", default="", help="P4Info of the program")
    parser.add_argument("--no-controller", action="store_true", help="run without Rivulet's controller")
    parser.add_argument("--pcap", action="store_true", help="write a pcap file for each interface of the switch")
    parser.add_argument("--trace", action="store_true", help="log the way of each packet, for `trace` at the prompt")
    parser.add_argument("--test", choices=["pingall"], help="run this test instead of the prompt")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root: run it with sudo")
    switch = partial(
        P4Switch,
        binary=options.switch,
        program=options.program,
        p4info=options.p4info,
        pcap=options.pcap,
        trace=options.trace,
    )
    controller = NullController if options.no_controller else RivuletController
    try:
        with standing(LAB):
            # Not KeyboardInterrupt, which the prompt of Mininet ignores.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            topo = RackTopo(replicas=options.replicas, clients=options.clients)
            net = Mininet(topo=topo, switch=switch, controller=controller, build=False)
            try:
                net.build()
                net.start()
                if options.test:
                    return 1 if net.pingAll() else 0
                print(f"logs: {LAB.folder}\nat the prompt: c1 curl -s {SERVICE_URL}; r1 kill; r1 return; trace; exit")
                CLI(net)
            finally:
                net.stop()
    except RackError as problem:
        sys.exit(f"error: {problem}")
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

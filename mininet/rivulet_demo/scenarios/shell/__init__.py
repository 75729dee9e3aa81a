"""Starts the rack with a Mininet prompt and the controller's page, for trying it by hand.

At the prompt, `c1 rivulet get http://10.9.0.1/file.bin -o /tmp/x` downloads, `r1 ip addr` shows a replica's addresses,
and `exit` tears everything down.
"""

from __future__ import annotations

import argparse
import os

from mininet.cli import CLI

from rivulet_lab import binary

from ...scenario import Parameters, console, standing_rack

WORDS = __doc__ or ""

API = "127.0.0.1:8080"


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Starts the rack and the prompt."""
    with standing_rack("shell", values, api=API) as standing:
        for node in standing.rack.nodes.values():
            node.cmd(f"export PATH={os.path.dirname(binary('rivulet'))}:$PATH")
        token = (standing.rack.folder / "tokens").read_text().strip().rpartition(":")[2]
        console.print(f"controller's page: http://{API}/#token={token}", soft_wrap=True)
        console.print(
            f"and from another shell: rivuletctl --api unix:{standing.rack.folder}/api.sock top", soft_wrap=True
        )
        console.print("hosts: " + ", ".join(f"{host.name} {host.ip}" for host in standing.rack.spec.hosts))
        console.print("service: http://10.9.0.1/file.bin and http://[fd00:9::1]/file.bin; `exit` ends it")
        CLI(standing.rack.net)
    return 0

"""What every rack and rig stands on: binaries, namespaces and links, processes, and the switches' command lines.

>>> with standing(Lab(folder)) as lab:
...     tor, host = lab.namespace("tor"), lab.namespace("h1")
...     veth(End(tor, "v1"), End(host, "h1-eth0"))
...     lab.start("switch", switches.command("embedded", {1: "v1"}, "127.0.0.1:9559"), tor)

However the block ends, the processes are ended by their ids and the namespaces are gone.
"""

import os

from . import nginx, switches
from .binaries import REPOSITORY, RackError, binary, built, prompt
from .cm import bpf_fs, cm_command
from .lab import Lab, Process, standing
from .namespaces import End, Namespace, shape, veth

__all__ = [
    "REPOSITORY",
    "End",
    "Lab",
    "Namespace",
    "Process",
    "RackError",
    "binary",
    "bpf_fs",
    "built",
    "cm_command",
    "nginx",
    "prompt",
    "shape",
    "standing",
    "switches",
    "veth",
]

# Racks have keys of their own at the same addresses: no client is to find what another run's left in a home.
os.environ.setdefault("RIVULET_STATE", "")

"""Parts of every rack: binaries, namespaces and links, processes, and command lines of the switches.

>>> with standing(Lab(folder)) as lab:
...     tor, host = lab.namespace("tor"), lab.namespace("h1")
...     veth(End(tor, "v1"), End(host, "h1-eth0"))
...     lab.start("switch", switches.command("embedded", {1: "v1"}, "127.0.0.1:9559"), tor)

At the end of the block the processes are ended by their ids, and the namespaces removed.
"""

import os

from . import certificate, nginx, switches
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
    "certificate",
    "cm_command",
    "nginx",
    "prompt",
    "shape",
    "standing",
    "switches",
    "veth",
]

# Racks use the same addresses with different keys: a client must not find another run's files in the home directory.
os.environ.setdefault("RIVULET_STATE", "")

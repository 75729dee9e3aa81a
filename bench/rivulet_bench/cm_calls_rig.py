"""Two namespaces with a link, and the Congestion Manager's calls for programs of unprivileged users."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rivulet_lab import End, Lab, Process, RackError, binary, cm_command, prompt, standing, veth

from .cm_rig import CLIENT, PORT, SERVER, Wire
from .rig import BUILD

USER = 54_400
"""First of the user ids with which programs run here; no account has them."""


def cgroups() -> Path:
    """Mount point of cgroups v2; RackError if there is none."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split()
        if fields[2] == "cgroup2":
            return Path(fields[1])
    raise RackError("no cgroups of version 2 are mounted")


class CallsRig(Lab):
    """The running namespaces: `s` receives, `c` runs the programs; a wire or a plain link connects them."""

    def __init__(self, folder: Path, wire: Wire | None) -> None:
        super().__init__(folder)
        self.wire = wire
        self.name = f"rvcm_c{os.getpid()}"
        """Name of the congestion control, and of its folder in the BPF file system."""
        self.door = folder / "cm.sock"
        self.cgroup = cgroups() / self.name

    def build(self) -> None:
        """Makes namespaces, link and daemon."""
        # Output of earlier runs must not satisfy the waits.
        for log in self.folder.glob("*.log"):
            log.unlink()
        for name in ("s", "c", *(("m",) if self.wire else ())):
            self.namespace(name)
        server, client = End(self.spaces["s"], "s0"), End(self.spaces["c"], "c0")
        if self.wire:
            middle = self.spaces["m"]
            veth(server, End(middle, "ms0"))
            veth(client, End(middle, "mc0"))
            # Data flows from the programs, at end `a`, to the receiver.
            self.start("wire", [*prompt(), binary("rivulet-wire"), "mc0", "ms0", *self.wire.flags()], middle)
        else:
            veth(server, client)
        self.spaces["s"].ip(f"addr add {SERVER}/24 dev s0")
        self.spaces["c"].ip(f"addr add {CLIENT}/24 dev c0")
        self.bpf_fs()
        self.cgroup.mkdir()
        self.serve()

    def down(self) -> None:
        """Removes everything."""
        try:
            super().down()
        finally:
            with suppress(FileNotFoundError):
                self.cgroup.rmdir()

    def cm(self, *words: str) -> list[str]:
        """Command line of `rivulet cm`."""
        return cm_command(self.name, self.folder / "bpf", *words)

    def serve(self) -> Process:
        """Starts the daemon; returns when it accepts programs."""
        said = self.folder / "daemon.log"
        said.unlink(missing_ok=True)
        flags = ("--socket", str(self.door), "--cgroup", str(self.cgroup))
        daemon = self.start("daemon", self.cm("serve", *flags))
        self.until(lambda: "let in" in daemon.text(), "the daemon accepts programs", 60.0, daemon)
        return daemon

    def receive(self, *before: str) -> None:
        """Starts the receiver of the packets; `before` precedes its command."""
        command = [*before, binary("cm-udp"), "receive", f"{SERVER}:{PORT}"]
        receiver = self.start("receive", command, self.spaces["s"])
        self.until(lambda: "receiving at" in receiver.text(), "it receives", 60.0, receiver)

    def client(self, name: str, user: int, words: Sequence[str], **options: Any) -> Process:
        """Starts a program in `c` as an unprivileged user, in the cgroup whose datagrams are counted."""
        # `ip netns exec` hides the cgroups.
        enter = ["sh", "-c", f'echo $$ >{self.cgroup}/cgroup.procs && exec "$@"', "sh"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--pdeathsig", "KILL", "--"]
        command = [*enter, *self.spaces["c"].enter, "env", f"RIVULET_CM={self.door}", *become, *words]
        return self.start(name, command, **options)


@contextmanager
def calls_rig(wire: Wire | None = None, name: str = "rig") -> Iterator[CallsRig]:
    """A rig, torn down at the end; `name` is its folder."""
    rig = CallsRig(BUILD / "cm-calls" / name, wire)
    with standing(rig):
        rig.build()
        yield rig

"""Network namespaces, links between them, and the offloads that links must not have."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from .binaries import RackError

OFFLOADS = ("tx", "rx", "tso", "gso", "gro", "txvlan", "rxvlan")
"""Offloads that a veth must not have: it would leave checksums, segmentation and tags undone (docs/dataplane.md)."""

FULL_FRAME = 1514


def run(*command: str, patience_s: float = 60.0, stdin: str | None = None) -> str:
    """Runs a command and returns its output. RackError with the error output if it fails."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=patience_s, check=False)
    except subprocess.TimeoutExpired:
        raise RackError(f"`{' '.join(command)}` did not end in {patience_s:g} s") from None
    if done.returncode != 0:
        raise RackError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace: one of `ip netns`, or that of a process (a node of Mininet)."""

    where: str
    """Its name for `ip ... netns`, or the process id."""
    enter: tuple[str, ...]
    """Command prefix that runs a command in it."""

    @staticmethod
    def add(name: str) -> Namespace:
        """Makes one with the loopback device up."""
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return Namespace(name, ("ip", "netns", "exec", name))

    @staticmethod
    def of(pid: int) -> Namespace:
        """The namespace of a node of Mininet."""
        return Namespace(str(pid), ("mnexec", "-da", str(pid)))

    def command(self, *words: str) -> list[str]:
        """The command, with the prefix that runs it in the namespace."""
        return [*self.enter, *words]

    def run(self, *words: str, patience_s: float = 60.0, stdin: str | None = None) -> str:
        """Runs a command in it and returns its output. RackError if it fails."""
        return run(*self.enter, *words, patience_s=patience_s, stdin=stdin)

    def succeeds(self, *words: str) -> bool:
        """Whether a command in it succeeds."""
        done = subprocess.run(self.command(*words), capture_output=True, stdin=subprocess.DEVNULL, check=False)
        return done.returncode == 0

    def ip(self, *lines: str) -> None:
        """Lines of `ip -batch`."""
        self.run("ip", "-batch", "-", stdin="\n".join(lines))

    def set(self, *settings: str) -> None:
        """Sets kernel settings, as `sysctl -w` does."""
        self.run("sysctl", "-qw", *settings)

    def turn_offloads_off(self, device: str) -> None:
        """Turns off what a link to the switch must not have (`OFFLOADS`)."""
        self.run("ethtool", "-K", device, *(word for offload in OFFLOADS for word in (offload, "off")))

    def attach(self, device: str) -> None:
        """Prepares an interface for a switch or a wire: no IPv6 of its own, no offloads, promiscuous, up."""
        self.set(f"net.ipv6.conf.{device}.disable_ipv6=1")
        self.turn_offloads_off(device)
        self.ip(f"link set {device} promisc on up")

    def tcp(self, counter: str) -> int:
        """A counter of its kernel's TCP (RFC 4022), such as PassiveOpens."""
        lines = self.run("cat", "/proc/net/snmp").splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        return int(dict(zip(names, values, strict=True))[counter])

    def serve_at(self, *addresses: str) -> None:
        """Adds addresses of a service, which it does not announce."""
        # Some kernels have no dummy devices; then the loopback device holds the addresses.
        device = "service" if self.succeeds("ip", "link", "add", "service", "type", "dummy") else "lo"
        added = (
            f"addr add {a}/128 dev {device} nodad" if ":" in a else f"addr add {a}/32 dev {device}" for a in addresses
        )
        self.ip(f"link set dev {device} up", *added)
        self.set("net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2")

    def delete(self) -> None:
        """Removes a namespace that `add` made, with its interfaces; does nothing if it no longer exists."""
        subprocess.run(["ip", "netns", "del", self.where], capture_output=True, check=False)


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link."""

    space: Namespace
    device: str
    mac: str = ""
    """Its Ethernet address (empty: chosen by the kernel)."""
    ipv6: bool = False
    """Whether IPv6 is on; without it the kernel sends nothing by itself."""


def veth(one: End, two: End, mtu: int = 1500) -> None:
    """Connects two namespaces, or two devices of one, by a link that is up and forwards complete frames."""
    one.space.ip(
        f"link add dev {one.device} mtu {mtu} type veth peer name {two.device} mtu {mtu} netns {two.space.where}"
    )
    for end in (one, two):
        silent = "accept_ra=0 accept_dad=0" if end.ipv6 else "disable_ipv6=1"
        end.space.set(*(f"net.ipv6.conf.{end.device}.{setting}" for setting in silent.split()))
        end.space.turn_offloads_off(end.device)
        end.space.ip(f"link set dev {end.device} {f'address {end.mac}' if end.mac else ''} up")


def shape(space: Namespace, device: str, rate_mbit: float | None, burst: int = 1 << 16) -> None:
    """Sets a token bucket at a device's egress (None: removes it), with a burst of 256 full frames, as a switch port
    has."""
    space.succeeds("tc", "qdisc", "del", "dev", device, "root")
    if rate_mbit is not None:
        words = ("rate", f"{rate_mbit:g}mbit", "burst", str(burst), "limit", str(256 * FULL_FRAME))
        space.run("tc", "qdisc", "add", "dev", device, "root", "tbf", *words)

"""Runs a command with the restrictions of a systemd unit, where systemd does not run.

unit_process.py UNIT UID GID COMMAND...: with the unit's capabilities, system calls and address
families, and no memory that is both written and run. It knows the settings that
rivulet-agent.service has of these.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
CAPABILITIES = Path("/usr/include/linux/capability.h")
CALLS = Path(f"/usr/include/{os.uname().machine}-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm-generic/unistd.h")
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# linux/prctl.h, linux/capability.h
KEEPCAPS, SECCOMP, CAPBSET_DROP, NO_NEW_PRIVS, CAP_AMBIENT, MDWE = 8, 22, 24, 38, 47, 65
AMBIENT_RAISE, MODE_FILTER, CAPABILITY_VERSION = 2, 2, 0x20080522
# linux/seccomp.h; EPERM, as the units say
REFUSE, ALLOW = 0x00050001, 0x7FFF0000
# struct seccomp_data, and instructions of classic BPF
NUMBER, ARCH, FIRST_ARGUMENT = 0, 4, 16
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06


def defined(files: Iterable[Path], prefix: str) -> dict[str, int]:
    """Numbers by name (without the prefix) from the first of these headers that exists."""
    text = next(file.read_text() for file in files if file.exists())
    return {name: int(number) for name, number in re.findall(rf"^#define {prefix}(\w+)\s+(\d+)$", text, re.M)}


def members(group: str) -> set[str]:
    """The system calls of a group, or the call itself."""
    if not group.startswith("@"):
        return {group}
    listed = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    words = (line.strip() for line in listed.stdout.splitlines()[1:])
    return set().union(*(members(word) for word in words if word and not word.startswith("#")))


def allowed(filters: list[str]) -> set[str]:
    """The system calls that SystemCallFilter= allows."""
    left: set[str] = set()
    for line in filters:
        named = set().union(*(members(word) for word in line.removeprefix("~").split()))
        left = left - named if line.startswith("~") else left | named
    return left


def program(calls: set[str], families: list[str]) -> bytes:
    """A seccomp filter: EPERM for all other calls, and for sockets of other families."""
    known = defined(CALLS, "__NR_")
    refuse = (RETURN, 0, 0, REFUSE)
    code = [(LOAD, 0, 0, ARCH), (JUMP_EQUAL, 1, 0, AUDIT_ARCH[os.uname().machine]), refuse, (LOAD, 0, 0, NUMBER)]
    for name in sorted(calls & known.keys() - {"socket"}):
        code += [(JUMP_EQUAL, 0, 1, known[name]), (RETURN, 0, 0, ALLOW)]
    code += [(JUMP_EQUAL, 1, 0, known["socket"]), refuse, (LOAD, 0, 0, FIRST_ARGUMENT)]
    for family in families:
        code += [(JUMP_EQUAL, 0, 1, int(getattr(socket, family))), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("HBBI", *one) for one in [*code, refuse])


def must(rc: int, what: str) -> None:
    if rc:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def prctl(option: int, *arguments: int) -> None:
    padded = [*arguments, *[0] * (4 - len(arguments))]
    must(LIBC.prctl(option, *(ctypes.c_ulong(argument) for argument in padded)), f"prctl {option}")


def become(uid: int, gid: int, kept: set[int]) -> None:
    """Becomes another user with these capabilities only, permanently."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in set(range(last + 1)) - kept:
        prctl(CAPBSET_DROP, capability)
    prctl(KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    mask = sum(1 << capability for capability in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header, data = struct.pack("Ii", CAPABILITY_VERSION, 0), struct.pack("6I", low, low, low, high, high, high)
    must(LIBC.capset(header, data), "capset")
    for capability in kept:
        prctl(CAP_AMBIENT, AMBIENT_RAISE, capability)


def confine(calls: bytes) -> None:
    """Applies the filter to this process from now on."""
    code = ctypes.create_string_buffer(calls, len(calls))
    # struct sock_fprog
    filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(calls) // 8, ctypes.addressof(code)))
    prctl(NO_NEW_PRIVS, 1)
    prctl(MDWE, 1)
    prctl(SECCOMP, MODE_FILTER, ctypes.addressof(filter_))


def main() -> None:
    unit, uid, gid, *command = sys.argv[1:]
    settings: dict[str, list[str]] = {}
    for line in Path(unit).read_text().splitlines():
        name, there, value = line.partition("=")
        if there and not line.startswith("#"):
            settings.setdefault(name, []).append(value)
    assert settings["MemoryDenyWriteExecute"] == settings["NoNewPrivileges"] == ["yes"]
    assert settings["AmbientCapabilities"] == settings["CapabilityBoundingSet"]
    capabilities = defined([CAPABILITIES], "CAP_")
    kept = {capabilities[name.removeprefix("CAP_")] for name in settings["AmbientCapabilities"][-1].split()}
    calls = program(allowed(settings["SystemCallFilter"]), settings["RestrictAddressFamilies"][-1].split())
    become(int(uid), int(gid), kept)
    confine(calls)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

#!/usr/bin/python3 -I
"""Stands in for systemctl where systemd does not run: starts and stops units, and records the order.

It reads unit files and drop-ins, and implements the settings that the project's units use: ExecStart with variables,
EnvironmentFile, users, groups, capabilities, folders, NetworkNamespacePath, CPUSchedulingPolicy, and Type=notify, for
which it waits. It ignores settings that confine a process. ORDER has a line for each start and stop: time (monotonic
seconds), unit, action, and whether the controller reports that all switches are as described.
"""

import glob
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HOME = Path("/run/stand-in")
ORDER = HOME / "order"
START_S, STOP_S = 90.0, 10.0


def settings(unit: str) -> dict[str, list[str]]:
    """The values of each setting of the unit's file and drop-ins; an empty value removes those before it."""
    found: dict[str, list[str]] = {}
    files = [next(p for p in (f"/etc/systemd/system/{unit}", f"/lib/systemd/system/{unit}") if os.path.exists(p))]
    files += sorted(glob.glob(f"/etc/systemd/system/{unit}.d/*.conf"))
    for file in files:
        for line in Path(file).read_text().splitlines():
            name, there, value = line.partition("=")
            if there and not line.startswith(("#", "[")):
                found[name] = [*found.get(name, []), value] if value else []
    return found


def environment(unit: dict[str, list[str]]) -> dict[str, str]:
    found = {}
    for file in unit.get("EnvironmentFile", []):
        for line in Path(file).read_text().splitlines():
            name, there, value = line.partition("=")
            if there and not line.startswith("#"):
                found[name] = " ".join(shlex.split(value))
    return found


def words(line: str, variables: dict[str, str]) -> list[str]:
    """Expands variables: ${NAME} is one word, or a part of one; $NAME is split into words."""
    found = []
    for word in line.replace("%t", "/run").split():
        if word.startswith("$") and not word.startswith("${"):
            found += variables.get(word[1:], "").split()
            continue
        for name, value in variables.items():
            word = word.replace("${" + name + "}", value)
        found.append(word)
    return found


def command(unit: dict[str, list[str]]) -> list[str]:
    """Command line of the unit, with prefixes for its user, namespaces and priority."""
    user = unit.get("User", ["nobody"])[-1]
    entered = []
    for path in unit.get("NetworkNamespacePath", []):
        entered = ["nsenter", f"--net={path}"]
    if "CPUSchedulingPolicy" in unit:
        entered += ["chrt", f"--{unit['CPUSchedulingPolicy'][-1]}", unit["CPUSchedulingPriority"][-1]]
    groups = " ".join(unit.get("SupplementaryGroups", [])).split()
    group = subprocess.run(["id", "-g", user], capture_output=True, text=True, check=True).stdout.strip()
    become = ["setpriv", f"--reuid={user}", f"--regid={group}"]
    become += [f"--groups={','.join(groups)}"] if groups else ["--clear-groups"]
    held = [f"+{name[4:].lower()}" for name in " ".join(unit.get("AmbientCapabilities", [])).split()]
    if held:
        become += [f"--inh-caps={','.join(held)}", f"--ambient-caps={','.join(held)}"]
    for setting, place in (("RuntimeDirectory", "/run"), ("StateDirectory", "/var/lib")):
        for name in unit.get(setting, []):
            mode = unit.get(f"{setting}Mode", ["0755"])[-1]
            subprocess.run(["install", "-d", "-o", user, "-g", group, "-m", mode, f"{place}/{name}"], check=True)
    return [*entered, *become, *words(unit["ExecStart"][-1], environment(unit))]


def process(unit: str) -> int:
    """Process id of the unit; 0 if it does not run."""
    try:
        pid = int((HOME / f"{unit}.pid").read_text())
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return 0
    # No init process reaps here, so an ended process stays as a zombie.
    return 0 if state == "Z" else pid


def note(unit: str, what: str) -> None:
    """Writes a line of the order."""
    asked = subprocess.run(["rivuletctl", "status"], capture_output=True, check=False).returncode
    with ORDER.open("a") as order:
        order.write(f"{time.monotonic()} {unit} {what} {'described' if asked == 0 else 'not-described'}\n")


def start(unit: str) -> bool:
    """Starts the unit and waits until it is ready (Type=notify); returns False if it fails."""
    if process(unit):
        return True
    said = settings(unit)
    told = HOME / f"{unit}.notify"
    told.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(told))
        told.chmod(0o666)
        notified.settimeout(0.1)
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "NOTIFY_SOCKET": str(told)}
        if said.get("Type") != ["notify"]:
            del variables["NOTIFY_SOCKET"]
        with open(f"/var/log/{unit}.log", "ab") as log:
            started = subprocess.Popen(
                command(said), env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, umask=int(said.get("UMask", ["0022"])[-1], 8),
                cwd=said.get("WorkingDirectory", ["/"])[-1],
            )  # fmt: skip
        (HOME / f"{unit}.pid").write_text(str(started.pid))
        end = time.monotonic() + START_S
        while "NOTIFY_SOCKET" in variables:
            try:
                if notified.recv(100) == b"READY=1":
                    break
            except TimeoutError:
                if started.poll() is not None or time.monotonic() > end:
                    return False
    note(unit, "started")
    return started.poll() is None


def stop(unit: str) -> None:
    """Sends SIGTERM, and SIGKILL if the process does not end."""
    pid, end = process(unit), time.monotonic() + STOP_S
    if not pid:
        return
    note(unit, "stopped")
    os.kill(pid, signal.SIGTERM)
    while process(unit):
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def main() -> int:
    asked = [word for word in sys.argv[1:] if not word.startswith("-")]
    HOME.mkdir(exist_ok=True)
    what, units = asked[0], [name if name.endswith(".service") else f"{name}.service" for name in asked[1:]]
    if what == "is-active":
        return 0 if all(process(unit) for unit in units) else 3
    for unit in units:
        running = process(unit) != 0
        if what in ("stop", "disable") or (what == "try-restart" and running):
            stop(unit)
        if (what == "start" or (what == "try-restart" and running)) and not start(unit):
            print(f"{unit} does not start; its log:", file=sys.stderr)
            print(Path(f"/var/log/{unit}.log").read_text(errors="replace")[-2000:], file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The references of the Rust programs, from their --help (clap's layout, and BMv2's of rivulet-switch)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from commands import Command, Option

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = ("rivulet", "rivulet-switch", "rivulet-wire", "cm-udp", "rivulet-cm-apps")
ABOUT = {"rivulet-switch": "A P4 switch in one process, with the flags of simple_switch_grpc."}
"""Descriptions of programs whose --help has none."""
OF_EVERY_PROGRAM = ("help", "version")


class NotBuiltError(Exception):
    """A program is missing; the message says how to build it."""


def all_of_them() -> list[Command]:
    """The programs with all of their commands.

    Raises NotBuiltError if a program is missing.
    """
    return [of_help(name, (name,)) for name in NAMES]


def completion(shell: str) -> str:
    """The completion script of `rivulet`."""
    return _printed("rivulet", "completions", shell)


def _printed(name: str, *arguments: str) -> str:
    program = Path(os.environ.get("RIVULET_BIN", ROOT / "target" / "release")) / name
    if not program.exists():
        raise NotBuiltError(f"{program}: not there; `make build` makes it, and RIVULET_BIN names another folder")
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def of_help(name: str, words: tuple[str, ...]) -> Command:
    """A program (or the command with these words) from its --help."""
    found, inner = parsed(name, _printed(*words, "--help"))
    found.commands = [of_help(f"{name} {word}", (*words, word)) for word in inner if word != "help"]
    return found


def parsed(name: str, text: str) -> tuple[Command, list[str]]:
    """What one --help text says, and the names of its commands."""
    about, found, inner, section = list[str](), Command(name, "", name), list[str](), ""
    entry: Option | None = None
    for line in text.splitlines():
        heading = re.fullmatch(r"(\w[\w ]*)(?:,.*)?:", line)
        if usage := re.match(r"(?:Usage: | {7})(\S.*)", line) if section in ("", "Usage") else None:
            section, found.usage = "Usage", usage[1] if section == "" else f"{found.usage}\n{usage[1]}"
        elif heading:
            section, entry = heading[1], None
        elif section == "":
            about.append(line)
        elif named := re.match(r" {2,6}(\S(?:.*?\S)?)(?: {2,}(\S.*))?$", line):
            entry = Option(named[1], named[2] or "")
            if section == "Commands":
                inner.append(entry.name)
            elif section == "Arguments":
                found.arguments.append(entry)
            else:
                found.options.append(entry)
        elif entry and line.strip():
            _add(entry, line.strip())
    found.options = [option for option in found.options if _long(option.name) not in OF_EVERY_PROGRAM]
    found.about = " ".join(" ".join(about).split()) or ABOUT.get(name, "")
    return found, inner


def _add(entry: Option, text: str) -> None:
    """Adds a line of the explanation; clap gives the default a line of its own."""
    if default := re.fullmatch(r"\[default: (.*)\]", text):
        entry.default = default[1]
    else:
        entry.meaning = f"{entry.meaning} {text}".strip()


def _long(option: str) -> str:
    """The long name of an option, such as `help` of `-h, --help`."""
    name = re.search(r"--([\w-]+)", option)
    return name[1] if name else ""

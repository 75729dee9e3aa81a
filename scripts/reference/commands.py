"""References of programs: rivuletctl's from its typer commands, rivulet-controller's from its argparse parser."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import roff
import typer
from typer.completion import get_completion_script

from rivulet_controller import cli, daemon

COMPLETIONS = {"bash": "completions/bash/{}", "zsh": "completions/zsh/_{}", "fish": "completions/fish/{}.fish"}
"""The file of each shell's completion of a program, named as the shell looks for it."""


@dataclass
class Option:
    """An option or an argument."""

    name: str
    meaning: str
    default: str = ""


@dataclass
class Command:
    """A program or one of its commands."""

    name: str
    about: str
    usage: str
    arguments: list[Option] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)


def rivuletctl() -> Command:
    return _typer("rivuletctl", typer.main.get_command(cli.app))


def _typer(name: str, command: Any) -> Command:
    found = Command(name, " ".join((command.help or "").split()), name)
    for param in command.params:
        if getattr(param, "hidden", False) or param.name in ("help", "install_completion", "show_completion"):
            continue
        # An optional argument of None is an empty text to the program: neither is shown as a default.
        default = "" if param.required or param.default in (None, "", False) else str(param.default)
        if param.param_type_name == "argument":
            found.arguments.append(Option(param.name.upper(), param.help or "", default))
        else:
            value = "" if param.is_flag else f" {_value(param.type_descriptor.annotation)}"
            found.options.append(Option(", ".join(param.opts) + value, param.help or "", default))
    inner = getattr(command, "commands", {})
    found.commands = [_typer(f"{name} {inner_name}", inner[inner_name]) for inner_name in inner]
    found.usage += " [OPTIONS]" if found.options else ""
    found.usage += "".join(f" {argument.name}" for argument in found.arguments)
    found.usage += " COMMAND" if found.commands else ""
    return found


def _value(annotation: Any) -> str:
    if annotation in (int, float) or "float" in str(annotation):
        return "NUMBER"
    return "PATH" if annotation is Path else "TEXT"


def controller() -> Command:
    parser = daemon.parser()
    found = Command(parser.prog, parser.description or "", " ".join(parser.format_usage().split()[1:]))
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        default = "" if action.default is None else str(action.default)
        choices = f" {'|'.join(map(str, action.choices))}" if action.choices else ""
        name = ", ".join(action.option_strings) + choices if action.option_strings else action.dest.upper()
        (found.options if action.option_strings else found.arguments).append(Option(name, action.help or "", default))
    return found


def completion(shell: str) -> str:
    """The completion script of rivuletctl."""
    script = get_completion_script(prog_name="rivuletctl", complete_var="_RIVULETCTL_COMPLETE", shell=shell)
    return script.rstrip() + "\n"


def page(program: Command) -> str:
    """The page of the site."""
    return f"# `{program.name}`\n" + _page(program)


def _page(command: Command) -> str:
    text = f"\n{command.about}\n\n```\n{command.usage}\n```\n"
    for kind, options in (("argument", command.arguments), ("option", command.options)):
        if options:
            text += f"\n| {kind} | meaning |\n|---|---|\n"
            text += "".join(f"| `{o.name}` | {_meaning(o)} |\n".replace("|`", "\\|`") for o in options)
    for inner in command.commands:
        text += f"\n## `{inner.name}`\n" + _page(inner).replace("\n## ", "\n### ")
    return text


def _meaning(option: Option) -> str:
    return option.meaning + (f" (default `{option.default}`)" if option.default else "")


def manual(program: Command) -> str:
    """The manual page of a program with all of its commands."""
    text = roff.head(program.name, 1, program.about.rstrip("."))
    text += roff.heading("synopsis") + "\n.br\n".join(_bold(line) for line in program.usage.splitlines()) + "\n"
    if program.arguments or program.options:
        text += roff.heading("options") + _manual_options(program)
    if program.commands:
        text += roff.heading("commands") + "".join(_manual_command(inner) for inner in program.commands)
    text += roff.heading("see also") + roff.paragraph("rivulet-rack(5), rivulet(1)")
    return text


def _bold(line: str) -> str:
    return f"\\fB{roff.escape(line)}\\fR"


def _manual_options(command: Command) -> str:
    return "".join(roff.entry(o.name, _meaning(o)) for o in (*command.arguments, *command.options))


def _manual_command(command: Command) -> str:
    text = f'.SS "{roff.escape(command.usage)}"\n{roff.escape(command.about)}\n' + _manual_options(command)
    return text + "".join(_manual_command(inner) for inner in command.commands)

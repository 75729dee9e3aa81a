"""Tests of scripts/reference: every key and command has its words, bounds and default, from the program itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import Field

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "reference"))
import commands  # noqa: E402
import configuration  # noqa: E402
import programs  # noqa: E402

from rivulet_controller.config import Config  # noqa: E402
from rivulet_controller.model import Model  # noqa: E402


def test_reference_has_every_key_with_its_bounds() -> None:
    sections = {section.title: section for section in configuration.sections()}
    assert [key.name for key in sections["The file"].keys] == list(Config.model_fields)
    keys = {(title, key.name): key for title, section in sections.items() for key in section.keys}
    assert keys["services[]", "heartbeat"].form == "duration, from 100us to 10s"
    assert keys["services[]", "heartbeat"].default == "`2ms`"
    assert keys["switches[]", "ports"].form == "list of at least 1: integer, from 1 to 509"
    assert keys["switches[]", "plain_meter"].form == "packets a second, from 1 to 10,000,000 or null"
    assert keys["services[]", "replicas"].default == "required"
    assert keys["listen", "agents_tls"].section == "switches[].tls"
    page = configuration.page(list(sections.values()))
    assert all(f"| `{name}` |" in page for _, name in keys)


def test_key_without_description_or_form_is_refused() -> None:
    class Undescribed(Model):
        key: int = 1

    class Formless(Model):
        key: bytes = Field(default=b"", description="bytes")

    for model in (Undescribed, Formless):
        with pytest.raises(configuration.NoForm):
            configuration._add({}, model, "")


def test_every_option_and_argument_of_rivuletctl_has_words() -> None:
    assert_described(commands.rivuletctl(), {"rivuletctl drain", "rivuletctl keys rotate"})


def test_every_option_and_argument_of_programs_has_words() -> None:
    wire = {"rivulet-wire set", "rivulet-wire show", "rivulet-wire stats"}
    some = {"rivulet": {"rivulet get", "rivulet cm load"}, "rivulet-wire": wire, "cm-udp": {"cm-udp send"}}
    for program in programs.all_of_them():
        assert_described(program, some.get(program.name, set()))


def assert_described(program: commands.Command, names: set[str]) -> None:
    """Asserts that the program has these commands, and that all of its commands and options have descriptions."""

    def walk(command: commands.Command) -> list[commands.Command]:
        return [command, *(found for inner in command.commands for found in walk(inner))]

    found = walk(program)
    assert names <= {command.name for command in found}
    for command in found:
        assert command.about, command.name
        assert all(option.meaning for option in (*command.arguments, *command.options)), command.name


def test_help_text_is_parsed() -> None:
    text = """Joins two things,
whatever they are.

Usage: join [OPTIONS] <A> <B>
       join <COMMAND>

Commands:
  show  Prints the things
  help  Print this message

Arguments:
  <A>
          The first thing

Options:
  -r, --rate <RATE>
          Bits a second,
          in all

          [default: 8]

  -h, --help
          Print help
"""
    found, inner = programs.parsed("join", text)
    assert (found.about, inner) == ("Joins two things, whatever they are.", ["show", "help"])
    assert found.usage == "join [OPTIONS] <A> <B>\njoin <COMMAND>"
    assert found.arguments == [commands.Option("<A>", "The first thing")]
    assert found.options == [commands.Option("-r, --rate <RATE>", "Bits a second, in all", "8")]


def test_missing_program_is_an_error_that_names_its_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVULET_BIN", str(tmp_path))
    with pytest.raises(programs.NotBuiltError, match="rivulet: not there; `make build` makes it"):
        programs.all_of_them()


def test_manual_pages_have_no_warnings(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "reference"), str(tmp_path)]
    subprocess.run(command, check=True)
    pages = sorted(path.name for path in (tmp_path / "man").iterdir())
    assert pages == sorted(
        ["rivulet-rack.5", *(f"{n}.1" for n in ("rivuletctl", "rivulet-controller", *programs.NAMES))]
    )
    for name in pages:
        shown = subprocess.run(
            ["man", "--warnings", "-l", str(tmp_path / "man" / name)], capture_output=True, text=True, check=False
        )
        assert (shown.returncode, shown.stderr) == (0, ""), name


def test_shell_completion_completes_a_command(tmp_path: Path) -> None:
    script = tmp_path / "script.bash"
    program = Path(sys.executable).with_name("rivuletctl")
    for text, words, function, answer in (
        (commands.completion("bash"), "rivuletctl keys r", f"_rivuletctl_completion {program}", "rotate"),
        (programs.completion("bash"), "rivulet cm lo", "_rivulet rivulet lo cm", "load"),
    ):
        script.write_text(text)
        line = f'source {script}; COMP_WORDS=({words}); COMP_CWORD=2; {function}; echo "$COMPREPLY"'
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (f"{answer}\n", "")

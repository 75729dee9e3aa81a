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
    def walk(command: commands.Command) -> list[commands.Command]:
        return [command, *(found for inner in command.commands for found in walk(inner))]

    found = walk(commands.rivuletctl())
    assert {"rivuletctl drain", "rivuletctl keys rotate"} <= {command.name for command in found}
    for command in found:
        assert command.about, command.name
        assert all(option.meaning for option in (*command.arguments, *command.options)), command.name


def test_manual_pages_have_no_warnings(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "reference"), str(tmp_path)]
    subprocess.run(command, check=True)
    pages = sorted(path.name for path in (tmp_path / "man").iterdir())
    assert pages == ["rivulet-controller.1", "rivulet-rack.5", "rivuletctl.1"]
    for name in pages:
        shown = subprocess.run(
            ["man", "--warnings", "-l", str(tmp_path / "man" / name)], capture_output=True, text=True, check=False
        )
        assert (shown.returncode, shown.stderr) == (0, ""), name


def test_shell_completion_completes_a_command(tmp_path: Path) -> None:
    script = tmp_path / "rivuletctl.bash"
    script.write_text(commands.completion("bash"))
    program = Path(sys.executable).with_name("rivuletctl")
    words = f"source {script}; COMP_WORDS=(rivuletctl keys r); COMP_CWORD=2; _rivuletctl_completion {program}"
    words += '; echo "$COMPREPLY"'
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("rotate\n", "")

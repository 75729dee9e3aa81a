"""Tests of scripts/pictures: the committed drawings are those of the script, and fit a phone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PICTURES = ROOT / "docs" / "pictures"
sys.path.insert(0, str(ROOT / "scripts" / "pictures"))
import packet  # noqa: E402


def test_committed_drawings_are_those_of_the_script() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "pictures"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_drawings_have_a_title_and_are_narrow() -> None:
    drawn = [path.read_text() for path in PICTURES.glob("*.svg") if path.name.startswith(("ladder-", "packet-"))]
    assert len(drawn) == 9
    for svg in drawn:
        size = re.search(r'viewBox="0 0 (\d+)', svg)
        assert size is not None and int(size[1]) <= 420 and "<title>" in svg


def test_every_numbered_step_is_explained() -> None:
    page = (ROOT / "docs" / "ladders.md").read_text()
    for name, text in re.findall(r"\(pictures/(ladder-\w+\.svg)\)\n(.*?)(?=\n## |\Z)", page, re.DOTALL):
        steps = re.findall(r'fill="#fff">(\d+)<', (PICTURES / name).read_text())
        explained: set[int] = set()
        for first, last in re.findall(r"^(\d+)\.(?: (?:to|and) (\d+)\.)? ", text, re.MULTILINE):
            explained.update(range(int(first), int(last or first) + 1))
        assert sorted(explained) == [int(step) for step in steps] != [], name


def test_fields_come_from_the_tables_of_the_page() -> None:
    page = "## A\n\n| byte | field | value |\n|---|---|---|\n| 0-2 | x | |\n\n"
    page += "## B\n\n| byte | field | bits | |\n|---|---|---|---|\n| 0 | y | 12 | |\n| 2 | z | 64 each | |\n"
    assert packet.table(page, "A") == [packet.Field("x", 24)]
    assert packet.table(page, "B") == [packet.Field("y", 12), packet.Field("z", 0)]
    with pytest.raises(ValueError, match="there are 1 tables"):
        packet.table(page, "B", 1)

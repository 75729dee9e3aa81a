"""`rivuletctl` in pipes: tables in full width, and the API's responses as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import sys
from pathlib import Path

import pytest
from certificates import OPENSSL, Authority
from harness import served

from rivulet_controller.client import ApiError, Client


async def rivuletctl(address: str, *arguments: str, columns: str = "") -> tuple[int, str]:
    """Exit code and output of a real process with its output in a pipe."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rivulet_controller.cli", "--api", address, *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env=environment | ({"COLUMNS": columns} if columns else {}),
    )  # fmt: skip
    output_bytes, _ = await process.communicate()
    return process.returncode or 0, output_bytes.decode()


async def test_tables_in_pipes_have_their_full_width(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, address):
        for columns in ("", "40"):
            code, text = await rivuletctl(address, "services", columns=columns)
            head, row = text.splitlines()
            assert code == 0 and head.split()[:3] == ["service", "address", "policy"]
            assert "10.9.0.1, fd00:9::1 port 80" in row and "…" not in text
            assert not any(line.endswith(" ") for line in (head, row))
        code, text = await rivuletctl(address, "replicas")
        title, head, *rows = text.splitlines()
        assert code == 0 and title == "Replicas" and head.split()[0] == "replica"
        assert [row.split()[0] for row in rows] == ["r1", "r2", "r3"] and "…" not in text
        assert max(map(len, rows)) > 80, "a table that 80 columns do not hold"


async def test_every_command_with_a_table_prints_json(tmp_path: Path) -> None:
    file = tmp_path / "rack.yaml"
    async with served(tmp_path) as (controller, address):
        file.write_text(controller.text)
        shapes = {
            ("status",): lambda found: {"switches", "replicas"} <= found.keys(),
            ("services",): lambda found: [service["name"] for service in found] == ["web"],
            ("replicas",): lambda found: [replica["name"] for replica in found] == ["r1", "r2", "r3"],
            ("replica", "r2"): lambda found: found["name"] == "r2",
            ("entries", "tor1"): lambda found: any(line.startswith("pools[") for line in found),
            ("trace", "tor1", "10.9.0.1", "80"): lambda found: found[0]["table"] == "tor",
            ("plan", str(file)): lambda found: found == {"tor1": []},
        }
        for command, is_right in shapes.items():
            code, text = await rivuletctl(address, *command, "--json")
            assert code == 0 and is_right(json.loads(text)), (command, text)
        code, text = await rivuletctl(address, "entries", "tor1", "--json", "--match", "pools[")
        assert all(line.startswith("pools[") for line in json.loads(text))


async def test_table_fits_terminal_width(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, address):
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rivulet_controller.cli", "--api", address, "services",
            stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "60", "TERM": "xterm"},
        )  # fmt: skip
        os.close(theirs)
        await process.wait()
        lines = re.sub(r"\x1b\[[0-9;]*m", "", os.read(ours, 1 << 16).decode()).splitlines()
        os.close(ours)
        assert len(lines) > 2 and max(map(len, lines)) <= 60


@pytest.mark.skipif(not OPENSSL, reason="no openssl")
def test_token_is_never_sent_in_the_clear(tmp_path: Path) -> None:
    authority = str(Authority(tmp_path, "ours").make().certificate)
    for address in ("192.0.2.1:8080", "[2001:db8::1]:8080", "http://192.0.2.1:8080", "HTTP://rack:80", "rack:8080"):
        with pytest.raises(ApiError, match="in the clear"):
            Client(address, "sesame")
        # Without a token there is no file to read.
        Client(address)
    Client("rack:8080", "sesame", authority=authority)
    for address in ("https://rack", "127.0.0.1:8080", "[::1]:8080", "http://localhost:8080", f"unix:{tmp_path}/api"):
        Client(address, "sesame")

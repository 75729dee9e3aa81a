"""Tests of `rivulet-lab console` on a running switch."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rivulet_lab import REPOSITORY, Lab, RackError, built, standing, switches
from rivulet_lab.console import Console
from rivulet_lab.p4info import P4Info
from rivulet_lab.p4runtime import Connection
from rivulet_lab.runtime_json import Runtime

ROUTER = REPOSITORY / "mininet" / "examples" / "router"
pytestmark = [
    pytest.mark.rack,
    pytest.mark.skipif(os.geteuid() != 0 or not built("rivulet-switch"), reason="needs root and the binaries"),
]


@pytest.fixture(params=["embedded", pytest.param("bmv2", marks=pytest.mark.long)])
def switch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A switch with the router's program and empty tables: its kind and address."""
    kind = request.param
    if kind not in switches.installed():
        pytest.skip(f"{kind} is not installed")
    with standing(Lab(tmp_path)) as lab:
        socket = tmp_path / "s.sock"
        command = switches.command(kind, {}, f"unix:{socket}", device_id=0)
        process = lab.start("switch", command, lab.namespace("s"))
        lab.until(socket.exists, "the switch listens", 60.0, process)
        with Connection(f"unix:{socket}") as connection:
            runtime = Runtime(ROUTER / "s1-runtime.json", ROUTER.joinpath)
            connection.push(runtime.info, runtime.program)
        yield kind, f"unix:{socket}"


def console(address: str, text: str) -> subprocess.CompletedProcess[str]:
    """Commands from a pipe."""
    command = [sys.executable, "-m", "rivulet_lab", "console", "--address", address]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif("embedded" not in switches.installed(), reason="needs the embedded switch")
def test_strings_of_translated_types_are_written_and_shown(tmp_path: Path) -> None:
    programs = REPOSITORY / "switch" / "p4rt" / "tests" / "programs"
    with standing(Lab(tmp_path)) as lab:
        socket = tmp_path / "s.sock"
        command = switches.command("embedded", {}, f"unix:{socket}", device_id=0)
        lab.until(socket.exists, "the switch listens", 60.0, lab.start("switch", command, lab.namespace("s")))
        with Connection(f"unix:{socket}") as connection:
            connection.push(P4Info.of(programs / "names.p4info.txtpb"), (programs / "names.json").read_bytes())
        done = console(f"unix:{socket}", "table_add classify set_vrf uplink-1 => red\ntable_dump classify\n")
    assert done.returncode == 0, done.stderr
    assert "uplink-1" in done.stdout and "set_vrf - red" in done.stdout, done.stdout


def test_commands_of_a_pipe_change_the_switch(switch: tuple[str, str]) -> None:
    done = console(
        switch[1],
        """# a comment
        table_set_default routes drop
        table_add routes forward 10.0.1.1/32 => 08:00:00:00:01:01 1
        table_add RouterIngress.routes RouterIngress.forward 10.0.2.0/24 => 08:00:00:00:02:02 2
        table_add access drop 10.0.1.0&&&255.255.255.0 2000->2999 => 10
        table_add neighbours drop 08:00:00:00:66:66
        table_modify routes forward 1 08:00:00:00:02:02 3
        table_dump routes
        table_dump access
        table_delete routes 0
        table_num_entries routes
        table_clear routes
        table_num_entries routes
        mirroring_add 7 2
        mirroring_add 7 3
        mirroring_get 7
        mirroring_delete 7
        mc_mgrp_create 1
        mc_node_create 1 1 2
        mc_node_associate 1 0
        mc_dump
        mc_mgrp_destroy 1
        counter_write received 3 5 600
        counter_read received 3
        counter_reset received
        counter_read received 3
        exit
        """,
    )
    assert done.returncode == 0, done.stderr
    for text in (
        "Entry has been added with handle 0\nEntry has been added with handle 1\n",
        "* hdr.ipv4.dst        : LPM       0a000200/24\nAction entry: RouterIngress.forward - 080000000202, 0003\n",
        "Action entry: RouterIngress.drop -",
        "TERNARY   0a000100 &&& ffffff00\n* meta.port           : RANGE     07d0 -> 0bb7\nPriority: 10\n",
        "\n1\n0\nclone session 7: 3:1\n",
        "group 1: 1:1 2:1\n",
        "RouterIngress.received[3]= packets=5, bytes=600\nRouterIngress.received[3]= packets=0, bytes=0\n",
    ):
        assert text in done.stdout, done.stdout


def test_registers_are_read_or_the_error_names_the_switch(switch: tuple[str, str]) -> None:
    kind, address = switch
    done = console(
        address, "register_write sizes 2 1500\nregister_read sizes 2\nregister_reset sizes\nregister_read sizes"
    )
    if kind == "bmv2":
        assert done.returncode == 1 and "line 1: " in done.stderr
        assert "this switch has no registers over P4Runtime (BMv2 has not)" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert "RouterIngress.sizes[2]= 1500\nRouterIngress.sizes= 0, 0, 0" in done.stdout


ERRORS = [
    ("table_ad routes", 'there is no command "table_ad". Did you mean table_add?'),
    ("table_add", "the word TABLE is missing; write table_add TABLE ACTION MATCH"),
    ("table_add rutes drop", 'there is no table "rutes". Did you mean routes? Allowed: RouterIngress.routes, '),
    ("table_add routes", "the word ACTION is missing; RouterIngress.routes has RouterIngress.forward, "),
    ("table_add routes mirror 1.1.1.1/32", 'there is no action "mirror"'),
    ("table_add routes drop 10.0.1.1", '"10.0.1.1" for the lpm field hdr.ipv4.dst must have the form value/length'),
    ("table_add routes drop => 1", "RouterIngress.routes has 1 match fields, but there are 0 words"),
    (
        "table_add routes forward 10.0.1.1/32 => 5",
        "has 2 parameters, but there are 1 words for them: [mac(48), port(9)]",
    ),
    ("table_add routes forward 10.0.1.1/32 => 5 600", "600 does not fit in 9 bits"),
    ("table_add routes forward 10.0.1.1/32 => 5 x", 'parameter port of RouterIngress.forward: "x" is no value'),
    ("table_add access drop * 1->2", "an entry of RouterIngress.access needs a priority"),
    ("table_delete routes 5", "RouterIngress.routes has no entry of the handle 5; it has no entries"),
    ("register_read sizes 16", "RouterIngress.sizes has the indices 0 to 15"),
    ("counter_read received 1 2", '"2" is a word too many; write counter_read COUNTER [INDEX]'),
    ("mirroring_add 0 1", "the id 0 is not allowed"),
    ("mirroring_add_mc 1 1", "a clone session of P4Runtime lists ports"),
    ("set_queue_rate 5", 'there is no "set_queue_rate" over P4Runtime'),
    ("mc_node_associate 5 0", "there is no multicast group 5; there are none"),
    ("help nonsense", 'there is no command "nonsense"'),
]
"""Lines with an error, and a part of the message."""


def test_errors_name_the_wrong_word(switch: tuple[str, str]) -> None:
    with Connection(switch[1]) as connection, open(os.devnull, "w") as out:
        for line, message in ERRORS:
            with pytest.raises(RackError) as problem:
                Console(connection, out=out).run_line(line)
            assert message in str(problem.value), line
    done = console(switch[1], "show_tables\n\ntable_add rutes\nshow_actions\n")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert 'error: line 3: table_add rutes: there is no table "rutes"' in done.stderr
    assert "RouterIngress.routes [implementation=None, mk=hdr.ipv4.dst(lpm, 32)]" in done.stdout
    assert "RouterIngress.mirror" not in done.stdout, "commands after the error do not run"


def test_direct_counter_is_read_by_handle_and_all_commands_have_help(switch: tuple[str, str]) -> None:
    with Connection(switch[1]) as connection, open(os.devnull, "w") as out:
        shell = Console(connection, out=out)
        names = shell.commands()
        assert {"table_dump", "register_read", "counter_read", "mirroring_add", "mc_mgrp_create"} <= set(names)
        for name in names:
            shell.run_line(f"help {name}")
        assert shell.completenames("mirroring_a") == ["mirroring_add "]
        assert shell.completedefault("ro", "table_dump ro", 11, 13) == ["RouterIngress.routes "]
        line = "table_set_default routes RouterIngress.f"
        assert shell.completedefault("RouterIngress.f", line, 25, len(line)) == ["RouterIngress.forward "]
        assert shell.completedefault("", "counter_read ", 13, 13) == [
            "RouterIngress.received ",
            "RouterIngress.routed ",
        ]
    done = console(
        switch[1],
        "table_add routes drop 10.0.0.0/8\ncounter_write routed 0 4 400\ncounter_read routed 0\ncounter_reset routed\n"
        "counter_read routed\n",
    )
    assert done.returncode == 0, done.stderr
    assert "routed[0]= packets=4, bytes=400\nRouterIngress.routed[0]= packets=0" in done.stdout


def test_second_console_is_refused_with_the_flag_that_takes_over(switch: tuple[str, str]) -> None:
    with Connection(switch[1], election_id=5):
        done = console(switch[1], "show_tables\ntable_set_default routes drop\n")
        assert done.returncode == 1 and "line 2" in done.stderr and "--election-id 6" in done.stderr, done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "rivulet_lab", "console", "--address", "127.0.0.1:9"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "no P4Runtime server listens at 127.0.0.1:9 " in done.stderr


def test_terminal_completes_and_continues_after_an_error(switch: tuple[str, str]) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "rivulet_lab", "console", "--address", switch[1]]
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env={**os.environ, "TERM": "dumb"})
    os.close(child)
    text = b""

    def until(wanted: bytes) -> None:
        nonlocal text
        end = time.monotonic() + 30
        while wanted not in text and time.monotonic() < end:
            text += os.read(parent, 4096)
        assert wanted in text, text
        text = b""

    try:
        until(b"rivulet> ")
        os.write(parent, b"nonsense\n")
        until(b"there is no command")
        os.write(parent, b"table_inf\tro\t\n")
        until(b"size 256")
        os.write(parent, b"exit\n")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)

"""The rack of the benches, and the load on it."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rivulet_demo.scenario import Parameters, Standing, standing_rack
from rivulet_demo.services import make_file, url
from rivulet_lab import Process, binary, prompt

from .stats import REPOSITORY

Transport = Literal["rivulet", "tcp"]

BUILD = REPOSITORY / "build" / "bench"


@dataclass(frozen=True, slots=True)
class Setting:
    """Links and replicas of a bench."""

    rate_mbit: float = 100.0
    rtt_ms: float = 10.0
    replicas: int = 3
    clients: int = 2
    policy: str = "block"


@contextmanager
def rig(name: str, setting: Setting) -> Iterator[Standing]:
    """A rack that serves `file.bin`, torn down at the end."""
    values = Parameters(
        rate_mbit=setting.rate_mbit,
        rtt_ms=setting.rtt_ms,
        size_mb=1.0,
        replicas=setting.replicas,
        switch="embedded",
        out=BUILD,
        live=False,
    )
    with standing_rack(name, values, clients=setting.clients, policy=setting.policy) as standing:
        yield standing


def put(name: str, size: int) -> str:
    """Makes a file of `size` bytes in the served folder; returns its path below the root."""
    make_file(BUILD / "www", name, size)
    return name


def start_load(standing: Standing, host: str, transport: Transport, path: str, **flags: Any) -> Process:
    """Starts rivulet-load on a host; `finish` waits for it."""
    command = [*prompt(), binary("rivulet-load"), url(path), "--transport", transport]
    for flag, value in flags.items():
        command += [f"--{flag.replace('_', '-')}", str(value)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return standing.rack.start(f"load-{host}", command, standing.rack.spaces[host], **pipes)


def finish(load: Process, patience_s: float = 120.0) -> dict[str, Any]:
    """The line of JSON that rivulet-load printed; RackError if it failed or did not end."""
    result: dict[str, Any] = json.loads(load.output(patience_s).splitlines()[-1])
    return result


def load(
    standing: Standing, host: str, transport: Transport, path: str, seconds: float, **flags: Any
) -> dict[str, Any]:
    """Runs a load from one host for some seconds."""
    return finish(start_load(standing, host, transport, path, seconds=seconds, **flags), seconds + 60)


def flags(words: str, repetitions: int = 6) -> argparse.ArgumentParser:
    """Flags of every bench."""
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=repetitions, help="runs of each point (the paper has six)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a run")
    return parser


def plot_path(name: str) -> Path:
    """Path of a bench's plot."""
    return REPOSITORY / "bench" / "results" / f"{name}.png"

"""Namespaces and processes that a block starts and its end removes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .binaries import RackError
from .cm import bpf_fs
from .namespaces import Namespace

_count = itertools.count()


@dataclass(slots=True)
class Process:
    """A child process, with its log file (None: its output goes elsewhere)."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    def running(self) -> bool:
        """Whether it is still running."""
        return self.popen.poll() is None

    def end(self, how: int = signal.SIGTERM, patience_s: float = 10.0) -> None:
        """Ends it by its id: with the signal `how`, and with SIGKILL if it does not end in time."""
        if self.running():
            self.popen.send_signal(how)
        self.reap(patience_s)

    def reap(self, patience_s: float) -> None:
        """Waits for its end; sends SIGKILL after `patience_s` seconds."""
        try:
            self.popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()

    def output(self, patience_s: float = 120.0) -> str:
        """Its output on a pipe, after its end. RackError with the output if it fails or does not end."""
        try:
            out, err = self.popen.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.communicate()
            raise RackError(f"{self.name} did not end in {patience_s:g} s") from None
        if self.popen.returncode != 0:
            said = b"\n".join((out or b"", err or b"")).decode(errors="replace").strip()
            raise RackError(f"{self.name} failed ({self.popen.returncode}): {said[-400:]}")
        return out.decode(errors="replace")

    def text(self) -> str:
        """The contents of its log."""
        try:
            return "" if self.log is None else self.log.read_text(errors="replace")
        except OSError:
            return ""

    def last_lines(self, count: int = 15) -> str:
        """The last lines of its log, for error messages."""
        return "\n".join(self.text().splitlines()[-count:]) or "(no log)"


class Lab:
    """A folder for logs, namespaces with unique names, and the processes in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spaces: dict[str, Namespace] = {}
        self.processes: dict[str, Process] = {}
        self._made: list[Namespace] = []
        self._last = ExitStack()
        """Cleared after everything else."""
        self._prefix = f"rv{os.getpid()}-{next(_count)}-"

    def namespace(self, name: str) -> Namespace:
        """Makes a namespace; `name` is its key in `spaces`."""
        if os.geteuid() != 0:
            raise RackError("network namespaces need root: run it with sudo")
        space = self.spaces[name] = Namespace.add(f"{self._prefix}{name}")
        self._made.append(space)
        return space

    def bpf_fs(self) -> Path:
        """Mounts a BPF file system in the folder `bpf`, until all processes have ended."""
        return self._last.enter_context(bpf_fs(self.folder / "bpf"))

    def start(self, name: str, command: Sequence[str], space: Namespace | None = None, **options: Any) -> Process:
        """Starts a process in a namespace (None: the current one). Its log has its name unless `options` redirect it.

        It ends when this process does, even by kill -9.
        """
        if name in self.processes and self.processes[name].running():
            raise RackError(f"{name} is already running")
        enter = space.enter if space is not None else ()
        command = ["setpriv", "--pdeathsig", "KILL", "--", *enter, *command]
        self.folder.mkdir(parents=True, exist_ok=True)
        log = None if "stdout" in options else self.folder / f"{name}.log"
        with Path(log or os.devnull).open("ab") as out:
            arguments: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, **options}
            process = self.processes[name] = Process(name, subprocess.Popen(command, **arguments), log)
        return process

    def end(self, name: str, how: int = signal.SIGKILL) -> Process:
        """Ends a process and removes it from the lab."""
        process = self.processes.pop(name)
        process.end(how)
        return process

    def until(self, condition: Callable[[], bool], what: str, patience_s: float, *watched: Process) -> float:
        """Waits for a condition; returns the seconds that it took.

        RackError with the last log lines of the watched processes if the time runs out or one of them ends.
        """
        began = time.monotonic()
        while not condition():
            ended = [process for process in watched if not process.running()]
            if not ended and time.monotonic() - began < patience_s:
                time.sleep(0.02)
                continue
            why = f"{ended[0].name} ended ({ended[0].popen.returncode})" if ended else f"not within {patience_s:g} s"
            logs = (f"\nthe log of {p.name} ends:\n{p.last_lines()}" for p in ended or watched)
            raise RackError(f"{what}: {why}{''.join(logs)}")
        return time.monotonic() - began

    def down(self) -> None:
        """Ends every process, the newest first, and removes every namespace."""
        with self._last:
            for process in reversed(self.processes.values()):
                if process.running():
                    process.popen.terminate()
            for process in self.processes.values():
                process.reap(10.0)
            self.processes.clear()
            while self._made:
                self._made.pop().delete()
            self.spaces.clear()


L = TypeVar("L", bound=Lab)


@contextmanager
def standing(lab: L) -> Iterator[L]:
    """The lab until the end of the block; everything is removed then, also on SIGTERM and Ctrl-C."""

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # SIGINT too: Python ignores it if it was started with it ignored, as in the background of a script.
    before = {number: signal.signal(number, interrupted) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lab
    finally:
        # A second Ctrl-C must not interrupt the teardown.
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        lab.down()
        for number, handler in before.items():
            signal.signal(number, handler)

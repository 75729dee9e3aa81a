"""Runs measurements in parallel processes: for slow links, which need much time and little CPU."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from rivulet_lab import RackError

P = TypeVar("P")
R = TypeVar("R")


def beside(measure: Callable[[P], R], points: Sequence[P]) -> list[R]:
    """Results of the points, in their order. RackError of the first one that fails; it ends the others."""
    context = multiprocessing.get_context("fork")
    parts = []
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        for point in points:
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(measure, point, send))
            process.start()
            send.close()
            parts.append((process, receive))
        return [_result(receive) for _, receive in parts]
    finally:
        for process, _ in parts:
            # Each process removes its own namespaces.
            process.terminate()
        for process, _ in parts:
            process.join()
        signal.signal(signal.SIGTERM, before)


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _work(measure: Callable[[P], R], point: P, send: Connection) -> None:
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        result: tuple[R | None, str | None] = measure(point), None
    except KeyboardInterrupt:
        return
    except (Exception, SystemExit) as e:
        result = None, f"{type(e).__name__}: {e}"
    send.send(result)


def _result(receive: Connection) -> Any:
    try:
        result, error = receive.recv()
    except EOFError:
        raise RackError("a measurement ended without a result") from None
    if error is not None:
        raise RackError(error)
    return result

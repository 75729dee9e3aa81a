"""Communication of a bench with its clients in another namespace: lines of JSON in both directions."""

from __future__ import annotations

import json
import select
import subprocess
from typing import Any

from rivulet_lab import Process, RackError

Json = dict[str, Any]


def pipes() -> dict[str, int]:
    """Options for starting a client."""
    return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def answer(client: Process, patience_s: float = 60.0) -> Json:
    """The client's next line. RackError with its error output if it ends or prints nothing in time."""
    assert client.popen.stdout is not None
    if not select.select([client.popen.stdout], [], [], patience_s)[0]:
        raise RackError(f"{client.name} printed nothing for {patience_s:g} s")
    text = client.popen.stdout.readline()
    if not text:
        client.output()
        raise RackError(f"{client.name} ended")
    return dict(json.loads(text))


def tell(client: Process, what: Json | None = None) -> None:
    """Sends the client a line."""
    assert client.popen.stdin is not None
    client.popen.stdin.write(json.dumps(what or {}).encode() + b"\n")
    client.popen.stdin.flush()

"""Old client, new server, and the reverse: both fall back to plain TCP on the same handshake.

Plain curl fetches from the service, where a replica's kernel serves it; curl under `rivulet run` fetches from an
ordinary HTTP server.
"""

from __future__ import annotations

import argparse
import json
import sys

from ...scenario import Parameters, Standing, console, standing_rack
from ...services import url

WORDS = __doc__ or ""

PLAIN_PORT = 8000


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if every download was right."""
    with standing_rack("fallback", values) as standing:
        replica = standing.rack.spec.of("replica")[0]
        command = [sys.executable, "-m", "http.server", str(PLAIN_PORT), "--bind", replica.ip]
        www = values.out / "www"
        space = standing.rack.spaces[replica.name]
        server = standing.rack.start("plain-server", command, space, cwd=www)
        probe = ("curl", "-s", "-o", "/dev/null", f"http://{replica.ip}:{PLAIN_PORT}/")
        plain = f"http://{replica.ip}:{PLAIN_PORT}/file.bin"
        standing.rack.until(lambda: space.succeeds(*probe), "the plain server is up", 20.0, server)
        rows = [
            _fetch(standing, "old client, old server", "c2", "", plain),
            _fetch(standing, "old client, new server", "c2", "", url("file.bin")),
            _fetch(standing, "new client, old server", "c1", standing.via_rivulet("c1"), plain),
            _fetch(standing, "new client, new server", "c1", standing.via_rivulet("c1"), url("file.bin")),
        ]
    for row in rows:
        right = "byte for byte" if row["sha256_ok"] else "WRONG BYTES"
        console.print(f"{row['who']:24} {right}, {row['connections']} connection(s), {row['mbps']:.1f} Mb/s")
    path = values.out / "fallback.json"
    path.write_text(json.dumps({"scenario": "fallback", "downloads": rows}, indent=1))
    console.print(f"data: {path}", soft_wrap=True)
    return 0 if all(row["sha256_ok"] and row["connections"] == 1 for row in rows) else 1


def _fetch(standing: Standing, who: str, host: str, via: str, address: str) -> dict[str, object]:
    standing.clients.clear()
    standing.client("fallback", host, via, address=address)
    standing.run(lambda standing, elapsed: None, patience_s=120.0)
    result = standing.result("fallback")
    seconds = result["ended"] - result["started"]
    return {
        "who": who,
        "bytes": result["bytes"],
        "sha256_ok": result["sha256_ok"],
        "connections": result["connections_opened"],
        "failures": result["failures"],
        "mbps": round(result["bytes"] * 8 / seconds / 1e6, 2),
    }

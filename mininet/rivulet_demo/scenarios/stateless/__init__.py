"""A browser and plain curl fetch a page of many small objects, under loss and kills, beside kernel TCP.

The clients run no Rivulet code, and neither replicas nor switch keep connections: the ToR answers SYNs, and any replica
answers a request (docs/plain.md). Replicas are killed with SIGKILL until one is left, and return. A third curl fetches
the same from a service of the replicas' kernels. The scenario takes SIZE / 5 seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from ...deeds import of_plan
from ...figure import Mark, save
from ...latency import draw
from ...mosaic import make
from ...plan import failover
from ...report import versions
from ...scenario import Parameters, Standing, console, standing_rack
from ...spec import SERVICE_PORT, SERVICE_V4

WORDS = __doc__ or ""

KERNEL_PORT = 81
LOSS_PERCENT = 1.0
TOGETHER = 6
"""Objects that one curl fetches over a kept connection."""
STALLED_S = 60.0

NEW, KEPT, KERNEL, BROWSER = "stateless", "stateless-kept", "kernel", "browser"
LABELS = {
    NEW: "stateless TCP, a connection each",
    KEPT: f"stateless TCP, {TOGETHER} objects a connection",
    KERNEL: "the kernel's TCP, a connection each",
}


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if the clients of stateless TCP got every object, byte for byte."""
    seconds = max(20.0, values.size_mb / 5)
    www = values.out / "www-mosaic"
    make(www)
    services = (("files", SERVICE_PORT, "stateless"), ("files-kernel", KERNEL_PORT, "kernel"))
    with standing_rack(
        "stateless", values, www=www, clients=4, client_loss_percent=LOSS_PERCENT, services=services
    ) as standing:
        standing.unit = ("objects", 1)
        picture = values.out / "stateless-browser.png"
        start = time.monotonic()
        standing.program(BROWSER, "c1", "browse", _url(SERVICE_PORT), f"{seconds:g}", "--picture", str(picture))
        manifest = ("--manifest", str(www.with_suffix(".json")))
        for name, host, port, together in ((NEW, "c2", SERVICE_PORT, 1), (KEPT, "c3", SERVICE_PORT, TOGETHER)):
            standing.program(name, host, "small", _url(port), f"{seconds:g}", *manifest, "--together", str(together))
        standing.program(KERNEL, "c4", "small", _url(KERNEL_PORT), f"{seconds:g}", *manifest)
        todo = of_plan(failover(list(standing.replicas.alive()), seconds))

        def act(standing: Standing, elapsed: float) -> None:
            while todo and elapsed >= todo[0].at:
                todo.pop(0).do(standing)

        standing.run(act, patience_s=3 * seconds + STALLED_S)
        report = _report(standing, start)
        drops = standing.watch.view.drops if standing.watch.view else {}
        report["drops"] = drops
    return _show(report, values, picture)


def _url(port: int) -> str:
    return f"http://{SERVICE_V4}:{port}"


def _report(standing: Standing, start: float) -> dict[str, Any]:
    """`stateless.json`: every object of every client, every load of the browser, and the marks."""
    values = standing.parameters
    report: dict[str, Any] = {
        "scenario": "stateless",
        "versions": versions(values.switch),
        "parameters": {
            "rate_mbit": values.rate_mbit,
            "rtt_ms": values.rtt_ms,
            "loss_percent": LOSS_PERCENT,
            "replicas": values.replicas,
            "switch": values.switch,
            "liveness_bound_ms": values.liveness_ms,
        },
        "marks": [{"at_s": round(at - start, 3), "what": what, "replica": who} for at, what, who in standing.marks],
        "loads": [{**load, "at": round(load["at"] - start, 3)} for load in standing.left(BROWSER)],
        "clients": {},
    }
    for name in LABELS:
        objects = [{**one, "at": round(one["at"] - start, 4)} for one in standing.left(name)]
        times = sorted(one["seconds"] for one in objects if not one["failure"])
        report["clients"][name] = {
            "objects": objects,
            "failed": sum(bool(one["failure"]) for one in objects),
            "wrong": sum(one["failure"] == "WRONG BYTES" for one in objects),
            "mean_ms": round(statistics.fmean(times) * 1e3, 2) if times else None,
            "p50_ms": round(times[len(times) // 2] * 1e3, 2) if times else None,
            "p99_ms": round(times[len(times) * 99 // 100] * 1e3, 2) if times else None,
            "longest_ms": round(times[-1] * 1e3, 2) if times else None,
        }
    return report


def _show(report: dict[str, Any], values: Parameters, picture: Any) -> int:
    """Prints the summary, writes figure, page and JSON."""
    clients, loads = report["clients"], report["loads"]
    whole = sum(load["whole"] for load in loads)
    kills = sum(mark["what"] == "kill" for mark in report["marks"])
    words = [
        f"{kills} of {values.replicas} replicas were killed with kill -9 and came back while a browser and curl fetched"
        f" small objects at {values.rtt_ms:g} ms round-trip time and {LOSS_PERCENT:g} % loss each way, through the"
        f" {values.switch} switch.",
        f"Browser: {whole} of {len(loads)} loads of the page were complete.",
    ]
    rows = [["", "objects", "failed", "wrong bytes", "mean", "median", "99 %", "longest"]]
    for name, label in LABELS.items():
        client = clients[name]
        count = len(client["objects"])
        words.append(f"{label}: {client['failed']} of {count:,} objects failed, {client['wrong']} had wrong bytes.")
        rows.append(
            [label, f"{count:,}", f"{client['failed']:,}", f"{client['wrong']:,}"]
            + [f"{client[key] or 0:.1f} ms" for key in ("mean_ms", "p50_ms", "p99_ms", "longest_ms")]
        )
    good = [clients[name] for name in (NEW, KEPT)]
    ok = whole == len(loads) > 0 and all(c["objects"] and not c["failed"] for c in good) and kills > 0
    if not ok:
        words.append("This is NOT what Rivulet promises: the logs are in the folder below.")
    folder = values.out
    data, png, page = (folder / f"stateless.{kind}" for kind in ("json", "png", "html"))
    data.write_text(json.dumps(report, indent=1))
    marks = [Mark(mark["at_s"], mark["what"], mark["replica"]) for mark in report["marks"]]
    points = {label: clients[name]["objects"] for name, label in LABELS.items()}
    title = "a page of small objects, replicas killed, nothing installed at the clients"
    save(draw(points, marks, title), png, page, title, rows, "\n".join(words), picture)
    files = (("figure", png), ("page", page), ("data", data), ("browser", picture))
    for line in [*words, *(f"{what + ':':8} {path}" for what, path in files)]:
        console.print(line, soft_wrap=True)
    return 0 if ok else 1

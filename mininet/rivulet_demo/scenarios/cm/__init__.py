"""Streams under the Congestion Manager while their link changes its rate.

A server streams in four layers (250 kb/s to 2 Mb/s) to one client: once by request and callback, where each packet
has the layer that fits at its time, and once by rate callback, where the server has its own clock and is called when
the rate crosses a threshold. Unmodified ffmpeg also plays a tone, by RTP of a constant 0.7 Mb/s, through a relay that
drops what exceeds the rate. All share one window. The link changes to a quarter of its rate, to a half, and back.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rivulet_lab import RackError

from ...adaptive import LAYERS, NS, AdaptivePath, Json, Stream, adaptive_path, lacking, rate_at, reactions, spent
from ...figure import save
from ...scenario import Parameters, console
from . import audio
from .picture import Flow, draw

WORDS = __doc__ or ""

RATE_MBIT = 7.0
"""Rate of the link: in each phase the share of each of three streams lies between the rates of two layers."""
RTT_MS = 60.0
PHASE_S = 10.0
PHASES = (1.0, 0.25, 0.5, 1.0)
"""Parts of the link's rate."""
QUEUE = 30
SETTLED = 0.5
"""Part of a phase, at its end, in which streams have adapted."""
PATIENCE_S = 20.0

REQUEST, CALLBACK = "request", "rate"
LABELS = {
    REQUEST: "layers, request and callback",
    CALLBACK: "layers, rate callback",
    audio.AUDIO: "audio, through the relay",
}


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if the streams followed the link and both ends agree, or if nothing could run."""
    if why := lacking():
        console.print(f"SKIPPED: {why}, which the Congestion Manager's calls need (docs/hosts.md)")
        return 0
    rate = options.rate if options.rate is not None else RATE_MBIT
    rtt = values.rtt_ms if values.rtt_ms != 10.0 else RTT_MS
    path = AdaptivePath(values.out / "cm", rate, rtt, QUEUE)
    console.print("[bold cyan]›[/] namespaces, the link, the Congestion Manager")
    with adaptive_path(path):
        for name in (REQUEST, CALLBACK):
            path.stream(name, ["layers", "--by", name])
        if why := audio.missing():
            console.print(f"  {why}", soft_wrap=True)
        else:
            audio.start(path)
        path.until(lambda: all(s.received.of("layer") for s in path.streams), "streams arrive", PATIENCE_S)
        _phases(path, rate, values.live)
        path.finish()
        heard = {} if why else audio.finish(path)
    report = _report(path, rate, rtt, heard)
    return _show(report, path, values)


def _phases(path: AdaptivePath, rate: float, live: bool) -> None:
    """Changes the link's rate and shows the streams."""
    with _view(path, live) as show:
        # The time before the streams began is not a phase.
        path.changes.clear()
        for part in PHASES:
            path.set_rate(rate * part)
            console.print(f"  the link has {rate * part:g} Mb/s")
            end = time.monotonic() + PHASE_S
            while time.monotonic() < end:
                ended = [s.name for s in path.streams if s.receiver is None or not s.receiver.running()]
                if ended:
                    raise RackError(f"the receiver of {', '.join(ended)} ended; its log is in {path.folder}")
                show()
                time.sleep(0.1)


@contextmanager
def _view(path: AdaptivePath, live: bool) -> Iterator[Callable[[], None]]:
    """The live view; without a terminal, a line every five seconds."""
    shown = time.monotonic()

    def row(stream: Stream) -> list[Any]:
        arrived, share = stream.received.last("arrived"), stream.served.last("share")
        layer = stream.received.last("layer").get("to", 0)
        rate = arrived.get("rate", 0) / 1e6
        return [
            LABELS[stream.name],
            "" if stream.name == audio.AUDIO else f"{LAYERS[layer] / 1e3:g} kb/s",
            f"{rate:.2f}",
            f"{share.get('rate', 0) / 1e6:.2f}",
            f"{arrived.get('delay_ms', 0):.0f} ms",
            Text("█" * (layer + 1), style="green") if stream.name != audio.AUDIO else _taken(share),
        ]

    def picture() -> Group:
        table = Table("stream", "layer", "arrives, Mb/s", "its share, Mb/s", "queue", "", box=None, padding=(0, 2))
        for stream in path.streams:
            table.add_row(*row(stream))
        now = rate_at(path.changes, time.monotonic_ns()) if path.changes else path.rate_mbit
        return Group(Text(f"link: {now:g} Mb/s", style="bold"), table)

    if not live:

        def line() -> None:
            nonlocal shown
            if time.monotonic() - shown > 5.0:
                shown = time.monotonic()
                console.print("  " + "; ".join(", ".join(str(cell) for cell in row(s)[:4]) for s in path.streams))

        yield line
        return
    with Live(picture(), console=console, refresh_per_second=8, transient=True) as screen:
        yield lambda: screen.update(picture())


def _taken(share: Json) -> Text:
    dropped = share.get("dropped", {})
    return Text(f"dropped: {dropped.get('policed', 0) + dropped.get('buffer', 0):,}", style="red")


def _report(path: AdaptivePath, rate: float, rtt: float, heard: Json) -> Json:
    start = path.changes[0][0]
    edges = [*(at for at, _ in path.changes), path.changes[-1][0] + round(PHASE_S * NS)]
    report: Json = {
        "scenario": "cm",
        "parameters": {"rate_mbit": rate, "rtt_ms": rtt, "queue_packets": QUEUE, "layers": LAYERS},
        "changes": [{"at_s": round((at - start) / NS, 3), "rate_mbit": rate} for at, rate in path.changes],
        "streams": {},
    }
    for stream in path.streams:
        close, end = stream.end()
        if stream.name == audio.AUDIO:
            report[audio.AUDIO] = {"close": close, "end": end, "phases": audio.phases(stream, edges), "heard": heard}
            continue
        layers = stream.served.of("layer")
        phases = []
        for (at, mbit), until in zip(path.changes, edges[1:], strict=True):
            parts = spent(layers, at + round((until - at) * (1 - SETTLED)), until)
            phases.append({"rate_mbit": mbit, "layers": {str(layer): round(part, 3) for layer, part in parts.items()}})
        report["streams"][stream.name] = {
            "close": close,
            "end": end,
            "phases": phases,
            "reactions": [
                {"at_s": round((r.at - start) / NS, 3), "from": r.before, "to": r.layer, "seconds": round(r.seconds, 3)}
                for r in reactions([(at, rate / len(path.streams)) for at, rate in path.changes], layers, LAYERS)
            ],
        }
    return report


def _mean(phase: Json) -> float:
    """Mean rate of the layers sent in the settled part of a phase, bits a second."""
    return float(sum(LAYERS[int(layer)] * part for layer, part in phase["layers"].items()))


def _miscounted(close: Json, end: Json) -> list[str]:
    """Differences between the counts of the two ends."""
    sent, arrived = sum(close["layers"]), sum(end["layers"])
    doubts = []
    if not 0 < arrived + end["missing"] <= sent:
        doubts.append(f"{arrived} packets arrived and {end['missing']} are missing, but {sent} were sent")
    if arrived != end["packets"] or end["octets"] > close["octets"]:
        doubts.append(f"{end['octets']} bytes arrived of {close['octets']}")
    if close["lost"] > end["missing"]:
        doubts.append(f"{close['lost']} were reported lost, {end['missing']} are missing")
    return doubts


def _doubts(name: str, stream: Json, streams: int) -> list[str]:
    """Errors of a stream in counts, bytes and order; times are not judged."""
    phases = stream["phases"]
    doubts = _miscounted(stream["close"], stream["end"])
    fast, slow, middle, again = (_mean(phase) for phase in phases)
    if not slow < min(fast, again):
        doubts.append("its layers were not lower on the slow link")
    if not slow <= middle:
        doubts.append("its layers did not rise with the link")
    part = phases[1]["rate_mbit"] / streams * 1e6
    fitting = sum(time for layer, time in phases[1]["layers"].items() if LAYERS[int(layer)] <= part)
    if fitting < 0.5:
        doubts.append("its layers did not fit its part of the slow link")
    return [f"{LABELS[name]}: {doubt}" for doubt in doubts]


def _show(report: Json, path: AdaptivePath, values: Parameters) -> int:
    """Prints the summary, writes figure, page and JSON."""
    count = len(path.streams)
    doubts = [doubt for name, stream in report["streams"].items() for doubt in _doubts(name, stream, count)]
    steps = ", ".join(f"{change['rate_mbit']:g}" for change in report["changes"])
    words = [
        f"{count} streams of one server to one client shared a window while their link had {steps} Mb/s for"
        f" {PHASE_S:g} s each, {report['parameters']['rtt_ms']:g} ms round-trip time without queues."
    ]
    rows = [
        [
            "",
            "packets",
            "bytes",
            "lost",
            "changes of layer",
            *(f"at {c['rate_mbit']:g} Mb/s" for c in report["changes"]),
        ]
    ]
    for name, stream in report["streams"].items():
        close, end = stream["close"], stream["end"]
        settled = [_mean(phase) / 1e6 for phase in stream["phases"]]
        words.append(
            f"{LABELS[name]}: {end['packets']:,} packets arrived, {end['missing']:,} were lost; {close['switches']}"
            f" changes of layer; layers of {', '.join(f'{rate:.2f}' for rate in settled)} Mb/s in the middle."
        )
        words += [
            f"  When its layer of {LAYERS[r['from']] / 1e6:g} Mb/s no longer fitted, one of"
            f" {LAYERS[r['to']] / 1e6:g} Mb/s left after {r['seconds']:.2f} s."
            for r in stream["reactions"]
        ]
        rows.append(
            [LABELS[name], f"{end['packets']:,}", f"{end['octets']:,}", f"{end['missing']:,}", str(close["switches"])]
            + [f"{rate:.2f} Mb/s" for rate in settled]
        )
    if sound := report.get(audio.AUDIO):
        close, end, heard, phases = (sound[key] for key in ("close", "end", "heard", "phases"))
        doubts += _miscounted(close, end) + audio.doubts(close, end, heard, phases)
        taken = close["dropped"]
        words.append(
            f"{LABELS[audio.AUDIO]}: {end['packets']:,} packets arrived and were played in order, {end['missing']:,}"
            f" were lost; the policer dropped {taken['policed']:,}, the full buffer {taken['buffer']:,};"
            f" {', '.join(str(phase['taken_out']) for phase in phases)} of them at each rate."
        )
        rows.append(
            [LABELS[audio.AUDIO], f"{end['packets']:,}", f"{end['octets']:,}", f"{end['missing']:,}", ""]
            + [f"{phase['rate'] / 1e6:.2f} Mb/s" for phase in phases]
        )
    words += [f"NOT as expected: {doubt}" for doubt in doubts]
    folder = values.out
    data, png, page = (folder / f"cm.{kind}" for kind in ("json", "png", "html"))
    data.write_text(json.dumps(report, indent=1))
    title = "Streams that adapt by the Congestion Manager"
    flows = {
        LABELS[s.name]: Flow(s.served.read(), s.received.read(), () if s.name == audio.AUDIO else LAYERS)
        for s in path.streams
    }
    save(draw(flows, path.changes, PHASE_S, title), png, page, title, rows, "\n".join(words))
    for line in [*words, *(f"{what + ':':8} {at}" for what, at in (("figure", png), ("page", page), ("data", data)))]:
        console.print(line, soft_wrap=True)
    return 1 if doubts else 0

"""Adaptation under the Congestion Manager: figures 8 (request and callback), 9 (rate callback), 10 (feedback).

One stream of four layers uses a link of changing rate. From the lines that the server wrote: after each change to a
rate below its layer, the time until the first layer that fits, in seconds and in round trips as the server measured
them last. These include the queue in front of the slow link, in which the feedback waits.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from rivulet_demo.adaptive import LAYERS, NS, AdaptivePath, Stream, adaptive_path, reactions
from rivulet_demo.scenarios.cm.picture import Flow, draw
from rivulet_lab import RackError

from .bars import Bar
from .rig import BUILD
from .stats import interval, percentile

Json = dict[str, Any]

REQUEST, CALLBACK = "request", "rate"
RTT_MS = 75.0
QUEUE = 10
"""Packets: 0.3 s at the lowest rate, in which the sender cannot learn of it."""
STEPS = (3.0, 0.7, 1.4, 0.4, 3.0)
"""Consecutive rates of the link, Mb/s."""
STEP_S = 6.0

LATE_RATE, LATE_QUEUE, LATE_OCTETS = 20.0, 1000, 256
"""A path that holds more than 500 packets of this size, so that a report can acknowledge as many."""
LATE_EVERY, LATE_MS = 500, 2000
LATE_S = 24.0
FIRST_WINDOW = 10
SETTLED_S = 8.0
"""Last part of a run with late feedback, when the pipe is full."""


def layers(options: Any) -> Json:
    """Figures 8, 9 and 10."""
    runs: dict[str, list[Json]] = {REQUEST: [], CALLBACK: []}
    late: dict[str, list[Json]] = {"late": [], "prompt": []}
    for n in range(options.repetitions):
        for by, found in runs.items():
            found.append(_steps(by, BUILD / f"cm-layers-{by}.png" if n == 0 else None))
        for name, flags in (("late", ("--every", str(LATE_EVERY), "--delay", str(LATE_MS))), ("prompt", ())):
            late[name].append(_late(flags, BUILD / f"cm-feedback-{name}.png" if n == 0 else None))
    summary = {by: _summary(by, found) for by, found in runs.items()}
    feedback = {name: _of_feedback(name, found) for name, found in late.items()}
    return {"steps_mbit": STEPS, "rtt_ms": RTT_MS, "queue": QUEUE, "summary": summary, "feedback": feedback}


def _run(path: AdaptivePath, stream: Stream, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if stream.receiver is None or not stream.receiver.running():
            raise RackError(f"the receiver ended; its log is in {path.folder}")
        time.sleep(0.05)


def _draw(path: AdaptivePath, stream: Stream, seconds: float, title: str, picture: Path | None) -> None:
    if picture is not None:
        flows = {title: Flow(stream.served.read(), stream.received.read())}
        figure = draw(flows, path.changes, seconds, title)
        figure.savefig(picture, dpi=130)
        print(f"figure: {picture}", flush=True)


def _steps(by: str, picture: Path | None) -> Json:
    """Runs one stream over all rates of the link."""
    with adaptive_path(AdaptivePath(BUILD / "cm-layers", STEPS[0], RTT_MS, QUEUE)) as path:
        stream = path.stream(by, ["layers", "--by", by])
        path.until(lambda: bool(stream.received.of("layer")), "the stream arrives", 20.0)
        path.changes.clear()
        for rate in STEPS:
            path.set_rate(rate)
            _run(path, stream, STEP_S)
        path.finish()
        close, end = stream.end()
        found = reactions(path.changes, stream.served.of("layer"), LAYERS)
        _draw(path, stream, STEP_S, f"layers by {by}", picture)
    return {
        "reactions": [{"seconds": r.seconds, "rtts": r.seconds / r.rtt, "to": r.layer} for r in found],
        "switches": close["switches"],
        "octets": end["octets"],
        "lost": end["missing"] / max(end["packets"] + end["missing"], 1),
    }


def _late(flags: tuple[str, ...], picture: Path | None) -> Json:
    """Runs one stream by request, with a receiver that reports late."""
    wide = AdaptivePath(BUILD / "cm-layers", LATE_RATE, RTT_MS, LATE_QUEUE, FIRST_WINDOW)
    with adaptive_path(wide) as path:
        stream = path.stream(REQUEST, ["layers", "--by", REQUEST, "--octets", str(LATE_OCTETS)], flags)
        path.until(lambda: bool(stream.received.of("layer")), "the stream arrives", 20.0)
        path.changes.clear()
        path.set_rate(LATE_RATE)
        _run(path, stream, LATE_S)
        path.finish()
        close, end = stream.end()
        arrived, shares = stream.received.of("arrived"), stream.served.of("share")
        _draw(path, stream, LATE_S, f"feedback: {' '.join(flags) or 'of each packet'}", picture)
    # A line counts arrivals since the line before it, so the first window is in the first lines.
    began = stream.received.of("layer")[0]["at"]
    first = arrived[0]["packets"]
    second = next((line["at"] for line in arrived[1:] if line["packets"]), began)
    settled = [line["rate"] for line in arrived if line["at"] > arrived[-1]["at"] - SETTLED_S * NS]
    rates = [line["rate"] for line in shares]
    return {
        "first_packets": first,
        "second_s": (second - began) / NS,
        "jump": max((b / a for a, b in pairwise(rates)), default=1.0),
        # Change of the arrivals from each tenth of a second to the next.
        "waves": statistics.fmean(abs(b - a) for a, b in pairwise(settled)) / statistics.fmean(settled),
        "reports": close["reports"],
        "busiest": max(sum(0 <= other["at"] - line["at"] < LATE_MS * 1_000_000 for other in shares) for line in shares),
        "octets": end["octets"],
    }


def _summary(by: str, runs: list[Json]) -> Json:
    seconds = [r["seconds"] for run in runs for r in run["reactions"]]
    rtts = [r["rtts"] for run in runs for r in run["reactions"]]
    switches = interval([run["switches"] for run in runs])
    row: Json = {"changes": len(seconds), "switches": switches, "runs": runs}
    if seconds:
        row |= {"seconds": interval(seconds), "rtts": interval(rtts), "most_s": max(seconds)}
        row |= {"seconds_90": percentile(seconds, 90), "rtts_90": percentile(rtts, 90)}
        print(
            f"by {by:8} {len(seconds)} changes to a rate that the layer did not fit: a fitting one after"
            f" {row['seconds'][0]:.2f} s ({row['rtts'][0]:.2f} round trips), 90 % {row['seconds_90']:.2f} s"
            f" ({row['rtts_90']:.2f}), most {row['most_s']:.2f} s; {switches[0]:.0f} changes of layer a run",
            flush=True,
        )
    return row


def _of_feedback(name: str, runs: list[Json]) -> Json:
    keys = ("first_packets", "second_s", "jump", "waves", "busiest", "octets")
    row: Json = {key: interval([float(run[key]) for run in runs]) for key in keys} | {"runs": runs}
    print(
        f"feedback {name:6} {row['first_packets'][0]:.0f} packets, the next after {row['second_s'][0]:.2f} s; the share"
        f" rises {row['jump'][0]:.1f}-fold at a report; at the end arrivals change by"
        f" {row['waves'][0] * 100:.1f} % in 0.1 s",
        flush=True,
    )
    return row


def bars(found: Json) -> list[Bar]:
    """The paper's claims as bounds."""
    request, callback = found["summary"][REQUEST], found["summary"][CALLBACK]
    late, prompt = found["feedback"]["late"], found["feedback"]["prompt"]
    nothing = float("nan")
    return [
        Bar(
            "figure 8: round trips until a layer fits, by request, 90 %",
            request.get("rtts_90", nothing),
            2.0,
            at_most=True,
        ),
        Bar(
            "figure 9: seconds until a layer fits, by rate callback, most",
            callback.get("most_s", nothing),
            1.0,
            at_most=True,
        ),
        Bar(
            "figures 8, 9: changes of layer by request, of those by rate callback",
            request["switches"][0] / max(callback["switches"][0], 1e-9),
            1.0,
        ),
        Bar("figure 10: packets before the first late report", late["first_packets"][0], FIRST_WINDOW, at_most=True),
        Bar("figure 10: seconds until the stream continues", late["second_s"][0], LATE_MS / 1e3),
        Bar("figure 10: the same, at most", late["second_s"][0], LATE_MS / 1e3 + 0.5, at_most=True),
        Bar(
            "figure 10: waves of what arrives, of those with prompt feedback",
            late["waves"][0] / prompt["waves"][0],
            1.0,
        ),
        Bar("figure 10: reports in two seconds, once the pipe is full", late["busiest"][0], 3.0),
    ]

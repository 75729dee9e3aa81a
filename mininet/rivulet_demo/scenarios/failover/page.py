"""Output of `make demo`: what was seen in one sentence, the figure, the page, the data."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot

from rivulet_lab import RackError

from ...curve import curve, marks
from ...figure import throughput
from ...moments import describe
from ...report import AGAIN, RIVULET, STATELESS, TCP, kept, sentence, table
from ...scenario import Parameters, console
from . import picture
from .picture import NAMES

Report = dict[str, Any]

TITLE = "kill -9 in the middle of a download"
KEPT = (RIVULET, STATELESS)

TERMS = (
    ("Replica", "one of several servers with the same files; the switch sends a packet to any that is alive."),
    ("Kill", "kill -9 of the server's process: it sends nothing more. Solid line."),
    ("Return", "the same server is started again, and the switch readmits it after new heartbeats. Dashed line."),
    (
        "Heartbeat, exclusion",
        "each replica sends the switch a small packet at a fixed interval; without one for the exclusion bound the"
        " switch sends it nothing more. Dotted lines; the switch's counters are read every 5 ms.",
    ),
    (
        "Stall",
        "the longest time without a new byte at the client within 300 ms after the kill or the readmission. Shaded.",
    ),
    ("kB, in order", "bytes that curl received, counted from the left edge of the enlarged part."),
    ("rivulet run", "runs curl unchanged over Rivulet's transport, where the client keeps the connection's state."),
    ("Stateless TCP", "plain curl: the server keeps no connection, so any replica answers."),
    ("Kernel TCP", "plain curl, plain server: the connection's state is in one replica and dies with it."),
    ("Reconnects", "the same with a script that starts curl again with -C and the bytes it has. Pale."),
)


def seen(report: Report) -> str:
    """What was seen, in one sentence, from the measurements."""
    clients: Mapping[str, Any] = report["clients"]
    kills = [one for one in report["moments"] if one["what"] == "kill"]
    killed = f"{len(kills)} of {report['parameters']['replicas']} replicas were killed with kill -9"
    parts = []
    for name in KEPT:
        who, one = NAMES[name], clients[name]
        stalls = [kill["clients"][name]["stall_ms"] for kill in kills if not kill["clients"][name]["over"]]
        if kept(one):
            longest = f"stalled at most {max(stalls):.0f} ms after a kill" if stalls else "had finished before"
            parts.append(f"{who} kept its one connection and {longest}")
        else:
            parts.append(f"{who} did NOT keep its connection")
    one = clients[TCP]
    if one["complete"]:
        parts.append(f"{NAMES[TCP]} met no kill")
    else:
        failure = one["failures"][-1]
        early = not kills or failure["at"] < kills[0]["at"]
        parts.append(
            f"{NAMES[TCP]} ended{' BEFORE the first kill' if early else ''} with curl's exit code {failure['exit']}"
            f" after {one['bytes'] / 1e6:.1f} of {report['parameters']['bytes'] / 1e6:g} MB"
        )
    again = clients[AGAIN]["connections_opened"]
    parts.append(f"with a script that reconnects it needed {again} connection{'' if again == 1 else 's'}")
    return f"{killed}: {'; '.join(parts)}."


def show(report: Report, values: Parameters) -> int:
    """Prints and writes everything; 0 if both clients of Rivulet kept their connection."""
    clients: dict[str, Any] = report["clients"]
    if not any(one["samples"] for one in clients.values()):
        raise RackError("no client received anything")
    ok = all(kept(clients[name]) for name in KEPT)
    words = [seen(report)]
    words += [describe(one, 0.0) for one in report["moments"]]
    words += [sentence(NAMES[name], one) for name, one in clients.items()]
    words.append(_setting(report, values))
    if report["excluded_alive"]:
        those = ", ".join(f"{one['replica']} at {one['at_s']:.1f} s" for one in report["excluded_alive"])
        words.append(
            f"The switch also excluded replicas that were alive, because their heartbeats were late: {those}. This"
            " breaks connections of kernel TCP too; on a less busy machine it does not happen."
        )
    if report.get("not_done"):
        words.append(f"The download ended before {report['not_done']} of the kills and returns: use a larger SIZE.")
    if not ok:
        words.append("This is NOT what Rivulet promises: the logs are in the folder below.")
    report["seen"] = words[0]
    folder, name = values.out, "failover" if values.switch == "embedded" else f"failover-{values.switch}"
    data, png, page = (folder / f"{name}.{ending}" for ending in ("json", "png", "html"))
    data.write_text(json.dumps(report, indent=1))
    figure = picture.whole(report, TITLE)
    figure.savefig(png, dpi=110)
    pyplot.close(figure)
    _write(page, report, words, data)
    if values.live:
        _curves(report)
    files = [("figure", png), ("page", page), ("data", data)]
    files += [("packets", folder / one["pcap"]) for one in clients.values() if "pcap" in one]
    for line in [*words, *(f"{what + ':':8} {path}" for what, path in files)]:
        console.print(line, soft_wrap=True)
    return 0 if ok else 1


def _setting(report: Report, values: Parameters) -> str:
    setting = (
        f"Setting: {values.size / 1e6:g} MB at {values.rate_mbit:g} Mb/s a client, {values.rtt_ms:g} ms round-trip"
        f" time, through the {values.switch} switch, exclusion after {values.liveness_ms:g} ms without a heartbeat."
    )
    used = report.get("cores_used")
    return setting + (f" The demo used {used:.1f} of {report['cores']} cores." if used is not None else "")


def _curves(report: Report) -> None:
    """The strip of the figure in characters."""
    clients = report["clients"]
    width = max(20, min(console.width - 40, 100))
    end = max(one["samples"][-1][0] for one in clients.values() if one["samples"])
    for name, one in clients.items():
        samples = [(float(at), int(count)) for at, count in one["samples"]]
        _, rates = throughput(samples, 0.0, end, end / width)
        line = curve(rates, report["parameters"]["rate_mbit"], width)
        last = "" if one["complete"] else f" exit {one['failures'][-1]['exit']}"
        console.print(f"{NAMES[name]:36} {line.rstrip()}{last}", soft_wrap=True)
    places = [(int(mark["at_s"] / end * width), "✗" if mark["what"] == "kill" else "↑") for mark in report["marks"]]
    console.print(f"{'✗ kill -9, ↑ return':36} {marks(places, 0, width)}", soft_wrap=True)


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title}</title>
<style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:1.5rem auto;padding:0 1rem;color:#1c2321}}
.seen{{font-size:1.15rem}} .figures{{display:flex;flex-wrap:wrap;gap:1rem}} .strip{{max-width:46rem}}
.moment{{flex:1 1 16rem;min-width:min(100%,16rem);max-width:26rem}}
img{{width:100%;height:auto;display:block}} figure{{margin:0}}
.scroll{{overflow-x:auto}} table{{border-collapse:collapse;margin:1rem 0;font-size:.9rem}}
td,th{{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:right}}
td:first-child,th:first-child{{text-align:left}} dt{{font-weight:600}} dd{{margin:0 0 .4rem 1rem}}
</style></head><body>
<h1>{title}</h1>
<p class="seen">{seen}</p>
<figure class="strip">{strip}<figcaption>Throughput, Mb/s of new bytes in order at each curl, in parts of 0.2 s. ✗ and
solid line: kill. ↑ and dashed line: return. Black cross: curl gave up.</figcaption></figure>
<h2>Each kill and return, 400 ms of it</h2>
<div class="figures">{moments}</div>
<h2>Terms</h2>
<dl>{terms}</dl>
<h2>Numbers</h2>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>
{words}
<p><a href="{data}">All data as JSON</a></p>
</body></html>
"""


def _write(page: Path, report: Report, words: Sequence[str], data: Path) -> None:
    rows = [[html.escape(cell) for cell in row] for row in table(report["clients"], NAMES)]
    strip, *moments = picture.parts(report)
    page.write_text(
        PAGE.format(
            title=html.escape(TITLE),
            seen=html.escape(words[0]),
            strip=_image(strip, words[0]),
            moments="".join(
                f'<figure class="moment">{_image(svg, describe(one, 0.0))}</figure>'
                for svg, one in zip(moments, report["moments"], strict=True)
            ),
            terms="".join(f"<dt>{html.escape(term)}</dt><dd>{html.escape(what)}</dd>" for term, what in TERMS),
            head="".join(f"<th>{cell}</th>" for cell in rows[0]),
            rows="".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows[1:]),
            words="".join(f"<p>{html.escape(line)}</p>" for line in words[1:]),
            data=html.escape(data.name),
        ),
        encoding="utf-8",
    )


def _image(svg: str, words: str) -> str:
    coded = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{html.escape(words)}" src="data:image/svg+xml;base64,{coded}">'

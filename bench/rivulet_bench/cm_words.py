"""The section of `make bench-cm` on the results page."""

from __future__ import annotations

from typing import Any

from .words import table

Json = dict[str, Any]


def cm_words(d: Json) -> str:
    """The text of the parts that were measured."""
    missing = [name for name in PARTS if name not in d]
    parts = [PARTS[name](d[name]) for name in PARTS if name in d]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.")
    return "\n\n".join(parts)


def _interval(pair: tuple[float, float], digits: int = 2) -> str:
    return f"{pair[0]:,.{digits}f} ± {pair[1]:,.{digits}f}"


def _fetches(part: Json) -> str:
    reno = next(r["later_ms"][0] for r in part["summary"] if r["control"] == "reno")
    rows = [
        (r["control"], _interval(r["first_ms"], 1), _interval(r["later_ms"], 1), f"{r['later_ms'][0] / reno:.2f}")
        for r in part["summary"]
    ]
    head = ("nginx's congestion control", "first, ms", "later, ms", "of Reno's")
    return "Figure 7, nine fetches by curl:\n\n" + table(head, rows)


def _rivulet(part: Json) -> str:
    rows = [
        (r["kind"], _interval(r["first_ms"], 1), _interval(r["later_ms"], 1), f"{r['later_rounds']:.2f}")
        for r in part["summary"]
    ]
    head = ("each fetch", "first, ms", "later, ms", "later, round trips")
    return (
        "The same from `rivulet serve`: streams of one connection, processes that leave one another a token, and"
        " neither:\n\n" + table(head, rows)
    )


def _losses(part: Json) -> str:
    names = [name for name in part["summary"][0] if name != "loss"]
    rows = [
        (f"{100 * r['loss']:g} %", *(_interval(r[name]) for name in names), f"{r['cm'][0] / r['reno'][0]:.2f}")
        for r in part["summary"]
    ]
    return "Figure 3, Mb/s at each rate of loss:\n\n" + table(("loss", *names, "cm, of Reno's"), rows)


def _sharing(part: Json) -> str:
    rows = [(r["flows"], _interval(r["cm"]), f"{r['jain'][0]:.4f}", _interval(r["reno"])) for r in part["summary"]]
    head = ("connections beside one of Reno's", "cm: of its share", "Jain's index", "as many of Reno's")
    return "A group beside one connection of Reno's:\n\n" + table(head, rows)


def _long(part: Json) -> str:
    row = part["summary"][0]
    return (
        "Figures 4 and 5, a long transfer, Mb/s:\n\n"
        + table(tuple(row), [[_interval(value) for value in row.values()]])
        + f"\n\nOf Reno's in the same moment {_interval(part['of_reno'], 3)}; time until a connection's first byte, of"
        f" Reno's, {_interval(part['setup_of_reno'], 3)}; an acknowledgement costs {part['costs']['ack_ns']:.0f} ns."
    )


def _costs(part: Json) -> str:
    styles = [name for name in part["summary"][0] if name != "size"]
    rows = [(r["size"], *(_interval(r[style]) for style in styles)) for r in part["summary"]]
    calls = "; ".join(
        f"{style} {', '.join(f'{n:.2f} {name}' for name, n in of.items() if n) or 'none'}"
        for style, of in part["calls_a_packet"].items()
    )
    lost = ", ".join(f"{style} {count:,}" for style, count in part["lost"].items() if count) or "none"
    return (
        f"Figure 6, us a packet, {part['packets']:,} packets a run:\n\n"
        + table(("bytes", *styles), rows)
        + f"\n\nTable 1, calls a packet: {calls}. Reported lost in all runs: {lost}."
    )


def _kills(part: Json) -> str:
    rows = [
        (r["killed"], r["kills"], f"{r['median_ms']:.1f}", f"{r['p99_ms']:.1f}", f"{r['longest_ms']:.1f}")
        for r in part["summary"]
    ]
    head = ("killed with -9", "kills", "median, ms", "p99", "longest")
    return f"Until another program gets a killed one's window (at most {part['bound_ms']:g} ms):\n\n" + table(
        head, rows
    )


def _liar(part: Json) -> str:
    by = part["summary"]
    return (
        f"A user beside an honest one gets {_interval(by['honest'], 3)} Mb/s, beside one that acknowledges bytes that"
        f" it never sent {_interval(by['liar'], 3)}: {part['of_honest']:.3f} of it."
    )


def _layers(part: Json) -> str:
    rows = [
        (by, r["changes"], _number(r.get("rtts_90")), _number(r.get("most_s")), _interval(r["switches"], 1))
        for by, r in part["summary"].items()
    ]
    late = part["feedback"]["late"]
    return (
        "Figures 8 and 9, until the layer fits a link that changed:\n\n"
        + table(("interface", "changes of rate", "round trips, 90 %", "seconds, most", "changes of layer"), rows)
        + f"\n\nFigure 10, reports that are late: {late['first_packets'][0]:.1f} packets before the first, the stream"
        f" continues after {_interval(late['second_s'])} s, then {late['busiest'][0]:.1f} reports in two seconds."
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


PARTS = {
    "fetches": _fetches,
    "rivulet": _rivulet,
    "losses": _losses,
    "sharing": _sharing,
    "long": _long,
    "costs": _costs,
    "kills": _kills,
    "liar": _liar,
    "layers": _layers,
}

"""Writes docs/results.md from bench/results: every figure there is one that a bench wrote.

python -m rivulet_bench.results
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .stats import REPOSITORY, RESULTS

Json = dict[str, Any]


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + "---|" * (lines[0].count("|") - 1))
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _transport(d: Json) -> str:
    rows = [
        ("server step, one range, one response", f"{d['server_step_ns']:.0f} ns", "1,000, aim 400"),
        ("each further response", f"{d['server_further_response_ns']:.0f} ns", "400"),
        ("instructions of a server step", f"{d['server_step_instructions']:,.0f}", ""),
        ("allocations of a server step", d["server_step_allocations"], "0"),
        ("client, a response", f"{d['client_step_ns']:.0f} ns", "1,000"),
        ("header bytes, delta encoded", d["header_bytes"]["delta"]["total"], "80"),
        ("header bytes, whole continuation", d["header_bytes"]["full"]["total"], "150"),
    ]
    return table(("what", "measured", "wanted at most"), rows)


def _switch(d: Json) -> str:
    def pps(value: float | None) -> str:
        return f"{value:,.0f}" if value else "–"

    rows = []
    for item in d["summary"]:
        rates, ratio = item["pps"], item.get("af_packet") or {}
        rows.append(
            (
                f"{item['packet']}, {item['bytes']} bytes",
                pps(rates.get("af_packet")),
                pps(rates.get("bmv2")),
                pps(rates.get("bare_af_packet")),
                ratio.get("times_bmv2", "–"),
                {True: "yes", False: "no"}.get(ratio.get("reached", ""), "–"),
            )
        )
    head = ("packets", "embedded", "BMv2", "bare forwarder", "times BMv2", "goal reached")
    notes = "".join(f"\n\n{d['setting'][key]}" for key in ("queues", "odd", "replay") if key in d["setting"])
    return "Packets a second without loss, one worker, AF_PACKET.\n\n" + table(head, rows) + notes


def _figure9(d: Json) -> str:
    rows = [
        (r["transport"], r["clients"], f"{r['mbps']:.1f} ± {r['half_width_95']:.1f}", r["errors"]) for r in d["summary"]
    ]
    return f"{d['setting']}.\n\n" + table(("transport", "clients", "Mb/s", "errors"), rows)


def _figure17(d: Json) -> str:
    rows = [(r["transport"], r["connections"], f"{r['jain']:.4f} ± {r['half_width_95']:.4f}") for r in d["summary"]]
    return f"{d['setting']}.\n\n" + table(("transport", "connections of each client", "Jain's index"), rows)


def _soak(d: Json) -> str:
    stalls = ", ".join(f"{name} {value} ms" for name, value in d["stall_ms"].items())
    return (
        f"{d['kills']} kills over {d['downloads']} downloads, {d['broken']} broken. Longest time without a new in-order"
        f" byte in the second after a kill: {stalls}. Rows: `bench/results/soak.csv`."
    )


SECTIONS: tuple[tuple[str, str, str, Callable[[Json], str]], ...] = (
    ("soak", "Kills at random moments of downloads", "make bench-soak", _soak),
    ("figure9", "Figure 9: aggregate throughput", "make bench-figure9", _figure9),
    ("figure17", "Figure 17: fairness", "make bench-figure17", _figure17),
    ("switch", "The switch", "make bench-switch", _switch),
    ("transport", "The transport", "make bench-transport", _transport),
)

HEAD = """# Results

Written by `python -m rivulet_bench.results` from the JSON in `bench/results/`; nothing here is typed by hand. Absolute
figures are those of one small shared machine: read the ratios, and run the benches on yours. The simulator's figures
are in [simulator.md](simulator.md), the control plane's in [control-plane.md](control-plane.md).

The soak below is a short run while other work ran on the machine.

Not measured yet: Figures 9 to 12 and 17, memory at many idle connections, small objects against nginx, good clients
under a tenfold attack, the hour of traffic through the switch.
"""


def main() -> int:
    """Writes the page."""
    parts = [HEAD]
    for name, title, command, render in SECTIONS:
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        data: Json = json.loads(path.read_text())
        parts.append(f"## {title}\n\n`{command}`. Machine: {_machine(data.get('machine', {}))}.\n\n{render(data)}\n")
        if path.with_suffix(".png").exists():
            parts.append(f"![{title}](../bench/results/{name}.png)\n")
    (REPOSITORY / "docs" / "results.md").write_text("\n".join(parts))
    print(REPOSITORY / "docs" / "results.md")
    return 0


def _machine(machine: Json) -> str:
    words = [str(machine[key]) for key in ("cpu", "kernel", "date") if machine.get(key)]
    words.append(f"{machine.get('cores', '?')} cores")
    if "load" in machine:
        words.append(f"load {machine['load']:.0f} from other work")
    return ", ".join(words)


if __name__ == "__main__":
    sys.exit(main())

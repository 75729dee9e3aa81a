"""Writes docs/results.md from bench/results: a bench has written every figure there.

python -m rivulet_bench.results [--check]: with --check it writes nothing, and fails if a section is older than the
code that it measures and has no mark.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import (
    chaos,
    cm,
    figure9,
    figure10,
    figure11,
    figure12,
    figure16,
    figure17,
    host,
    soak,
    stateless,
    stateless_large,
    switch,
    trods,
    trods_hangs,
    wide,
)
from .bars import Bar
from .cm_words import cm_words
from .freshness import is_stale, measured_at, unmarked
from .plot import LABELS
from .profile import ORDER
from .stats import REPOSITORY, RESULTS, Json
from .trods_words import hangs_words, trods_words
from .words import table, times


def _transport(d: Json) -> str:
    return f"Clock: {d['clock']}. Instructions of a server step: {d['server_step_instructions']:,.0f}."


def transport_bars(d: Json) -> list[Bar]:
    """Bounds of the cost of a step of the transport."""
    rows = (
        ("server step, one range, one response, ns", d["server_step_ns"], 1000),
        ("each further response, ns", d["server_further_response_ns"], 400),
        ("allocations of a server step", d["server_step_allocations"], 0),
        ("client, a response, ns", d["client_step_ns"], 1000),
        ("header bytes, delta encoded", d["header_bytes"]["delta"]["total"], 80),
        ("header bytes, whole continuation", d["header_bytes"]["full"]["total"], 150),
    )
    return [Bar(what, measured, wanted, at_most=True) for what, measured, wanted in rows]


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
    parts = ["Packets a second without loss, one worker, AF_PACKET.\n\n" + table(head, rows) + notes]
    if "engine" in d:
        parts.append(engine_section(d["engine"]))
    if "soak" in d:
        parts.append(soak_section(d["soak"]))
    if "date" in d.get("stf", {}):
        parts.append(stf_section(d["stf"]))
    return "\n\n".join(parts)


def engine_section(engine: Json) -> str:
    """The engine without packet I/O, and lookups among ten thousand entries compared with ten."""
    rows = [
        (name, f"{row['ns_per_packet']:,.0f}", f"{row['packets_per_second']:,}")
        for name, row in engine.items()
        if not name.startswith("lookup")
    ]
    lookups = []
    for kind in ("exact", "lpm", "ternary"):
        few, many = (engine[f"lookup, {kind}, {n} entries"]["ns_per_packet"] for n in (10, 10000))
        lookups.append((kind, f"{few:.0f}", f"{many:.0f}", f"{many / few:.1f}"))
    return (
        "The engine alone, one core:\n\n"
        + table(("program", "ns a packet", "packets/s"), rows)
        + "\n\nA packet with one lookup, by entries in the table (wanted: at most twice):\n\n"
        + table(("table", "10 entries, ns", "10,000, ns", "times"), lookups)
    )


def soak_section(soak: Json) -> str:
    """Memory of the switch after an hour of traffic with changing tables."""
    return (
        f"Soak: {soak['seconds']:,.0f} s of requests at {soak['offered_pps']:,} packets/s, {soak['sent']:,} sent,"
        f" {soak['lost']:,} lost, {soak['table_writes']:,} table writes meanwhile"
        + (f" (ended by: {soak['table_writes_failed']})" if soak["table_writes_failed"] else "")
        + f"; resident memory after a quarter of the time {soak['resident_kb_after_warm_up']:,} kB, at the end"
        f" {soak['resident_kb_at_the_end']:,} kB."
    )


def stf_section(stf: Json) -> str:
    """Counts of p4c's tests, with the names of those that failed or could not be run."""
    kinds = [kind for kind in ("machine code", "interpreted") if kind in stf]
    rows = [(kind, *(stf[kind][count] for count in ("run", "passed", "failed"))) for kind in kinds]
    lines = [f"{kind}: {one['name']} ({one['why'].strip()})" for kind in kinds for one in stf[kind]["failures"]]
    lines += [f"not compiled: {one['name']} ({one['why'].strip()})" for one in stf["not_compiled"]]
    lines += [f"not in the folder: {name}" for name in stf["not_in_folder"]]
    head = f"p4c's own v1model tests (p4c {stf['p4c'] or 'of a version not recorded'}), run on {stf['date']}:"
    listed = "".join(f"\n- {line}" for line in lines)
    return f"{head}\n\n{table(('', 'run', 'passed', 'failed'), rows)}" + (f"\n{listed}" if listed else "")


def _figure9(d: Json) -> str:
    rows = [
        (r["transport"], r["clients"], f"{r['mbps']:.1f} ± {r['half_width_95']:.1f}", r["errors"]) for r in d["summary"]
    ]
    return f"{d['setting']}.\n\n" + table(("transport", "clients", "Mb/s", "errors"), rows)


def _plus(value: float, half: float, digits: int = 2) -> str:
    """A mean with the half-width of its 95 % interval."""
    return f"{value:,.{digits}f} ± {half:,.{digits}f}"


def _yes(reached: bool | None) -> str:
    return {True: "yes", False: "no"}.get(reached, "") if reached is not None else ""


def _figure10(d: Json) -> str:
    rows = [
        (
            f"{r['bytes']:,}",
            LABELS.get(r["kind"], r["kind"]),
            _plus(r["rtts"], r["rtts_half_95"]),
            _plus(r["kbytes_per_second"], r["kbytes_per_second_half_95"], 1),
        )
        for r in sorted(d["summary"], key=lambda r: r["bytes"])
    ]
    head = ("bytes", "transport", "response time, round trips", "kB/s")
    return f"{d['setting']}.\n\n" + table(head, rows)


def _figure11(d: Json) -> str:
    rows = [
        (
            f"{r['connections']:,}",
            LABELS.get(r["transport"], r["transport"]),
            _plus(r["megabytes"], r["half_95"]),
            f"{r['kernel_megabytes']:,.2f}",
        )
        for r in sorted(d["summary"], key=lambda r: r["connections"])
    ]
    head = ("connections", "transport", "MB", "of this kernel sockets")
    said = (
        f"Rivulet's server grew by {d['rivulet_growth_bytes'] / 1e6:.2f} MB from the fewest to the most connections"
        f" (wanted: at most {d['wanted_growth_bytes'] / 1e6:g}; reached: {_yes(d['reached'])}). Kernel TCP: nginx and"
        f" {d['kernel_bytes_per_socket']:,} bytes a socket; what the kernel keeps for the clients is not counted."
    )
    return f"{d['setting']}.\n\n" + table(head, rows) + f"\n\n{said}"


def _figure12(d: Json) -> str:
    works = [part["work"] for part in d["summary"][0]["parts"]]
    rows = [
        (
            LABELS.get(r["transport"], r["transport"]),
            _plus(r["mbps"], r["mbps_half_95"], 0),
            _plus(r["busy_percent"], r["busy_half_95"], 1),
            *(f"{part['percent']:.1f}" for part in r["parts"]),
        )
        for r in d["summary"]
    ]
    return f"{d['setting']}; % of one core.\n\n" + table(("transport", "Mb/s", "busy", *works), rows)


def _host(d: Json) -> str:
    throughput = [
        (
            "unshaped" if r["rate_mbit"] is None else f"{r['rate_mbit']:g} Mb/s",
            r["connections"],
            r["kind"],
            _plus(r["mbps"], r["mbps_half_95"], 1),
            _plus(r["of_reno"], r["of_reno_half_95"]),
            "" if r["wanted"] is None else f"{r['wanted']:g}: {_yes(r['reached'])}",
            _plus(r["cpu_s_per_gb"], r["cpu_s_per_gb_half_95"]),
            _plus(r["core_s_per_gb"], r["core_s_per_gb_half_95"]),
        )
        for r in d["throughput"]["summary"]
    ]
    head = ("link", "connections", "transport", "Mb/s", "of Reno", "wanted", "process s/GB", "core s/GB")
    requests = [
        (
            f"{r['bytes']:,}",
            r["kind"],
            _plus(r["per_second"], r["per_second_half_95"], 0),
            _plus(r["of_nginx"], r["of_nginx_half_95"]),
            "" if r["wanted"] is None else f"{r['wanted']:g}: {_yes(r['reached'])}",
            _plus(r["server_cpu_us"], r["server_cpu_us_half_95"], 1),
            _plus(r["server_core_us"], r["server_core_us_half_95"], 1),
        )
        for r in d["requests"]["summary"]
    ]
    small = ("bytes", "transport", "requests/s", "of nginx", "wanted", "process, us each", "core, us each")
    attack = [
        (
            r["class"],
            f"{d['attacks']['refused_per_second'][r['class']]:,.0f}",
            f"{r['attack_per_good']:.1f}",
            f"{100 * r['kept']:.1f} ± {100 * r['kept_half_95']:.1f}",
            f"{100 * r['wanted']:g} %: {_yes(r['reached'])}",
            f"{r['memory_bytes_most']:,}",
        )
        for r in d["attacks"]["summary"]
    ]
    beside = ("attack", "dealt with a second", "packets for a good one", "% kept", "wanted", "memory, bytes more")
    profile = [
        (kind, end, *(f"{parts.get(name, 0.0):.1f}" for name in ("idle", *ORDER)))
        for kind, ends in d["profile"].items()
        for end, parts in ends.items()
    ]
    setting = (
        f"{d['setting']}; {d['nginx']}. Process: the serving process as the scheduler counts it; core: all that its"
    )
    setting += " core did, receiving included."
    return "\n\n".join(
        (
            setting,
            "Throughput:",
            table(head, throughput),
            "Where the time goes without a shaper, % of each end's core:",
            table(("transport", "end", "idle", *ORDER), profile),
            GSO,
            "Small objects, a new connection each, 32 clients:",
            table(small, requests),
            f"Good clients ({d['attacks']['good_mbit']:.1f} Mb/s) beside attackers:",
            table(beside, attack),
        )
    )


GSO = (
    "Kernel segmentation cannot help a server whose packets each carry a number of their own in a TCP option and a"
    " continuation in front of the data: what the kernel cuts from one large segment has the same options in every"
    " piece and headers only at its front. So packets are batched (64 a system call) and no more."
)


def _figure16(d: Json) -> str:
    head = ("client", "kills", "broken", "stall p50", "p90", "p99", "goodput back p50", "p90", "excluded p50")
    rows = []
    for name, found in d["clients"].items():
        if not found["kills"]:
            continue
        stall, back, out = found["stall_ms"], found["recovered_ms"], found.get("exclusion_ms", {})
        cells = [stall["p50"], stall["p90"], stall["p99"], back["p50"], back["p90"], out.get("p50")]
        rows.append((name, found["kills"], found["broken"], *("–" if c is None else f"{c:g} ms" for c in cells)))
    rtt = d["rtt_ms"]
    return (
        f"{d['setting']}; round trip {rtt['idle']:g} ms idle, {rtt['under_load']:g} ms under load.\n\n"
        f"{table(head, rows)}"
    )


def _figure17(d: Json) -> str:
    rows = [(r["transport"], r["connections"], f"{r['jain']:.4f} ± {r['half_width_95']:.4f}") for r in d["summary"]]
    return f"{d['setting']}.\n\n" + table(("transport", "connections of each client", "Jain's index"), rows)


def _soak(d: Json) -> str:
    stalls = ", ".join(f"{name} {value} ms" for name, value in d["stall_ms"].items())
    return (
        f"{d['kills']} kills over {d['downloads']} downloads, {d['broken']} broken. Longest time without a new in-order"
        f" byte in the second after a kill: {stalls}. Rows: `bench/results/soak.csv`."
    )


def _chaos(d: Json) -> str:
    halves = [d[store] for store in ("sqlite", "etcd") if store in d]
    rows = [
        (kind, f"{d['back_s'][kind]['p50']:g}", f"{d['back_s'][kind]['p100']:g}", f"{d['stall_ms'][kind]['p50']:g}",
         f"{d['stall_ms'][kind]['p100']:g}")
        for kind in sorted(d["stall_ms"])
    ]  # fmt: skip
    same = sum(half["disk_is_memory"] for half in halves)
    return (
        f"{d['faults']} faults in {d['seconds']:g} s over {sum(half['downloads'] for half in halves)} downloads,"
        f" {sum(half['broken'] for half in halves)} broken; {same} of {len(halves)} stores equalled the leader's memory"
        " at the end. Seconds until the rack had recovered by itself, and the longest wait of a download, ms"
        " (rows: `bench/results/chaos.csv`):\n\n" + table(("fault", "recovered p50", "p100", "wait p50", "p100"), rows)
    )


def _stateless(d: Json) -> str:
    rates = [
        (
            f"{r['bytes']:,}",
            "highest" if r["rate"] is None else f"{r['rate']:,}",
            f"{r['per_second']:,.0f}",
            f"{r['per_second_other']:,.0f}",
            f"{r['core_us']:.1f}",
            f"{r['core_us_other']:.1f}",
            times(r["core_us_ratio"]),
        )
        for part in ("rates", "nginx")
        for r in d[part]["summary"]
    ]
    memory = [
        (
            r["kind"],
            f"{r['connections']:,}",
            f"{r['process_bytes_each']:.2f}",
            f"{r['kernel_bytes_each']:,.2f}",
            f"{r['slab_bytes'] / 1e6:+.1f}",
        )
        for r in d["memory"]["summary"]
    ]
    loss = [
        (
            f"{r['loss_percent']} %",
            r["kind"],
            f"{r['exact']:,} of {r['transfers']:,}",
            f"{r['mean_ms']:.1f}",
            f"{r['of_kernel']:.2f}",
            f"{r['p50_ms']:.0f}",
            f"{r['p99_ms']:.0f}",
        )
        for r in d["loss"]["summary"]
    ]
    floods = [
        (
            r["class"],
            f"{r['highest_per_second']:,.0f}",
            f"{r['attack_per_second']:,.0f}",
            f"{100 * r['kept']:.1f}",
            f"{r['replica_cpu_percent']:+.2f}",
        )
        for r in d["floods"]["summary"]
    ]
    dns = d["dns"]
    servers = [(kind, f"{r['per_second']:,.0f}", f"{r['core_us']:.1f}") for kind, r in dns["summary"].items()]
    kills = d["kills"]
    stalls = ", ".join(f"{name} {value} ms" for name, value in kills["request_ms"].items())
    own = len(d["rates"]["summary"])
    head = ("bytes", "offered requests/s", "requests/s", "other's", "core, us each", "other's", "ratio")
    return "\n\n".join(
        (
            f"{d['setting']}; {d['nginx_version']}. Medians of interleaved rounds.",
            "The same server, stateless and on the kernel's TCP:",
            table(head, rates[:own]),
            "Beside nginx, a new connection for each request:",
            table(head, rates[own:]),
            "Open, idle connections:",
            table(("server", "connections", "process, bytes each", "kernel, bytes each", "all slabs, MB"), memory),
            f"{d['loss']['bytes']:,} bytes at {d['loss']['rtt_ms']:g} ms, packets lost each way, the kernel's clients:",
            table(("loss", "server", "exact", "mean, ms", "of the kernel's", "p50", "p99"), loss),
            f"{kills['kills']:,} kills under {kills['requests']:,} requests: {kills['failed']} failed,"
            f" {kills['wrong']} with wrong bytes; time of a request {stalls}."
            " Rows: `bench/results/stateless-kills.csv`.",
            f"DNS over TCP, one query per connection: {dns['of_the_better']:.2f} of the better of the two. The"
            f" stateless server asks an nsd by UDP, on the same core; it grew by {dns['growth_bytes']:,} bytes.",
            table(("server", "queries/s", "core, us each"), servers),
            "Floods at half of the rate that the ToR can handle:",
            table(
                ("flood", "ToR, packets/s", "flood, packets/s", "good clients keep, %", "replicas, % of a core"), floods
            ),
        )
    )


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page for one bench."""

    name: str
    """Name of its JSON in bench/results, and of its make target."""
    title: str
    render: Callable[[Json], str]
    bars: Callable[[Json], Sequence[Bar]]


SECTIONS = (
    Section("soak", "Kills at random moments of downloads", _soak, soak.bars),
    Section("chaos", "Chaos: every part fails", _chaos, chaos.bars),
    Section("figure9", "Figure 9: aggregate throughput", _figure9, figure9.bars),
    Section("figure10", "Figure 10: small objects, one client", _figure10, figure10.bars),
    Section("figure11", "Figure 11: memory of the server", _figure11, lambda d: figure11.bars(d["runs"])),
    Section("figure12", "Figure 12: the server's processor time", _figure12, figure12.bars),
    Section("figure16", "Figure 16: what a kill costs", _figure16, figure16.bars),
    Section("figure17", "Figure 17: fairness", _figure17, figure17.bars),
    Section("host", "The hosts", _host, host.bars),
    Section("stateless", "Stateless TCP", _stateless, stateless.bars),
    Section("stateless-large", "Stateless TCP, large downloads", stateless_large.words, stateless_large.bars),
    Section("trods", "TRODS", trods_words, trods.bars),
    Section("trods-hangs", "TRODS: no download hangs", hangs_words, trods_hangs.bars),
    Section("cm", "The Congestion Manager", cm_words, cm.bars),
    Section("wide", "The wide area: Figures 13 to 15", wide.words, wide.bars),
    Section("switch", "The switch", _switch, lambda d: switch.bars(d["summary"])),
    Section("transport", "The transport", _transport, transport_bars),
)
PAGE = REPOSITORY / "docs" / "results.md"
STALE = "**Stale:**"

HEAD = """# Results

Written by `make results` from the JSON in `bench/results/`. Absolute figures are those of one small shared machine:
compare the ratios, and run the benches on your machine. Each section ends with its bars: the measured value, the
bound, and whether it was reached; "…, of nginx" is the ratio to nginx under the same load. A section marked stale was
measured before a change of the code that it measures. The simulator's figures are in [simulator.md](simulator.md),
those of the control plane in [control-plane.md](control-plane.md).
"""


def main() -> int:
    """Writes the page, or checks that stale sections are marked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a stale section is not marked")
    options = parser.parse_args()
    kept: dict[Section, Json] = {}
    for section in SECTIONS:
        path = RESULTS / f"{section.name}.json"
        if path.exists():
            kept[section] = json.loads(path.read_text())
    stale = {section.title: is_stale(section.name, data) for section, data in kept.items()}
    if options.check:
        missing = unmarked(PAGE, stale, STALE)
        for title in missing:
            print(f"docs/results.md: {title!r} is older than its code; `make results` marks it", file=sys.stderr)
        return 1 if missing else 0
    parts = [HEAD]
    if missing := [f"- {section.title} (`make bench-{section.name}`)" for section in SECTIONS if section not in kept]:
        parts.append("Not measured yet:\n\n" + "\n".join(missing) + "\n")
    parts.append(_missed({section.title: section.bars(data) for section, data in kept.items()}))
    for section, data in kept.items():
        mark = f" {STALE} what it measures has changed since." if stale[section.title] else ""
        head = f"`make bench-{section.name}`. {_machine(section.name, data)}.{mark}"
        text = [f"## {section.title}", head, section.render(data), _bars_table(section.bars(data))]
        if (RESULTS / f"{section.name}.png").exists():
            text.append(f"![{section.title}](../bench/results/{section.name}.png)")
        parts.append("\n\n".join(text) + "\n")
    PAGE.write_text("\n".join(parts))
    print(PAGE)
    return 0


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _bars_table(bars: Sequence[Bar]) -> str:
    rows = [
        (bar.what, _figure(bar.measured), f"{'≤' if bar.at_most else '≥'} {_figure(bar.wanted)}", _reached(bar))
        for bar in bars
    ]
    return table(("bar", "measured", "wanted", "reached"), rows) if rows else "No bar."


def _reached(bar: Bar) -> str:
    return "yes" if bar.reached else "**no**"


def _missed(bars: dict[str, Sequence[Bar]]) -> str:
    """The missed bars, by section."""
    missed = {title: [bar for bar in found if not bar.reached] for title, found in bars.items()}
    count, total = sum(map(len, missed.values())), sum(map(len, bars.values()))
    rows = [
        (title, bar.what, _figure(bar.measured), f"{'≤' if bar.at_most else '≥'} {_figure(bar.wanted)}")
        for title, found in missed.items()
        for bar in found
    ]
    return f"## Bars that are missed: {count} of {total}\n\n{table(('section', 'bar', 'measured', 'wanted'), rows)}\n"


def _machine(name: str, data: Json) -> str:
    """Date, processor and commit of the figures, and of parts that were measured again."""
    said = [_measured(data.get("machine", {}), measured_at(name, data))]
    said += [f"part `{part}`: {_measured(machine, '')}" for part, machine in data.get("again", {}).items()]
    return "; ".join(said)


def _measured(machine: Json, commit: str) -> str:
    words = [str(machine[key]) for key in ("date", "cpu", "kernel") if machine.get(key)]
    words.append(f"{machine.get('cores', '?')} cores")
    if found := machine.get("commit") or commit:
        words.append(f"commit {found}")
    if "load" in machine:
        words.append(f"load {machine['load']:.0f} from other work")
    return ", ".join(words)


if __name__ == "__main__":
    sys.exit(main())

"""The section of `make bench-trods` on the results page."""

from __future__ import annotations

from typing import Any

from .words import table, times

Json = dict[str, Any]


def trods_words(d: Json) -> str:
    """The text of the section."""
    cost, flood, crowd, kills = d["cost"], d["flood"]["summary"], d["crowd"], d["kills"]
    rates = [
        (
            f"{r['bytes']:,}",
            f"{r['nginx']['per_second']:,.0f}",
            f"{r['kv']['per_second']:,.0f}",
            times(r["ratio"]),
            *(f"{r[kind]['core_us']:.1f}" for kind in ("nginx", "kv")),
            *(f"{r[kind]['total_us']:.1f}" for kind in ("nginx", "kv")),
            ", ".join(f"{name.partition('-')[0]} {us:.1f}" for name, us in r["kv"]["processes_us"].items()),
            f"{100 * r['kv']['core_busy']:.0f}, {100 * r['kv']['other_busy']:.0f}",
        )
        for r in cost["rates"]["summary"]
    ]
    phases = [
        (
            phase.replace("_", " "),
            *(f"{cost['latency'][kind][phase][p]:.1f}" for kind in ("nginx", "kv") for p in ("p50_us", "p99_us")),
            f"{cost['latency']['kv'][phase]['p50_us'] - cost['latency']['nginx'][phase]['p50_us']:+.1f}",
        )
        for phase in cost["latency"]["kv"]
    ]
    stalls = [
        (
            r["kind"],
            f"{r['age_s']:g}",
            r["downloads"],
            *(f"{r[f'p{p}_ms']:,.0f}" for p in (50, 99, 100)),
            r["broken"] + r["wrong"],
            r["not_in_time"],
        )
        for r in d["stall"]["summary"]
    ]
    state = [(f"{s['connections']:,}", s["when"], sum(s["entries"].values())) for s in crowd["state"]]
    of_all = (
        ""
        if "longest_of" in kills
        else " (of unprotected ones too, which end when their client closes them after 120 s)"
    )
    longest = ", ".join(f"{name} {value:,.0f} ms" for name, value in kills["longest_of_a_kill_ms"].items())
    unprotected = ", ".join(f"{reason} {count:,}" for reason, count in kills["unprotected"].items()) or "none"
    problems = [(problem, count) for problem, count in kills["problems"].items()]
    lookups = sum(flood["lookups_alone"].values()) + flood["lookups"]
    part = d["stall"]
    stall = ", ".join(f"{name} {ms:,.0f} ms" for name, ms in crowd["active_stall_ms"].items())
    again = ", ".join(f"{part} on {m['date']} ({m['cpu']}, {m['kernel']})" for part, m in d.get("again", {}).items())
    return "\n\n".join(
        (
            *((f"Measured again, after changes: {again}.",) if again else ()),
            f"{d['nginx_version']}. Kills and stalls behind the embedded switch, with the store on a host of its own;"
            " cost and floods on one wire, past the switch, with the agent's lease from the ToR: nginx has a core;"
            " agent, store, ToR, controller and the load generator share the other. Medians of interleaved rounds.",
            "New connections, a request each (up to 14,000 bytes by clients without sockets, beyond by the kernel's);"
            " us a request of nginx's core, of both cores without the load's process, and of the processes:",
            table(
                (
                    *("bytes", "nginx alone, requests/s", "TRODS", "ratio", "nginx's core, us: alone", "TRODS"),
                    *("both cores, us: alone", "TRODS", "processes with TRODS, us", "cores busy, %"),
                ),
                rates,
            ),
            f"Without requests a core was busy {100 * cost['rates']['calm_busy']:.0f} % of the time at most.",
            f"{cost['bulk']['bytes'] // 1_000_000} MB with offloads: nginx alone {cost['bulk']['mbps']['nginx']:,.0f},"
            f" TRODS {cost['bulk']['mbps']['kv']:,.0f} Mb/s; {times(cost['bulk']['ratio'])} of it.",
            f"{cost['latency']['fetches']:,} serial fetches of {cost['latency']['bytes']:,} bytes from each, us:",
            table(("phase", "nginx alone, p50", "p99", "TRODS, p50", "p99", "p50 more"), phases),
            f"{flood['packets_per_second']:,.0f} spoofed ACKs a second, all that the generator sends: {lookups}"
            f" look-ups in the store. Under {flood['beside_good_per_second']:,.0f} a second good clients get"
            f" {flood['kv']['per_second']:,.0f} requests/s with TRODS and {flood['nginx']['per_second']:,.0f} of nginx"
            f" alone ({times(flood['kept'])}).",
            f"Stalls of downloads when their replica's link is cut, with a bound of {part['bound_ms']:g} ms and a round"
            f" trip of {part['rtt_ms']:g} ms. `reconnect` is curl on the kernel's TCP, which gives up a connection by"
            f" `--speed-time {part['silent_s']}` (it averages over seconds) and requests the rest;"
            f" {part['needless_exclusions']} exclusions of live replicas:",
            table(
                ("case", "request's age, s", "downloads", "p50, ms", "p99", "longest", "broken", "not on in time"),
                stalls,
            ),
            f"Three of four replicas die under {crowd['active']} downloads and {crowd['idle']:,} idle connections"
            f" (bound {crowd['bound_ms']:g} ms): of the {crowd['active_hit']} downloads that they had"
            f" {crowd['active_broken'] + crowd['active_not_on']} did not continue, stalls {stall}; of"
            f" {crowd['idle_asked']:,} idle ones with another request {crowd['idle_answered']:,} were answered."
            " The ToR's entries:",
            table(("connections", "when", "entries"), state),
            f"{kills['kills']:,} kills ({', '.join(f'{how} {n}' for how, n in kills['by_harm'].items())}) of"
            f" {kills['replicas']} replicas with a bound of {kills['bound_ms']:g} ms, under {kills['connections']:,}"
            f" connections with {kills['answers']:,} answers and {kills['gigabytes']:,.1f} GB: {kills['hit']:,} times"
            f" an open connection lost its replica, {kills['broken']} connections broke, {kills['wrong']} had wrong"
            f" bytes; {kills['needless_exclusions']} exclusions of live replicas. Unprotected: {unprotected}."
            f" Longest gap of a connection that a kill hit{of_all}: {longest}."
            " Rows: `bench/results/trods-kills.csv`.",
            *((table(("how they broke", "connections"), problems),) if problems else ()),
        )
    )


def hangs_words(d: Json) -> str:
    """The results of the downloads of each battery."""
    rows = [
        (
            row["clients"],
            ", ".join(f"{how} {count}" for how, count in sorted(row["by_harm"].items())),
            row["downloads"],
            row["hung"],
            f"{row['silent']} of {row['looked_at']}",
            row["broken_protected"],
            row["lost_with_store"],
            row["wrong"],
        )
        for row in d["batteries"]
    ]
    heads = ("clients", "kills", "downloads", "hung", "silent, of connections looked at", "protected that broke")
    return (
        "Kills of agents, servers, both, links, whole replicas (freeze) and the store, each back within seconds. The"
        " second but last column counts connections whose replica was killed while the killed store was away. Rows:"
        " `bench/results/trods-hangs.csv`.\n\n" + table((*heads, "lost with the store", "wrong bytes"), rows)
    )

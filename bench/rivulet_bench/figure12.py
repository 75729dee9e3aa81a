"""Figure 12: use of the server's processor time while one connection fills a link of 1 Gb/s.

Rivulet without soft state (each request is verified and its state computed again, as in the paper's figure), and
kernel TCP (Reno, nginx). The server's core is sampled; the name of a symbol decides for its kind of work.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from matplotlib import pyplot

from .bars import Bar, judge
from .host_rig import SERVER_CORE, HostRig, Transport, host_rig, shaped
from .plot import LABELS
from .profile import IDLE, ORDER, shares, start
from .rig import finish, flags, plot_path
from .stats import Json, interval, save

RATE_MBIT = 1000.0
OF_TCP = 0.95
"""Bound of the rate of one connection on one core, relative to kernel TCP."""
TRANSPORTS: tuple[Transport, ...] = ("rivulet", "tcp")
COLOURS = ("#b23a48", "#0b6e4f", "#7fb8a4", "#e0b04a", "#4a6fa5", "#999999")


def bars(result: Json) -> list[Bar]:
    """The rate of one connection on one core, relative to kernel TCP in the same run."""
    mbps = {row["transport"]: row["mbps"] for row in result["summary"]}
    return [Bar("Mb/s of one connection, of kernel TCP", mbps["rivulet"] / mbps["tcp"], OF_TCP)]


def sample(rig: HostRig, transport: Transport, seconds: float) -> Json:
    """One transfer; the server's core is sampled in its middle."""
    path = rig.put(round(RATE_MBIT * 1e6 / 8 * (seconds + 1.0)))
    data = rig.folder / "server.perf"
    server = rig.servers["rivulet" if transport == "rivulet" else "nginx"]
    load = rig.start_load(transport, path, clients=1, requests=1, seconds=60)
    time.sleep(0.4)
    popen = start(SERVER_CORE, seconds, data)
    found = shares(popen, data, server.processes())
    result = finish(load)
    if result["errors"]:
        raise RuntimeError(f"{transport}: {result['first_error']}")
    return {"transport": transport, "mbps": result["mbps"], "percent": found}


def main() -> int:
    """Runs the bench and writes bench/results/figure12.json and .png."""
    parser = flags(__doc__ or "")
    parser.set_defaults(seconds=2.0)
    options = parser.parse_args()
    rows: list[Json] = []
    with host_rig("figure12") as rig:
        shaped(rig, "s", "s0", RATE_MBIT)
        shaped(rig, "c", "c0", RATE_MBIT)
        rig.put(round(RATE_MBIT * 1e6 / 8 * (options.seconds + 1.0)))
        rig.start_nginx()
        rig.start_rivulet()
        for repetition in range(options.repetitions):
            for transport in TRANSPORTS:
                row = sample(rig, transport, options.seconds)
                rows.append({"repetition": repetition, **row})
                busy = 100 - row["percent"].get(IDLE, 0.0)
                print(f"{transport:8} {row['mbps']:7.1f} Mb/s, core {busy:5.1f} % busy", flush=True)
    summary: list[Json] = []
    for transport in TRANSPORTS:
        mine = [r for r in rows if r["transport"] == transport]
        mbps, mbps_half = interval([r["mbps"] for r in mine])
        parts = []
        for name in ORDER:
            mean, half = interval([r["percent"].get(name, 0.0) for r in mine])
            parts.append({"work": name, "percent": mean, "half_95": half})
        busy, busy_half = interval([100 - r["percent"].get(IDLE, 0.0) for r in mine])
        summary.append(
            {
                "transport": transport,
                "mbps": mbps,
                "mbps_half_95": mbps_half,
                "busy_percent": busy,
                "busy_half_95": busy_half,
                "parts": parts,
            }
        )
    title = "The server's core at 1 Gb/s, one connection"
    plot(plot_path("figure12"), summary, title)
    result = {"setting": f"{title}, no soft state", "summary": summary, "runs": rows}
    print(save("figure12", result))
    return judge(bars(result))


def plot(path: Path, summary: list[Json], title: str) -> None:
    """A stacked bar for each transport."""
    figure, axis = pyplot.subplots(figsize=(8, 3.2))
    names = [f"{LABELS[r['transport']]}\n{r['mbps']:.0f} Mb/s" for r in summary]
    left = [0.0] * len(summary)
    for i, name in enumerate(ORDER):
        values = [r["parts"][i]["percent"] for r in summary]
        axis.barh(names, values, left=left, label=name, color=COLOURS[i], height=0.55)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axis.errorbar(
        [r["busy_percent"] for r in summary],
        range(len(summary)),
        xerr=[r["busy_half_95"] for r in summary],
        fmt="none",
        ecolor="#333333",
        capsize=3,
        linewidth=0.9,
    )
    axis.set_xlim(0, 100)
    axis.invert_yaxis()
    axis.set_xlabel("% of one core")
    axis.set_title(title, loc="left", fontsize=11)
    axis.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.45, -0.22))
    for spine in ("top", "right"):
        axis.spines[spine].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())

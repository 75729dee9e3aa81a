"""`rivuletctl`: shows the rack's status and changes it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer.completion import completion_init  # type: ignore[attr-defined]

from .client import ApiError, Client, default_address, leading
from .config import ConfigError
from .drain_progress import progress
from .private_file import require_private
from .rack_file import load

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Show the status of a Rivulet rack and change it.")
keys_app = typer.Typer(no_args_is_help=True, help="Keys of services.")
app.add_typer(keys_app, name="keys")
console = Console()
errors = Console(stderr=True)
PIPE_COLUMNS = 100_000
"""Width of tables that do not go to a terminal: programs read whole lines."""

STYLES = {
    "live": "green",
    "draining": "cyan",
    "maintenance": "cyan",
    "excluded": "bold red",
    "unready": "red",
    "silent": "red",
    "mute": "bold red",
    "unknown": "yellow",
}
WAIT_S = 0.2
"""Pause between two requests while waiting for a drain; agents report ten times a second."""
BARS = " ▁▂▃▄▅▆▇█"
BAD = ("EXCLUDED", "NO_REPLICA", "MUTE", "LEFT_OUT", "OTHER_CONTENT")
"""Kinds of events shown in red."""

AsJson = Annotated[bool, typer.Option("--json", help="print the API's response as JSON")]
File = Annotated[Path, typer.Argument(help="the rack's configuration (YAML)")]
Replica = Annotated[str, typer.Argument(help="name of the replica")]
_options: dict[str, str] = {}


@app.callback()
def options(
    api: Annotated[
        str, typer.Option(help="address of the controller, unix:PATH or HOST:PORT; several with commas (RIVULET_API)")
    ] = "",
    token_file: Annotated[str, typer.Option(help="file with the token (RIVULET_TOKEN_FILE)")] = "",
    authority: Annotated[
        str,
        typer.Option(help="certificate of the authority that signed the controller's, for https (RIVULET_AUTHORITY)"),
    ] = "",
) -> None:
    """Options of all commands."""
    _options["api"] = api or default_address()
    _options["authority"] = authority or os.environ.get("RIVULET_AUTHORITY", "")
    _options["token_file"] = token_file or os.environ.get("RIVULET_TOKEN_FILE", "")


def _client() -> Client:
    token = ""
    if _options.get("token_file"):
        path = Path(_options["token_file"])
        require_private(path)
        token = path.read_text().strip().rpartition(":")[2]
    return leading(_options.get("api") or default_address(), token, authority=_options.get("authority", ""))


@app.command()
def check(file: File) -> None:
    """Check a configuration file; prints mistakes with line and field. Needs no controller."""
    config = load(file)
    console.print(
        f"{file}: {len(config.switches)} switches, {len(config.replicas)} replicas, {len(config.services)} services",
        highlight=False,
    )


@app.command()
def plan(file: File, as_json: AsJson = False) -> None:
    """Show what a configuration would change on the switches; changes nothing."""
    load(file)
    changes = _client().post("/api/plan", text=file.read_text(encoding="utf-8"))
    if as_json:
        return _json(changes)
    for switch, lines in changes.items():
        console.print(f"[bold]{switch}[/bold]: {len(lines)} writes")
        for line in lines:
            style = {"+": "green", "~": "yellow", "-": "red"}.get(line[0], "")
            console.print(Text(f"  {line}", style=style), soft_wrap=True)


@app.command()
def apply(file: File) -> None:
    """Put a configuration in force, as a whole, until the file on the controller's machine changes."""
    load(file)
    _client().post("/api/apply", text=file.read_text(encoding="utf-8"))
    console.print("in force")


@app.command()
def config() -> None:
    """Print the configuration in force, from the file or from `apply`."""
    print(_client().text("/api/config"), end="")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show the switches and replicas. Exit code 1 if anything is not as configured."""
    found = _client().get("/api/status")
    if as_json:
        _json(found)
    else:
        _show(_switches(found), _replicas(found), *_trods(found), *_tls(found))
    if found["config_problem"]:
        errors.print(Text(f"the newest configuration is not in force:\n{found['config_problem']}", style="red"))
    for problem in found.get("problems", []):
        errors.print(Text(problem, style="red"))
    if found["config_problem"] or found.get("problems") or any(s["problem"] for s in found["switches"]):
        raise typer.Exit(1)


@app.command()
def services(as_json: AsJson = False) -> None:
    """Show the services, their keys and the outcomes of their packets."""
    found = _client().get("/api/services")
    _json(found) if as_json else _show(_services(found))


@app.command()
def replicas(as_json: AsJson = False) -> None:
    """Show the replicas' states with the reasons."""
    found = _client().get("/api/replicas")
    _json(found) if as_json else _show(
        _replicas({"replicas": found}), *_trods({"replicas": found}), *_tls({"replicas": found})
    )


@app.command()
def replica(name: Replica, as_json: AsJson = False) -> None:
    """Show one replica: location, last exclusion and history of states."""
    found = _client().get(f"/api/replicas/{name}")
    if as_json:
        return _json(found)
    _show(_replicas({"replicas": [found]}), *_trods({"replicas": [found]}), *_tls({"replicas": [found]}))
    last = found["last_exclusion"]
    if last is None:
        console.print("\nnot excluded since the controller started")
    else:
        console.print(Text(f"\nlast excluded {_clock(last['time'])} by {last['by']}: {last['why']}"), soft_wrap=True)
    for entered in found["states"]:
        state = Text(f"{_clock(entered['time'])} {entered['state']}", style=STYLES.get(entered["state"], ""))
        console.print(state.append(f" {entered['reason']}", style="default"), soft_wrap=True)


@app.command()
def drain(
    replica: Replica,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask first")] = False,
    wait: Annotated[
        float | None,
        typer.Option(help="wait up to this many seconds for connections to move; exit code 1 if some have not"),
    ] = None,
) -> None:
    """Move new flows and connections under TRODS to other replicas; other connections continue.
    Undo with `undrain`.
    """
    if not yes:
        typer.confirm(f"Drain {replica}? New flows go to the other replicas", abort=True)
    _client().post(f"/api/replicas/{replica}/drain")
    console.print(f"{replica} drains")
    if wait is not None and not _moved(replica, wait):
        raise typer.Exit(1)


def _moved(replica: str, patience_s: float) -> bool:
    """Shows the progress of a drain until it is done or time is up; True if done."""
    ends, before = time.monotonic() + patience_s, ""
    while True:
        found = _client().get(f"/api/replicas/{replica}")
        so_far = progress(found)
        if so_far.words != before:
            console.print(f"{replica}: {so_far.words}")
            before = so_far.words
        if so_far.done or time.monotonic() >= ends:
            return so_far.done
        time.sleep(WAIT_S)


@app.command()
def undrain(replica: Replica) -> None:
    """Let a drained replica take its share again."""
    _client().post(f"/api/replicas/{replica}/undrain")
    console.print(f"{replica} takes its share again")


@app.command()
def weight(replica: Replica, value: Annotated[str, typer.Argument(help="0 to 256, or `default` (the file's)")]) -> None:
    """Change a replica's share."""
    if value != "default" and not (value.isdigit() and int(value) <= 256):
        raise typer.BadParameter(f"{value!r} is neither `default` nor a number from 0 to 256")
    _client().post(f"/api/replicas/{replica}/weight", {"weight": None if value == "default" else int(value)})
    console.print(f"{replica}: weight {value}")


@keys_app.command()
def rotate(
    service: Annotated[str, typer.Argument(help="name of the service")],
    kind: Annotated[
        str,
        typer.Option(
            help="seal, nonce, both, cookie (of stateless TCP), ticket (of TLS), or tor (shared by replicas and ToRs)"
        ),
    ] = "both",
) -> None:
    """Create new keys; replicas accept the old ones as long as they are needed."""
    kinds = {"both": ["seal", "nonce"]}.get(kind, [kind])
    if kind not in ("both", "seal", "nonce", "cookie", "ticket", "tor"):
        raise typer.BadParameter("--kind is seal, nonce, both, cookie, ticket or tor")
    _client().post(f"/api/services/{service}/rotate", {"kinds": kinds})
    console.print(f"{service}: new {' and '.join(kinds)} keys are being distributed")


@app.command()
def entries(
    switch: Annotated[str, typer.Argument(help="name of the switch")],
    match: Annotated[str, typer.Option(help="only entries that contain this text")] = "",
    as_json: AsJson = False,
) -> None:
    """Print a switch's entries, one a line. Keys are not shown."""
    lines = [line for line in _client().get(f"/api/switches/{switch}/entries") if match in line]
    if as_json:
        return _json(lines)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


@app.command()
def trace(
    switch: Annotated[str, typer.Argument(help="name of the switch")],
    address: Annotated[str, typer.Argument(help="destination address")],
    port: Annotated[int, typer.Argument(help="destination port")],
    plain: Annotated[bool, typer.Option(help="plain TCP instead of a Rivulet request")] = False,
    client: Annotated[
        str, typer.Option(help="ADDRESS:PORT of a plain segment: shows how a stateless service handles it")
    ] = "",
    ack: Annotated[int, typer.Option(min=0, max=0xFFFF_FFFF, help="its acknowledgement number on the wire")] = 0,
    tsecr: Annotated[int, typer.Option(min=-1, max=0xFFFF_FFFF, help="its echoed timestamp; -1: no timestamps")] = -1,
    data: Annotated[bool, typer.Option(help="it carries data or FIN")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a packet's path through a switch's tables, and why it is forwarded or dropped."""
    query: dict[str, str | int | bool] = {"address": address, "port": port, "rivulet": not (plain or client)}
    if client:
        host, _, number = client.rpartition(":")
        if not host or not number.isdigit():
            raise typer.BadParameter("--client is ADDRESS:PORT; an IPv6 address in brackets")
        query |= {"client": host.strip("[]"), "client_port": int(number), "ack": ack, "data": data}
        query |= {"tsecr": tsecr} if tsecr >= 0 else {}
    steps = _client().get(f"/api/switches/{switch}/trace", **query)
    if as_json:
        return _json(steps)
    for step in steps:
        console.print(Text(step["table"], style="bold"), Text(step["row"] or "—"), soft_wrap=True)
        if step["meaning"]:
            style = "red" if "dropped" in step["meaning"] else "cyan"
            console.print(Text(f"    {step['meaning']}", style=style), soft_wrap=True)


@app.command()
def watch(as_json: AsJson = False) -> None:
    """Print events as they occur: exclusions, returns, failed checks. With --json, one JSON object
    a line.
    """

    async def follow() -> None:
        last = time.time()
        async for found in _client().live():
            for event in found["events"]:
                if event["time"] > last:
                    last = event["time"]
                    if as_json:
                        print(json.dumps(event), flush=True)
                    else:
                        console.print(_event(event), soft_wrap=True)

    asyncio.run(follow())


@app.command()
def top() -> None:
    """Show a live view of the rack; Ctrl-C ends it."""

    async def follow() -> None:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            async for found in _client().live():
                events = Group(*(_event(event) for event in found["events"][-8:]))
                group = Group(_switches(found), _replicas(found), *_trods(found), *_tls(found), _history(found), events)
                live.update(group, refresh=True)

    asyncio.run(follow())


def _json(found: Any) -> None:
    """Prints the API's response."""
    print(json.dumps(found, indent=2, ensure_ascii=False))


def _show(*tables: Table) -> None:
    """Prints tables as wide as the terminal, or in full width if there is none."""
    if console.is_terminal:
        console.print(*tables)
        return
    wide = Console(file=console.file, width=PIPE_COLUMNS, no_color=True, highlight=False)
    for table in tables:
        # Drops the spaces that pad lines.
        with wide.capture() as captured:
            wide.print(table)
        for line in captured.get().splitlines():
            print(line.rstrip(), file=console.file)


def _switches(found: dict[str, Any]) -> Table:
    table = Table("switch", "state", "ToR", "entries", "drops/s", box=None, title="Switches", title_justify="left")
    for switch in found["switches"]:
        good = switch["connected"] and not switch["problem"]
        state = "as described" if good else switch["problem"] or "not connected"
        if good and not switch["clock_valid"]:
            state += ", clock not set yet"
        missing = [n["ip"] for n in switch["neighbours"] if n["state"] != "found"]
        if good and missing:
            state += f", no reply from {', '.join(missing)}"
        drops = ", ".join(f"{reason} {rate:.0f}" for reason, rate in switch["drops_per_s"].items())
        table.add_row(
            switch["name"], Text(state, style="green" if good else "red"), f"{switch['tor_id']:#06x}",
            str(switch["entries"]), drops or "0",
        )  # fmt: skip
    return table


def _replicas(found: dict[str, Any]) -> Table:
    columns = ("replica", "switch", "state", "weight", "requests/s", "heartbeats/s", "load", "excluded", "reason")
    table = Table(*columns, box=None, title="Replicas", title_justify="left")
    for replica in found["replicas"]:
        shown = Text(replica["state"], style=STYLES.get(replica["state"], ""))
        if replica["draining"] and replica["state"] != "draining":
            shown.append(" draining", style=STYLES["draining"])
        if replica["other_content"]:
            shown.append(" other content", style=STYLES["excluded"])
        table.add_row(
            replica["name"], replica["switch"], shown, str(replica["weight"]), f"{replica['requests_per_s']:.0f}",
            f"{replica['heartbeats_per_s']:.0f}", str(replica["load"]), str(replica["exclusions"]), replica["reason"],
        )  # fmt: skip
    return table


def _trods(found: dict[str, Any]) -> list[Table]:
    """Counts of TRODS connections, if any replica reports them."""
    reports = {replica["name"]: replica["trods"] for replica in found["replicas"] if replica["trods"] is not None}
    if not reports:
        return []
    columns = ("replica", "protected", "adopted", "trusted", "moved", "outside window", "refused", "unprotected")
    table = Table(*columns, box=None, title="TRODS, connections", title_justify="left")
    for name, counts in reports.items():
        refused, unprotected = (
            ", ".join(f"{reason} {count}" for reason, count in sorted(counts[kind].items())) or "0"
            for kind in ("refusals", "unprotected")
        )
        fates = ("protected", "adopted", "trusted", "moved", "outside")
        table.add_row(name, *(str(counts[fate]) for fate in fates), refused, unprotected)
    return [table]


def _tls(found: dict[str, Any]) -> list[Table]:
    """Status of TLS, if any replica has a service with it."""
    rows = [(replica["name"], *item) for replica in found["replicas"] for item in replica["tls"].items()]
    if not rows:
        return []
    columns = ("replica", "service", "protected", "adopted", "in handshake", "handshakes", "resumed", "ticket key")
    table = Table(*columns, "unprotected", "error", box=None, title="TLS, connections", title_justify="left")
    for replica, service, status in rows:
        numbers = (str(status[name]) for name in ("protected", "adopted", "in_handshake", "handshakes", "resumed"))
        unprotected = ", ".join(f"{reason} {count}" for reason, count in sorted(status["unprotected"].items())) or "0"
        error = Text(status["error"] or "—", style=STYLES["excluded"] if status["error"] else "")
        table.add_row(replica, service, *numbers, str(status["ticket_epoch"] or "—"), unprotected, error)
    return [table]


def _services(found: list[dict[str, Any]]) -> Table:
    columns = ("service", "address", "policy", "plain", "slots", "seal key", "nonce key", "cookie key", "packets")
    table = Table(*columns, box=None)
    for service in found:
        where = ", ".join(service["addresses"]) + f" port {service['port']}"
        became = ", ".join(f"{outcome.lower()} {count}" for outcome, count in sorted(service["outcomes"].items()))
        stateless = "stateless" in service["plain"]
        epochs = [_key(service["keys"][kind]) for kind in ("seal", "nonce")]
        epochs.append(_key(service["keys"]["cookie"]) if stateless else "—")
        row = (service["name"], where, service["policy"], _plain(service), str(service["slots"]), *epochs, became)
        table.add_row(*row)
    return table


def _plain(service: dict[str, Any]) -> str:
    """The mode of plain TCP, with its affinity if by client, and its content if replicas differ or
    a change is pending.
    """
    content = service["content"]
    plain = f"{service['plain']}, by client" if service["affinity"] == "client" else str(service["plain"])
    if content is None or not (content["others"] or content["following"] or not content["version"]):
        return plain
    others = f", other content at {', '.join(content['others'])}" if content["others"] else ""
    return f"{plain}, content {content['words']}{others}"


def _key(key: dict[str, Any]) -> str:
    """A key's epoch, its age, and when its successor comes."""
    if not key["usable"]:
        return "—"
    coming = f"{key['pending']} being distributed" if key["pending"] else f"next in {_duration(key['rotates_in_s'])}"
    return f"{key['usable']}, {_duration(key['age_s'])} old, {coming}"


def _duration(seconds: float) -> str:
    """A duration in the unit that the page uses."""
    for unit, length, most in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172800)):
        if seconds < most:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _history(found: dict[str, Any]) -> Text:
    rates = [second["requests"] for second in found["history"]][-100:]
    peak = max(rates, default=0.0)
    line = "".join(BARS[round(rate / peak * (len(BARS) - 1))] for rate in rates) if peak else ""
    return Text(f"\nrequests/s (peak {peak:.0f})  {line}\n")


def _event(event: dict[str, Any]) -> Text:
    clock = f"{_clock(event['time'])}.{int(event['time'] % 1 * 1000):03d}"
    if event["kind"] == "OPERATOR":
        parts = (f"{event['who']}:", event["what"], event["replica"], event["details"])
        return Text(" ".join((clock, *filter(None, parts))), style="cyan")
    words = " ".join(filter(None, (clock, event["switch"], event["kind"].lower().replace("_", " "))))
    words += f" {event['replica']}" if event["replica"] else ""
    words += f" ({event['reason'].lower()})" if event["reason"] else ""
    words += f", {event['lost_before']} events before it were lost" if event["lost_before"] else ""
    return Text(words, style="red" if event["kind"] in BAD else "")


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 refused or not as configured, 2 wrong usage."""
    # Answers the shells' completion scripts; `add_completion` would add options that write into the user's files.
    completion_init()
    try:
        app(prog_name="rivuletctl")
    except (ConfigError, ApiError, OSError) as error:
        errors.print(Text(str(error), style="red"), soft_wrap=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()

"""Each client gets the picture with its own address in it, while the replicas that send it are killed.

Two clients of Rivulet download one JPEG. Replicas mark it while they send it and keep nothing about a client, so a
download continues after each kill with the same mark. Afterwards each client downloads the picture again without kills:
both copies must be equal, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image, ImageChops, ImageFilter

from rivulet_lab import Process, binary

from ...scenario import Parameters, Standing, console, standing_rack
from ...services import url

WORDS = __doc__ or ""

CLIENTS = ("c1", "c2")
WIDTH, HEIGHT = 4000, 3000
RATE_MBIT = 20.0
"""Slow enough for several kills in a download."""
PATIENCE_S = 120.0
KILL_INTERVAL_S = 0.7
"""Longer than a replica needs to start, so that others serve meanwhile."""


def draw(path: Path) -> None:
    """Draws a landscape with grain, some megabytes of JPEG."""
    chance = random.Random(7)
    soft = Image.frombytes("RGB", (16, 12), chance.randbytes(16 * 12 * 3)).resize((WIDTH, HEIGHT))
    grain = Image.frombytes("L", (WIDTH, HEIGHT), chance.randbytes(WIDTH * HEIGHT)).filter(ImageFilter.BLUR)
    sky = Image.blend(soft, Image.new("RGB", soft.size, "#9fc4da"), 0.55)
    Image.blend(sky, Image.merge("RGB", (grain,) * 3), 0.25).save(path, "JPEG", quality=90)


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if every download with kills equals the one without, and the clients' differ."""
    www, folder = values.out / "pictures", values.out / "watermark"
    www.mkdir(parents=True, exist_ok=True)
    draw(www / "picture.jpg")
    rate = min(values.rate_mbit, RATE_MBIT)
    with standing_rack("watermark", values, serve=("--watermark",), www=www, rate_mbit=rate) as standing:
        killed = download(standing, folder, "killed", kills=True)
        alone = download(standing, folder, "alone", kills=False)
        deaths = sum(1 for _, action, _ in standing.marks if action == "kill")
    rows = []
    for client in CLIENTS:
        first, second = (folder / f"{client}-{kind}.jpg" for kind in ("killed", "alone"))
        same = first.read_bytes() == second.read_bytes()
        report = killed[client]
        rows.append({"client": client, "equal": same, "killed": report, "alone": alone[client]})
        console.print(
            f"{client}: {report['bytes']:,} bytes under {deaths} kills, longest gap {report['longest_gap_ms']:.0f} ms;"
            f" {'equal byte for byte to' if same else 'DIFFERENT from'} the download without kills"
        )
    pictures = [folder / f"{client}-killed.jpg" for client in CLIENTS]
    differ = pictures[0].read_bytes() != pictures[1].read_bytes()
    show(www / "picture.jpg", pictures, folder / "watermark.png")
    data = {"scenario": "watermark", "kills": deaths, "clients": rows, "pictures_differ": differ}
    (folder / "watermark.json").write_text(json.dumps(data, indent=1))
    console.print(f"picture: {folder / 'watermark.png'}", soft_wrap=True)
    return 0 if differ and deaths and all(row["equal"] for row in rows) else 1


def download(standing: Standing, folder: Path, kind: str, kills: bool) -> dict[str, dict[str, float]]:
    """Downloads of all clients at once; returns their reports."""
    processes: dict[str, tuple[Process, Path]] = {}
    for client in CLIENTS:
        out, report = folder / f"{client}-{kind}.jpg", folder / f"{client}-{kind}.json"
        out.unlink(missing_ok=True)
        command = [binary("rivulet"), "get", "--json", "-o", str(out), url("picture.jpg")]
        with report.open("wb") as stdout:
            process = standing.rack.start(f"{client}-{kind}", command, standing.rack.spaces[client], stdout=stdout)
        processes[client] = process, report
    names, end = standing.replicas.alive(), time.monotonic() + PATIENCE_S
    victims = iter(names * 100)
    while any(process.running() for process, _ in processes.values()):
        time.sleep(KILL_INTERVAL_S if kills else 0.1)
        if time.monotonic() > end:
            raise TimeoutError(f"downloads still run after {PATIENCE_S:g} s")
        if kills and len(standing.replicas.alive()) == len(names):
            victim = next(victims)
            standing.marks.append((standing.replicas.kill(victim), "kill", victim))
            standing.replicas.start(victim)
    return {client: json.loads(report.read_text()) for client, (_, report) in processes.items()}


def show(original: Path, marked: list[Path], path: Path) -> None:
    """Draws the upper left corners of the clients' pictures, and where they differ from the original."""
    box = (0, 0, 640, 420)
    corner = Image.open(original).convert("RGB").crop(box)
    figure = Figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplots(len(marked), 2)
    for row, (picture, client) in enumerate(zip(marked, CLIENTS, strict=True)):
        got = Image.open(picture).convert("RGB").crop(box)
        change = ImageChops.difference(got, corner).convert("L").point(lambda value: min(255, value * 5))
        columns = ((got, f"what {client} got"), (change, "difference from the original"))
        for column, (image, title) in enumerate(columns):
            axes[row][column].imshow(image, cmap="gray")
            axes[row][column].set_title(title)
            axes[row][column].axis("off")
    figure.savefig(path, dpi=80)

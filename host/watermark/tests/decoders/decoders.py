"""Makes JPEGs with Pillow, and compares originals with marked ones pixel by pixel in each of several decoders.

decoders.py make DIR writes the originals. decoders.py compare DIR NAME... compares DIR/NAME.jpg with
DIR/NAME.marked.jpg: all pixels but those of the 8 by 8 blocks whose corners are in DIR/NAME.json are equal, and
those blocks differ. Prints for each decoder how many pictures it compared.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageChops, ImageFile

ImageFile.MAXBLOCK = 1 << 20
"""Pillow fails to save some small pictures with its own buffer size."""
SIZES = ((24, 40), (131, 97), (333, 250))
EXTRAS: tuple[dict[str, object], ...] = (
    {},
    {"optimize": True},
    {"restart_marker_blocks": 1},
    {"restart_marker_rows": 1, "optimize": True},
)


def make(folder: Path) -> None:
    """Noise on a gradient, grey and in colour, with every kind of sampling and restart."""
    for width, height in SIZES:
        noise = Image.effect_noise((width, height), 60)
        gradient = Image.linear_gradient("L").resize((width, height))
        grey = Image.blend(noise, gradient, 0.6)
        colour = Image.merge("RGB", (grey, gradient, noise))
        for name, picture, sampling in (
            ("grey", grey, None),
            ("444", colour, "4:4:4"),
            ("422", colour, "4:2:2"),
            ("420", colour, "4:2:0"),
        ):
            for number, extra in enumerate(EXTRAS):
                quality = (30, 95, 75, 90)[number]
                path = folder / f"{name}-{width}-{number}.jpg"
                options = {"subsampling": sampling} if sampling else {}
                picture.save(path, quality=quality, **options, **extra)


def by_pillow(path: Path) -> Image.Image | None:
    """libjpeg-turbo."""
    return Image.open(path).convert("RGB")


def by_ffmpeg(path: Path) -> Image.Image | None:
    """Its own decoder."""
    command = ["ffmpeg", "-v", "error", "-xerror", "-i", str(path), "-f", "image2pipe", "-c:v", "ppm", "-"]
    done = subprocess.run(command, capture_output=True)
    return Image.open(io.BytesIO(done.stdout)).convert("RGB") if done.returncode == 0 and not done.stderr else None


def by_go(path: Path) -> Image.Image | None:
    """image/jpeg: the planes as they are."""
    planes = path.with_name(path.name + ".go")
    if not planes.exists():
        return None
    with Image.open(path) as picture:
        return Image.frombytes("RGB", picture.size, planes.read_bytes())


def compare(folder: Path, names: list[str]) -> None:
    decoders: dict[str, Callable[[Path], Image.Image | None]] = {"pillow": by_pillow}
    if shutil.which("ffmpeg"):
        decoders["ffmpeg"] = by_ffmpeg
    if go := shutil.which("go"):
        program = Path(__file__).with_name("decode.go")
        files = [str(folder / f"{name}{kind}.jpg") for name in names for kind in ("", ".marked")]
        subprocess.run([go, "run", program, *files], check=True, capture_output=True)
        decoders["go"] = by_go
    counts = dict.fromkeys(decoders, 0)
    for name in names:
        blocks = json.loads((folder / f"{name}.json").read_text())
        for decoder, decode in decoders.items():
            original, marked = (decode(folder / f"{name}{kind}.jpg") for kind in ("", ".marked"))
            if original is None:
                continue
            if marked is None:
                sys.exit(f"{name}: {decoder} decodes the original and not the marked one")
            red, green, blue = ImageChops.difference(original, marked).split()
            # Not a mean, in which a difference of one step would vanish.
            differs = ImageChops.lighter(ImageChops.lighter(red, green), blue)
            for x, y in blocks:
                box = (x, y, x + 8, y + 8)
                if differs.crop(box).getbbox() is None:
                    sys.exit(f"{name}: {decoder} shows no mark at {x},{y}")
                differs.paste(0, box)
            if outside := differs.getbbox():
                sys.exit(f"{name}: {decoder} shows another pixel outside of the mark, within {outside}")
            counts[decoder] += 1
    print(json.dumps(counts))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        compare(Path(sys.argv[2]), sys.argv[3:])

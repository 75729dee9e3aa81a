#!/usr/bin/env python3
"""Unpacks the P4Runtime .proto files from their package into a folder.

    fetch_protos.py DESTINATION

`protos.txt` in this folder names the package and pins it by hash; pip (or uv, if there is no pip) downloads and
verifies it from the configured index. The script neither runs nor installs the package: the wheel is a zip file, and
the script extracts only its .proto files. It does nothing if the destination is complete.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "protos.txt"
# Inside the wheel; the imports in the .proto files are relative to this folder.
ROOT = "finsy/proto/"
WANTED = (
    "p4/v1/p4runtime.proto",
    "p4/v1/p4data.proto",
    "p4/config/v1/p4info.proto",
    "p4/config/v1/p4types.proto",
    "google/rpc/status.proto",
    "google/rpc/code.proto",
)
STAMP = ".complete"


def commands(into: Path) -> list[list[str]]:
    """The ways to download a wheel by hash, most common first."""
    pip = [
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--require-hashes",
        "--ignore-requires-python",
        "--dest",
        str(into),
        "--requirement",
        str(REQUIREMENTS),
    ]
    ways = [[sys.executable, "-m", "pip", *pip]]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            ways.append([found, *pip])
    if uv := shutil.which("uv"):
        # uv has no `download`, so it runs pip in a temporary environment.
        ways.append([uv, "tool", "run", "pip", *pip])
    return ways


def download(into: Path) -> Path:
    """Fetches the wheel into a folder and returns its path."""
    failures = []
    for way in commands(into):
        result = subprocess.run(way, capture_output=True, text=True, check=False)
        wheels = list(into.glob("*.whl"))
        if result.returncode == 0 and len(wheels) == 1:
            return wheels[0]
        failures.append(f"{' '.join(way[:3])} ...: {result.stderr.strip()[-400:]}")
    sys.exit(
        "fetch_protos: no way to download the package of "
        + REQUIREMENTS.name
        + " worked (python3-pip or uv is needed):\n  "
        + "\n  ".join(failures)
    )


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: fetch_protos.py DESTINATION")
    destination = Path(sys.argv[1])
    stamp = destination / STAMP
    pinned = REQUIREMENTS.read_text()
    if stamp.is_file() and stamp.read_text() == pinned and all((destination / p).is_file() for p in WANTED):
        return
    with tempfile.TemporaryDirectory() as temporary, zipfile.ZipFile(download(Path(temporary))) as wheel:
        for path in WANTED:
            target = destination / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wheel.read(ROOT + path))
    stamp.write_text(pinned)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Prints the project's version, which is stored in Cargo.toml only."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version() -> str:
    """`workspace.package.version` of Cargo.toml."""
    found = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    return str(found)


if __name__ == "__main__":
    print(version())

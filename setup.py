"""The version, which stands in Cargo.toml; everything else is in pyproject.toml."""

import tomllib
from pathlib import Path

from setuptools import setup

setup(version=tomllib.loads((Path(__file__).parent / "Cargo.toml").read_text())["workspace"]["package"]["version"])

"""Hooks of mkdocs: headings get the anchors that GitHub gives them, so that a link works in both places."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import links


def _anchor(heading: str, separator: str) -> str:
    return links.anchor(heading)


def on_config(config: Any) -> Any:
    config["mdx_configs"].setdefault("toc", {})["slugify"] = _anchor
    return config

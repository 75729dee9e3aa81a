"""Reads and validates the rack's file, and reports every mistake with its line.

>>> config = load("rack.yaml")            # raises ConfigError
>>> config.services[0].addresses
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from .config import Config, ConfigError
from .document import MAX_BYTES, DocumentError, read
from .mistakes import mistakes
from .references import references

MAX_PROBLEMS = 100
"""Most problems reported for one file; those of the first lines are kept."""


def parse(text: str, source: str = "config") -> Config:
    """Parses and validates text; error messages begin with `source`. Raises ConfigError."""
    try:
        document = read(text)
    except DocumentError as error:
        raise ConfigError([f"{source}:{error.line}: {error}"]) from None
    if not isinstance(document.values, dict):
        raise ConfigError([f"{source}:1: the file must hold `switches`, `replicas` and `services`"])
    try:
        config = Config.model_validate(document.values)
    except ValidationError as error:
        found = list(mistakes(error.errors(include_url=False), document.values, Config))
    else:
        found = list(references(config))
        if not found:
            return config
    placed = sorted({(document.line(path), ".".join(map(str, path)), message) for path, message in found})
    problems = [
        f"{source}:{line}: {path}: {message}" if path else f"{source}:{line}: {message}"
        for line, path, message in placed[:MAX_PROBLEMS]
    ]
    if len(placed) > MAX_PROBLEMS:
        problems.append(f"{source}: and {len(placed) - MAX_PROBLEMS} more")
    raise ConfigError(problems)


def load(path: str | Path) -> Config:
    """Reads and validates a file. Raises ConfigError, also if the file cannot be read."""
    return load_with_text(path)[0]


def load_with_text(path: str | Path) -> tuple[Config, str]:
    """Like `load`, and also returns the file's text. Raises ConfigError."""
    text = read_text(path)
    return parse(text, str(path)), text


def read_text(path: str | Path) -> str:
    """A file's text, not parsed. Raises ConfigError."""
    try:
        # Bounds memory: one character more than the parser accepts is enough for it to refuse the
        # file.
        with Path(path).open(encoding="utf-8") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from None

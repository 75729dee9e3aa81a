"""The rack's file: read, validated, and every mistake told with its line.

>>> config = load("rack.yaml")            # raises ConfigError
>>> config.services[0].addresses
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from .config import Config, ConfigError
from .document import MAX_BYTES, DocumentError, read
from .references import references

REPLACED = {
    "plain_tcp": "replaced by `plain`: say `plain: kernel` for true (or nothing, it is the default), `plain: none` for"
    " false",
}
"""Fields that there were, and what to say now."""

MAX_PROBLEMS = 100
"""Most problems that are told of one file."""


def parse(text: str, source: str = "config") -> Config:
    """Parses and validates; `source` is the name that errors give. Raises ConfigError."""
    try:
        document = read(text)
    except DocumentError as error:
        raise ConfigError([f"{source}:{error.line}: {error}"]) from None
    if not isinstance(document.values, dict):
        raise ConfigError([f"{source}:1: the file must hold `switches`, `replicas` and `services`"])
    try:
        config = Config.model_validate(document.values)
    except ValidationError as error:
        mistakes = list(_mistakes(error))
    else:
        mistakes = list(references(config))
        if not mistakes:
            return config
    problems = [
        f"{source}:{document.line(path)}: {'.'.join(map(str, path))}: {message}"
        for path, message in mistakes[:MAX_PROBLEMS]
    ]
    more = [f"{source}: and {len(mistakes) - MAX_PROBLEMS} more"] if len(mistakes) > MAX_PROBLEMS else []
    raise ConfigError(sorted(set(problems)) + more)


def _mistakes(error: ValidationError) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What pydantic found: path in the file, what to do."""
    mistakes = error.errors(include_url=False, include_context=False, include_input=False)
    above = {item["loc"][:depth] for item in mistakes for depth in range(len(item["loc"]))}
    for item in mistakes:
        # A list of which every item is wrong also counts as too short.
        if item["type"] == "too_short" and item["loc"] in above:
            continue
        path = tuple(part for part in item["loc"] if not str(part).startswith("function-"))
        unknown = REPLACED.get(str(path[-1]) if path else "", "unknown field")
        message = {"extra_forbidden": unknown, "missing": "missing"}.get(item["type"])
        yield path, message or item["msg"].removeprefix("Value error, ")


def load(path: str | Path) -> Config:
    """Reads and validates a file. Raises ConfigError, also for a file that cannot be read."""
    return load_with_text(path)[0]


def load_with_text(path: str | Path) -> tuple[Config, str]:
    """The same, with the text that it was read from. Raises ConfigError."""
    text = read_text(path)
    return parse(text, str(path)), text


def read_text(path: str | Path) -> str:
    """A file's text, unparsed. Raises ConfigError."""
    try:
        # No more than the parser takes, and one more for it to see: a file may be of any size.
        with Path(path).open(encoding="utf-8") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from None

"""What only the controller's own file may say: what runs commands, opens listeners or names files of its machine.

A configuration that comes through the API, or from a store that controllers share, takes these parts from the file; it
may repeat them, and is refused where it says something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .config import Config, ConfigError

PARTS = ("listen", "state", "etcd")
"""Of the whole."""

OF_EACH = {"switches": ("tls", "pipeline"), "replicas": ("kill_command",)}
"""Of entries, which are matched by name."""


NOT_WITHOUT = ("tls",)
"""Of an entry that the file does not name, what is kept: without it the session with a switch would be in the clear."""


def with_local_parts(config: Config, own: Config, source: str = "") -> Config:
    """The configuration with this machine's parts of `own`.

    With a `source` (a name for errors) it must not say anything else about them: ConfigError names what does. Without
    one, entries that `own` does not name lose these parts (but for `NOT_WITHOUT`): a store runs no command here.
    """
    problems = [
        f"{source}: {place}: comes from the controller's own file, not from here" for place in _other(config, own)
    ]
    if source and problems:
        raise ConfigError(problems)
    update: dict[str, Any] = {part: getattr(own, part) for part in PARTS}
    for kind, fields in OF_EACH.items():
        known = {entry.name: entry for entry in getattr(own, kind)}
        update[kind] = tuple(
            entry.model_copy(update=_own_parts(entry, known.get(entry.name), fields)) for entry in getattr(config, kind)
        )
    return config.model_copy(update=update)


def _own_parts(entry: Any, known: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    """The values of an entry's fields that are this machine's own; `known` is the entry in the file, if it has one."""
    if known is not None:
        return {field: getattr(known, field) for field in fields}
    return {field: type(entry).model_fields[field].default for field in fields if field not in NOT_WITHOUT}


def _other(config: Config, own: Config) -> Iterator[str]:
    """Where a configuration says other than `own` about a part of this machine."""
    # Where several controllers share a description, these are each one's own, and those in it may be another's.
    for part in PARTS if own.etcd is None else ():
        if part in config.model_fields_set and getattr(config, part) != getattr(own, part):
            yield part
    for kind, fields in OF_EACH.items():
        known = {entry.name: entry for entry in getattr(own, kind)}
        for index, entry in enumerate(getattr(config, kind)):
            for field in fields:
                absent = type(entry).model_fields[field].default
                there = getattr(known[entry.name], field) if entry.name in known else absent
                if field in entry.model_fields_set and getattr(entry, field) != there:
                    yield f"{kind}.{index}.{field}"

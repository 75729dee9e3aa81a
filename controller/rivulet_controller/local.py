"""Settings that only the controller's own file may make: those that run commands, open listeners or
name local files.

A configuration from the API, or from the store that controllers share, gets these settings from the
file. It may repeat them, and is refused if it contains other values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .config import Config, ConfigError

PARTS = ("listen", "state", "etcd")
"""Top-level settings."""

OF_EACH = {"switches": ("tls", "pipeline"), "replicas": ("kill_command",)}
"""Settings of entries, which are matched by name."""


NOT_WITHOUT = ("tls",)
"""Settings kept for an entry that the file lacks: without `tls`, the session with a switch would be
in the clear."""


def with_local_parts(config: Config, own: Config, source: str = "") -> Config:
    """The configuration with this machine's settings from `own`.

    With a `source` (a name for error messages), other values for them raise ConfigError. Without
    one, entries that `own` lacks lose these settings (except `NOT_WITHOUT`), so that a shared store
    can run no command here.
    """
    problems = [f"{source}: {place}: only the controller's own file may set it" for place in _other(config, own)]
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
    """An entry's fields that are this machine's own; `known` is the file's entry of that name, or
    None.
    """
    if known is not None:
        return {field: getattr(known, field) for field in fields}
    return {field: type(entry).model_fields[field].default for field in fields if field not in NOT_WITHOUT}


def _other(config: Config, own: Config) -> Iterator[str]:
    """Yields the settings in which a configuration differs from `own`."""
    # With etcd, the shared configuration may contain another controller's values of these settings.
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

"""Validation errors in the operator's terms: the path in the file, the value, and the values
allowed there.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]

VALUE_MAX = 60
"""Longest value that a message repeats, in characters."""

FIELDS_MAX = 12
"""Most field names that a message about an unknown field lists."""

REPLACED = {
    "plain_tcp": "replaced by `plain`: write `plain: kernel` for true (or nothing, it is the default), `plain: none`"
    " for false",
}
"""Former fields, and their replacements."""

ADDRESS = "an IP address such as 10.0.0.1 or fd00::1"
PREFIX = "a prefix without host bits such as 10.0.0.0/24 or fd00::/64"

ALLOWED: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "date_from_datetime_parsing": "a date",
    "dict_type": "fields with values (`field: value`)",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_type": "a whole number",
    "ip_v4_address": ADDRESS,
    "ip_v6_address": ADDRESS,
    "ip_v4_network": PREFIX,
    "ip_v6_network": PREFIX,
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "fields with values (`field: value`)",
    "model_type": "fields with values (`field: value`)",
    "path_type": "a path",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
    "string_type": "text",
    "string_unicode": "text",
    "too_long": "{max_length} at most",
    "too_short": "{min_length} at least",
    "tuple_type": "a list",
}
"""Allowed values, by pydantic's type of error; names in braces come from the error's context."""


def allowed_text(pattern: str) -> str:
    """Describes what a text pattern allows."""
    if "unix:" in pattern and ":[0-9]" in pattern:
        return "unix:PATH or HOST:PORT, an IPv6 address in brackets"
    if pattern.startswith("^unix:"):
        return "unix:PATH"
    if pattern.startswith("^https?"):
        return "a URL such as https://10.0.0.5:2379, without a path"
    if pattern.startswith("^[a-z0-9]("):
        return "a name: lower-case letters, digits and dashes within, at most 63"
    if "a-z_]" in pattern:
        return "the name of a user or group of this machine"
    if pattern.startswith("^/[a-z"):
        return "a prefix of keys such as /rivulet/, with a slash at both ends"
    if pattern.startswith("^/"):
        return "a path that begins with / and has no spaces, at most 1,024 characters"
    return "text of the form that is allowed here (docs/control-plane.md)"


def mistakes(errors: list[ErrorDetails], values: Any, model: type[BaseModel]) -> Iterator[tuple[Path, str]]:
    """Yields each path in the file with its message, once. `values` is what `model` validated."""
    above = {item["loc"][:depth] for item in errors for depth in range(len(item["loc"]))}
    seen: set[tuple[Path, str]] = set()
    for item in errors:
        # Invalid items do not count, so pydantic also reports their list as too short.
        if item["type"] == "too_short" and item["loc"] in above:
            continue
        path = _path(item, values)
        found = path, _words(item, path, model)
        if found not in seen:
            seen.add(found)
            yield found


def in_words(item: Mapping[str, Any]) -> str:
    """Describes an error in an API request: the field, its value, the allowed values."""
    # The location's first part is the part of the request: body, query, path.
    where = ".".join(map(str, item["loc"][1:])) or "the body"
    if item["type"] == "json_invalid":
        return "the body is not JSON"
    details: Any = {"input": None, "ctx": {}, **item}
    return f"{where}: {_words(details, tuple(item['loc'][1:]), BaseModel)}"


def _path(item: ErrorDetails, values: Any) -> Path:
    """The path of an error in the file, without the parts that pydantic adds for alternatives of a
    union.
    """
    path: list[str | int] = []
    for part in item["loc"]:
        inside = (isinstance(values, Mapping) and part in values) or (
            isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)
        )
        if inside:
            values = values[part]
            path.append(part)
    if item["type"] == "missing":
        path.append(item["loc"][-1])
    return tuple(path)


def _words(item: ErrorDetails, path: Path, model: type[BaseModel]) -> str:
    kind = item["type"]
    context = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in item.get("ctx", {}).items()
    }
    if kind == "missing":
        return "missing"
    if kind == "extra_forbidden":
        return _unknown(str(path[-1]), path[:-1], model)
    if kind in ("value_error", "assertion_error"):
        return item["msg"].partition(", ")[2] or item["msg"]
    if kind == "string_pattern_mismatch":
        return f"{shown(item['input'])} is not {allowed_text(str(context.get('pattern', '')))}"
    if kind in ("too_short", "too_long"):
        return f"has {context.get('actual_length', 0)} entries: needs {ALLOWED[kind].format(**context)}"
    allowed = ALLOWED.get(kind)
    if allowed is None:
        return f"{shown(item['input'])} is not allowed here"
    return f"{shown(item['input'])}: must be {allowed.format(**context)}"


def shown(value: Any) -> str:
    """A value as the file would have it, cut to VALUE_MAX characters."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "fields" if value else "{}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = f"{value:.15g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= VALUE_MAX else f"{text[:VALUE_MAX]}…"


def _unknown(name: str, path: Path, model: type[BaseModel]) -> str:
    if name in REPLACED:
        return REPLACED[name]
    fields = list(_fields(model, path))
    close = difflib.get_close_matches(name, fields, 1, 0.75)
    if close:
        return f"unknown field: did you mean `{close[0]}`?"
    names = ", ".join(fields[:FIELDS_MAX]) + (", …" if len(fields) > FIELDS_MAX else "")
    return f"unknown field: allowed here: {names}" if fields else "unknown field"


def _fields(model: type[BaseModel], path: Path) -> Iterator[str]:
    """The fields of the model at a path."""
    here: Any = model
    for part in path:
        if isinstance(part, str) and isinstance(here, type) and issubclass(here, BaseModel):
            field = here.model_fields.get(part)
            here = _model_in(field.annotation) if field is not None else None
    if isinstance(here, type) and issubclass(here, BaseModel):
        yield from here.model_fields


def _model_in(annotation: Any) -> Any:
    """The model within Optional[…], tuple[…, ...] and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        return next((found for inner in typing.get_args(annotation) if (found := _model_in(inner)) is not None), None)
    return None

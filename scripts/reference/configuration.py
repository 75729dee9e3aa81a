"""The reference of the rack's file: each key of the controller's models, with its form, bounds, default and meaning."""

from __future__ import annotations

import re
import types
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import roff
from pydantic import AfterValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rivulet_controller.config import Config
from rivulet_controller.model import Model
from rivulet_controller.values import Form, Within, duration

ABOUT = (
    "The controller reads one YAML file, which describes the switches, the replicas and the services of a rack."
    " `rivuletctl check FILE` reports every mistake with its line; `rivuletctl plan FILE` shows what a change would"
    " write to the switches. The controller applies a changed file at once, as a whole or not at all."
)
FORMS = (
    "A duration is a number with a unit: `us`, `ms`, `s`, `min`, `h` or `d` (`20ms`, `30min`); a number without one is"
    " seconds. A name has lower-case letters, digits and hyphens, at most 63. IPv6 and MAC addresses and prefixes need"
    " quotes. Unknown keys are refused."
)


@dataclass
class Key:
    """A key of a section."""

    name: str
    form: str
    default: str
    meaning: str
    section: str = ""
    """The section of a value that has keys of its own."""


@dataclass
class Section:
    """A model of the controller, at its place in the file."""

    title: str
    about: str
    places: list[str] = field(default_factory=list)
    """Paths of the keys that have such a value."""
    keys: list[Key] = field(default_factory=list)


class NoForm(Exception):
    """A type for which this page has no words: it needs a `Form`."""


def sections() -> list[Section]:
    """The sections in the order in which the file's keys lead to them."""
    found: dict[type[Model], Section] = {}
    _add(found, Config, "")
    return list(found.values())


def _add(found: dict[type[Model], Section], model: type[Model], path: str) -> None:
    if known := found.get(model):
        known.places.append(path)
        return
    section = found[model] = Section(path or "The file", " ".join((model.__doc__ or "").split()), [path])
    later: list[tuple[type[Model], str]] = []
    for name, info in model.model_fields.items():
        inner, many = _model(info.annotation)
        form = _form(info.annotation, info.metadata)
        if not info.is_required() and info.default is None:
            form = form.removesuffix(" or null")
        if not info.description:
            raise NoForm(f"{model.__name__}.{name} has no description")
        section.keys.append(Key(name, form, _default(info), info.description))
        if inner is not None:
            place = f"{path}.{name}".lstrip(".") + ("[]" if many else "")
            later.append((inner, place))
            section.keys[-1].section = found[inner].title if inner in found else place
    for inner, place in later:
        _add(found, inner, place)


def _model(annotation: Any) -> tuple[type[Model] | None, bool]:
    """The model that a value has, if any, and whether it is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation, False
    for part in get_args(annotation):
        inner, _ = _model(part)
        if inner is not None:
            return inner, get_origin(annotation) is tuple
    return None, False


def _form(annotation: Any, metadata: list[Any]) -> str:
    """How a value is written, with its bounds."""
    if get_origin(annotation) is Annotated:
        base, *rest = get_args(annotation)
        return _form(base, rest + metadata)
    flat = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
    named = next((item.text for item in flat if isinstance(item, Form)), None)
    origin, parts = get_origin(annotation), get_args(annotation)
    if named is None and origin in (Union, types.UnionType):
        words = [_form(part, metadata) for part in parts if part is not type(None)]
        return " or ".join(words) + (" or null" if type(None) in parts else "")
    bounds = _bounds(flat, named == "duration")
    if named is not None:
        return named + bounds
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if origin is tuple:
        count = _count(flat)
        return f"list of {count}{_form(parts[0], [])}"
    if origin is dict:
        return f"map of {_form(parts[0], [])} to {_form(parts[1], [])}"
    if annotation is bool:
        return "`true`, `false`"
    if annotation is int:
        return f"integer{bounds}"
    if annotation is str:
        return "text" + "".join(f" like `{pattern}`" for item in flat if (pattern := getattr(item, "pattern", None)))
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return "keys"
    raise NoForm(f"no words for {annotation!r} with {flat}")


def _bounds(metadata: list[Any], is_duration: bool) -> str:
    """The lowest and the highest value, in words."""
    low = high = None
    open_low = False
    for item in metadata:
        if isinstance(item, annotated_types.Gt | annotated_types.Ge):
            value = item.gt if isinstance(item, annotated_types.Gt) else item.ge
            if low is None or value > low:
                low, open_low = value, isinstance(item, annotated_types.Gt)
        elif isinstance(item, annotated_types.Le | annotated_types.Lt):
            value = item.lt - 1 if isinstance(item, annotated_types.Lt) else item.le
            high = value if high is None else min(high, value)
        elif isinstance(item, AfterValidator) and isinstance(item.func, Within):
            low, open_low = item.func.low, False
            high = item.func.high if high is None else min(high, item.func.high)
    write = duration if is_duration else "{:,}".format
    words = []
    if low is not None and not (open_low and low == 0):
        words.append(f"from {write(low)}")
    if high is not None:
        words.append(f"to {write(high)}" if words else f"up to {write(high)}")
    return f", {' '.join(words)}" if words else ""


def _count(metadata: list[Any]) -> str:
    low = next((item.min_length for item in metadata if isinstance(item, annotated_types.MinLen)), 0)
    high = next((item.max_length for item in metadata if isinstance(item, annotated_types.MaxLen)), None)
    if high is not None:
        return f"{low} to {high}: "
    return f"at least {low}: " if low else ""


def _default(info: FieldInfo) -> str:
    """The default as the file writes it, or that the key must be there."""
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined or value in ((), {}):
        return "none"
    if isinstance(value, Model):
        return "its defaults"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{duration(value)}`"
    return f"`{value}`"


def page(found: list[Section]) -> str:
    """The page of the site."""
    text = f"# Configuration of a rack\n\n{ABOUT}\n\n{FORMS}\n\n"
    text += "An example is [controller/examples/rack.yaml](../../controller/examples/rack.yaml). This page is made\n"
    text += "from the program by `make reference`.\n"
    for section in found:
        name = f"`{section.title}`" if section.title != "The file" else section.title
        text += f"\n## {name}\n\n{_linked(section.about)}\n"
        if len(section.places) > 1:
            text += f"\nAlso the keys of {', '.join(f'`{place}`' for place in section.places[1:])}.\n"
        text += "\n| key | value | default | meaning |\n|---|---|---|---|\n"
        for key in section.keys:
            form = f"{key.form}: [keys](#{anchor(key.section)})" if key.section else key.form
            form = re.sub(r"keys( or null)?: (\[keys\]\(\S+\))", r"\2\1", form)
            cells = (f"`{key.name}`", form, key.default, _linked(key.meaning))
            text += "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
    return text


def anchor(title: str) -> str:
    """The anchor of a section."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _linked(text: str) -> str:
    """The pages that a text names, as links from the folder of the reference."""
    return re.sub(r"\bdocs/([a-z0-9-]+\.md)", r"[\1](../\1)", text)


def manual(found: list[Section]) -> str:
    """The manual page."""
    text = roff.head("rivulet-rack", 5, "the file that describes a Rivulet rack")
    text += roff.heading("description") + roff.paragraph(ABOUT) + roff.paragraph(FORMS)
    for section in found:
        text += roff.heading(section.title) + roff.paragraph(section.about)
        if len(section.places) > 1:
            text += roff.paragraph(f"Also the keys of {', '.join(section.places[1:])}.")
        for key in section.keys:
            form = f"{key.form} of the section {key.section}" if key.section else key.form
            default = "Required" if key.default == "required" else f"Default: {key.default}"
            text += roff.entry(key.name, f"{key.meaning}. Value: {form}. {default}.")
    text += roff.heading("see also") + roff.paragraph("rivulet-controller(1), rivuletctl(1)")
    return text

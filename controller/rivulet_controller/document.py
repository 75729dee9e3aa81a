"""YAML as plain values with the line of each, bounded before anything is built: a file may come from a stranger.

libyaml composes recursively, so that deep nesting would end the process, and aliases multiply: both are counted over
the stream of events first, in which nothing is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

MAX_BYTES = 2 << 20
"""Longest text. A thousand services take some 200 kB."""

MAX_VALUES = 300_000
"""Most keys and values, those that aliases repeat counted each time."""

MAX_DEPTH = 32
"""Deepest nesting; a rack's description has 6 levels."""


MAX_SLOW_BYTES = 64 << 10
"""Longest text that the slow reader gets, some 0.2 s."""


class DocumentError(Exception):
    """The text is no document that is read here; `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: `values` in dicts, lists and scalars, and where each of them stands."""

    values: Any
    _root: Node | None

    def line(self, path: tuple[str | int, ...]) -> int:
        """Line (from 1) of the deepest part of `path` that the text has."""
        node, line = self._root, 1
        for part in path:
            if isinstance(node, MappingNode):
                # From the end: what a merge brought stands before what the place says itself.
                found = next((pair for pair in reversed(node.value) if str(pair[0].value) == str(part)), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line + 1, found[1]
            elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                break
        return line


def read(text: str) -> Document:
    """Reads one document. Raises DocumentError for what is too large, too deep or not YAML."""
    if len(text) > MAX_BYTES:
        raise DocumentError(1, f"{len(text)} characters: at most {MAX_BYTES} are read")
    try:
        try:
            root, values = _built(text, pure=False)
        except YAMLError as error:
            # libyaml refuses `{agents: unix:/run/x}`, which YAML 1.2 allows; ruamel's own reader takes it, slowly.
            if getattr(error, "problem", None) != "found unexpected ':'" or len(text) > MAX_SLOW_BYTES:
                raise
            root, values = _built(text, pure=True)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise DocumentError(
            1 if mark is None else mark.line + 1, f"not YAML: {getattr(error, 'problem', None) or error}"
        ) from None
    except (ValueError, TypeError, OverflowError) as error:
        # A number of thousands of digits, a date that is none.
        raise DocumentError(1, f"not YAML: {str(error)[:200]}") from None
    return Document(_plain(values), root)


def _built(text: str, pure: bool) -> tuple[Node | None, Any]:
    """The tree of nodes and what it means, once its bounds are known."""
    _bound(text, pure)
    yaml = YAML(typ="safe", pure=pure)
    root = yaml.compose(text)
    return root, None if root is None else yaml.constructor.construct_document(root)


def _bound(text: str, pure: bool) -> None:
    """Counts depth and values, each alias as what it repeats. Raises DocumentError, YAMLError."""
    total = 0
    sizes: dict[str, int] = {}
    # Of each collection that is open: its anchor, and how many values came before it.
    within: list[tuple[str | None, int]] = []
    for event in YAML(typ="safe", pure=pure).parse(text):
        if not isinstance(event, NodeEvent):
            if isinstance(event, (MappingEndEvent, SequenceEndEvent)):
                anchor, before = within.pop()
                if anchor is not None:
                    sizes[anchor] = total - before
            continue
        line = event.start_mark.line + 1
        if isinstance(event, AliasEvent):
            if event.anchor not in sizes:
                raise DocumentError(line, f"*{event.anchor} names nothing that is complete before it")
            total += sizes[event.anchor]
        elif isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            if len(within) == MAX_DEPTH:
                raise DocumentError(line, f"nested deeper than {MAX_DEPTH} levels")
            within.append((event.anchor, total))
            total += 1
        else:
            total += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        if total > MAX_VALUES:
            raise DocumentError(line, f"more than {MAX_VALUES} values, counting what aliases repeat")


def _plain(tree: Any) -> Any:
    """Keys as text, sets and pairs as lists."""
    if isinstance(tree, dict):
        return {str(key): _plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, set, tuple)):
        return [_plain(value) for value in tree]
    return tree

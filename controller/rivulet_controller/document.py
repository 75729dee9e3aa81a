"""Reads YAML as plain values with their line numbers, within bounds: the text may be hostile.

libyaml recurses on nested collections, so deep nesting would overflow its stack, and aliases can
multiply values. Both are counted first on the stream of parser events, before anything is built.
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
"""Longest text accepted. A rack with a thousand services takes about 200 kB."""

MAX_VALUES = 300_000
"""Most keys and values accepted; what an alias repeats counts each time."""

MAX_DEPTH = 32
"""Deepest nesting accepted; a rack's description has 6 levels."""


MAX_SLOW_BYTES = 64 << 10
"""Longest text given to ruamel's own (slow) parser, which takes about 0.2 s for it."""


class DocumentError(Exception):
    """The text is not YAML, or exceeds a bound; `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: `values` as dicts, lists and scalars, with the line of each."""

    values: Any
    _root: Node | None

    def line(self, path: tuple[str | int, ...]) -> int:
        """Line (from 1) of the deepest part of `path` that the text contains."""
        node, line = self._root, 1
        for part in path:
            if isinstance(node, MappingNode):
                # Search from the end: ruamel puts merged keys (`<<`) before the mapping's own keys.
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
    """Reads one document. Raises DocumentError for text that is too large, too deep or not YAML."""
    if len(text) > MAX_BYTES:
        raise DocumentError(1, f"{len(text)} characters: at most {MAX_BYTES} are accepted")
    try:
        try:
            root, values = _built(text, pure=False)
        except YAMLError as error:
            # libyaml rejects `{agents: unix:/run/x}`, which YAML 1.2 allows; ruamel's own parser
            # accepts it, slowly.
            if getattr(error, "problem", None) != "found unexpected ':'" or len(text) > MAX_SLOW_BYTES:
                raise
            root, values = _built(text, pure=True)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise DocumentError(
            1 if mark is None else mark.line + 1, f"not YAML: {getattr(error, 'problem', None) or error}"
        ) from None
    except (ValueError, TypeError, OverflowError) as error:
        # For example a number of thousands of digits, or an impossible date.
        raise DocumentError(1, f"not YAML: {str(error)[:200]}") from None
    return Document(_plain(values), root)


def _built(text: str, pure: bool) -> tuple[Node | None, Any]:
    """The node tree and the values that it stands for, after checking the bounds."""
    _bound(text, pure)
    yaml = YAML(typ="safe", pure=pure)
    root = yaml.compose(text)
    return root, None if root is None else yaml.constructor.construct_document(root)


def _bound(text: str, pure: bool) -> None:
    """Checks depth and number of values; an alias counts as what it repeats. Raises DocumentError,
    YAMLError.
    """
    total = 0
    sizes: dict[str, int] = {}
    # For each open collection: its anchor, and the number of values before it.
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
                raise DocumentError(line, f"*{event.anchor} refers to no anchor that ends before this line")
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
    """Converts keys to text, and sets and pairs to lists."""
    if isinstance(tree, dict):
        return {str(key): _plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, set, tuple)):
        return [_plain(value) for value in tree]
    return tree

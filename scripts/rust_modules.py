"""Which source file of a Rust crate uses which other: paths in its text, followed through imports and re-exports.

No compiler runs: the text is split into tokens, and macros are read as written. Methods are not followed (`a.b()` names
no module), and code under `#[cfg(test)]` does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NOISE = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | \bb?r(\#*)".*?"\1 | "(?:\\.|[^"\\])*" | b?'(?:\\.[^']*|[^\\'])'""",
    re.DOTALL | re.VERBOSE,
)
"""Comments, strings and characters."""
TOKEN = re.compile(r"(?:r#)?[A-Za-z_]\w*|::|[^\s\w]")
NAME = re.compile(r"[A-Za-z_]\w*$")
ITEMS = {"fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"}
BEFORE_ITEM = {*ITEMS, "mod", "use", "impl", "pub", "unsafe", "async", "extern", "let"}
MACRO_WORDS = {"crate", "self", "super"}
CLOSES = {"(": ")", "[": "]", "{": "}"}
DEPTH = 32
"""Imports followed for one name, so that names that import each other end."""

Path_ = tuple[str, ...]


@dataclass
class Module:
    """A module with the names that it defines and imports, and the paths in its code."""

    file: Path
    parent: Module | None = None
    children: dict[str, Module] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)
    imported: dict[str, Path_] = field(default_factory=dict)
    globs: list[Path_] = field(default_factory=list)
    uses: set[Path_] = field(default_factory=set)

    def root(self) -> Module:
        return self.parent.root() if self.parent else self

    def resolve(self, path: Path_, depth: int = DEPTH) -> Path | Module | None:
        """The module that a path names, or the file that defines its item; nothing for another crate's names."""
        if not depth:
            return None
        module: Module = self
        first, rest = path[0], path[1:]
        if first == "crate":
            module = self.root()
        elif first == "super":
            module = self.parent or self
        elif first != "self":
            return self.lookup(path, depth)
        if rest and rest[0] in ("super", "self"):
            return module.resolve(rest, depth - 1)
        return module.lookup(rest, depth) or module.file if rest else module

    def lookup(self, path: Path_, depth: int) -> Path | Module | None:
        """The same for a path that begins with a name of this module."""
        first, rest = path[0], path[1:]
        if rest and first in self.children:
            return self.children[first].lookup(rest, depth) or self.children[first].file
        if first in self.imported and self.imported[first] != path:
            found = self.resolve(self.imported[first], depth - 1)
            if rest and isinstance(found, Module):
                return found.lookup(rest, depth - 1) or found.file
            return found
        if first in self.defined:
            return self.file
        if first in self.children:
            return self.children[first]
        for glob in self.globs:
            if depth > 1 and isinstance(found := self.resolve(glob, depth - 1), Module) and found is not self:
                target = found.lookup(path, depth - 1)
                if target is not None:
                    return target
        return None

    def all(self) -> Iterator[Module]:
        yield self
        for child in self.children.values():
            yield from child.all()


def uses(root: Path) -> dict[Path, dict[Path, set[str]]]:
    """For each file of the crate whose root file this is: the other files that it uses, with the used paths."""
    top = Module(root)
    read(top, root.parent)
    found: dict[Path, dict[Path, set[str]]] = {}
    for module in top.all():
        edges = found.setdefault(module.file, {})
        for path in module.uses:
            target = module.resolve(path)
            if isinstance(target, Path) and target != module.file:
                edges.setdefault(target, set()).add("::".join(path))
    return found


def read(module: Module, folder: Path) -> None:
    """Reads a file into its module; the files of its children are in this folder."""
    text = NOISE.sub(lambda found: " " if found[0].startswith("/") else ' "" ', module.file.read_text())
    Reader(TOKEN.findall(text)).block(module, folder, 0)


class Reader:
    """Goes over the tokens of a file."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def block(self, module: Module, folder: Path, at: int) -> int:
        """Reads the items of a module from a token on; returns the place after its closing brace."""
        tokens, depth = self.tokens, 0
        while at < len(tokens):
            token = tokens[at]
            if token == "#" and tokens[at + 1 : at + 2] in (["["], ["!"]):
                at = self.attribute(module, at)
            elif token == "pub" and tokens[at + 1 : at + 2] == ["("]:
                public = tokens[at + 2] in ("crate", "super", "self", "in")
                at = self.closing(at + 1) + 1 if public else at + 1
            elif token == "use" and tokens[at + 1 : at + 2] != ["<"]:
                at = self.use(module, at + 1, public=self.is_public(at))
            elif token == "mod" and not depth and tokens[at + 2] == ";":
                self.child(module, tokens[at + 1], folder)
                at += 3
            elif token == "mod" and not depth and tokens[at + 2] == "{":
                child = module.children[tokens[at + 1]] = Module(module.file, module)
                at = self.block(child, folder / tokens[at + 1], at + 3)
            elif token == "{":
                depth, at = depth + 1, at + 1
            elif token == "}":
                depth, at = depth - 1, at + 1
                if depth < 0:
                    return at
            elif token in ITEMS and not depth:
                at += 2 if token == "macro_rules" else 1
                if at < len(tokens) and NAME.match(tokens[at]):
                    module.defined.add(tokens[at])
                    at += 1
            elif NAME.match(token):
                at = self.path(module, at)
            else:
                at += 1
        return at

    def is_public(self, at: int) -> bool:
        before = self.tokens[at - 1] if at else ""
        return before == "pub" or (before == ")" and "pub" in self.tokens[max(0, at - 12) : at])

    def child(self, module: Module, name: str, folder: Path) -> None:
        """Reads the file of a `mod name;`, if it is there."""
        for file in (folder / f"{name}.rs", folder / name / "mod.rs"):
            if file.is_file():
                child = module.children[name] = Module(file, module)
                read(child, folder / name)
                return

    def attribute(self, module: Module, at: int) -> int:
        """Skips an attribute, and the item below it if only tests have it."""
        start = at + (2 if self.tokens[at + 1] == "!" else 1)
        if self.tokens[start : start + 1] != ["["]:
            return at + 1
        end = self.closing(start) + 1
        words = self.tokens[start:end]
        if words[1:5] not in (["cfg", "(", "test", ")"], ["cfg", "(", "all", "("]) or "test" not in words:
            return end
        while self.tokens[end : end + 1] == ["#"]:
            end = self.closing(end + 1) + 1
        return self.item(end) if self.tokens[end : end + 1] and self.tokens[end] in BEFORE_ITEM else end

    def item(self, at: int) -> int:
        """The place after an item."""
        in_use = False
        while at < len(self.tokens):
            token = self.tokens[at]
            in_use |= token == "use"
            if token == ";":
                return at + 1
            if token in CLOSES:
                at = self.closing(at) + 1
                if token == "{" and not in_use:
                    return at
            else:
                at += 1
        return at

    def closing(self, at: int) -> int:
        """The place of the bracket that closes this one."""
        opening, depth = self.tokens[at], 0
        for place in range(at, len(self.tokens)):
            depth += (self.tokens[place] == opening) - (self.tokens[place] == CLOSES[opening])
            if not depth:
                return place
        return len(self.tokens)

    def use(self, module: Module, at: int, public: bool) -> int:
        """Reads the tree of an import. An import that others may use is no use by itself: it only forwards a name."""
        end = self.tokens.index(";", at)
        for path, name in trees(self.tokens[at:end]):
            if name == "*":
                module.globs.append(path)
            else:
                if name != "_":
                    module.imported[name] = path
                if not public:
                    module.uses.add(path)
        return end + 1

    def path(self, module: Module, at: int) -> int:
        """Reads a path in code."""
        path = [self.tokens[at]]
        while self.tokens[at + 1 : at + 2] == ["::"] and at + 2 < len(self.tokens) and NAME.match(self.tokens[at + 2]):
            at += 2
            path.append(self.tokens[at])
        before = self.tokens[at - 2 * len(path) + 1] if at >= 2 * len(path) - 1 else ""
        if before not in (".", "::") and (len(path) > 1 or path[0] not in MACRO_WORDS):
            module.uses.add(tuple(path))
        return at + 1


def trees(tokens: list[str]) -> Iterator[tuple[Path_, str]]:
    """The paths of an import and the names that they get: `a::{b, c as d, self, *}`."""
    tokens = tokens[1:] if tokens[:1] == ["::"] else tokens
    path: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token == "{":
            depth, start = 0, at + 1
            for place in range(start, len(tokens)):
                if (tokens[place] == "," and not depth) or (tokens[place] == "}" and not depth):
                    for inner, name in trees(tokens[start:place]):
                        if inner == ("self",):
                            yield tuple(path), name if name != "self" else path[-1]
                        else:
                            yield (*path, *inner), name
                    start = place + 1
                depth += (tokens[place] == "{") - (tokens[place] == "}")
            return
        if token == "*":
            yield tuple(path), "*"
            return
        if token == "as":
            yield tuple(path), tokens[at + 1]
            return
        if token != "::":
            path.append(token)
        at += 1
    if path:
        yield tuple(path), path[-1]

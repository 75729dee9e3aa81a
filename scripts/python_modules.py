"""Which file of a Python package imports which other, also within functions and for the type checker only."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path


def uses(folders: Iterable[Path], files: Iterable[Path]) -> dict[Path, dict[Path, set[str]]]:
    """For each file below these folders, from which Python imports: the other files and the names that it imports."""
    tops = set(folders)
    modules = {name_of(path.relative_to(top)): path for path in files for top in tops & set(path.parents)}
    trees = {name: ast.parse(path.read_text()) for name, path in modules.items()}
    bound = {name: imports(name, modules[name], tree) for name, tree in trees.items()}
    found: dict[Path, dict[Path, set[str]]] = {}
    for name, names in bound.items():
        edges = found.setdefault(modules[name], {})
        for imported in names:
            for target in targets(imported, modules, bound):
                if target != modules[name]:
                    edges.setdefault(target, set()).add(".".join(filter(None, imported)))
    return found


def name_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(name: str, path: Path, tree: ast.Module) -> dict[tuple[str, str], str]:
    """Each import as module and imported name (empty for `import a.b`), with the name that it binds here."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: dict[tuple[str, str], str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.name, ""): alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found |= {(module, alias.name): alias.asname or alias.name for alias in node.names}
    return found


def targets(
    imported: tuple[str, str], modules: dict[str, Path], bound: dict[str, dict[tuple[str, str], str]], depth: int = 8
) -> list[Path]:
    """The file that an import takes its name from; a name that a package passes on comes from the file it passes on."""
    module, name = imported
    if name and f"{module}.{name}" in modules:
        return [modules[f"{module}.{name}"]]
    if module not in modules:
        return []
    if name and depth and modules[module].name == "__init__.py":
        for inner, binding in bound[module].items():
            if binding == name:
                return targets(inner, modules, bound, depth - 1)
    return [modules[module]]

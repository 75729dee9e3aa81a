"""python -m rivulet_demo SCENARIO [flags]: runs one scenario; without a name it lists them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from . import scenarios
from .scenario import main_of


def main(arguments: list[str]) -> int:
    """Runs the scenario whose folder has this name."""
    names = sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(scenarios.__path__))
    if not arguments or arguments[0] not in names:
        print("usage: python -m rivulet_demo SCENARIO [--help]\n\nscenarios:", file=sys.stderr)
        for name in names:
            words = importlib.import_module(f"{scenarios.__name__}.{name.replace('-', '_')}").WORDS
            print(f"  {name:16} {words.splitlines()[0]}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"{scenarios.__name__}.{arguments[0].replace('-', '_')}")
    return main_of(arguments[0], module.WORDS, module.run)(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Writes the reference of the Python programs and of the rack's file, from the programs themselves.

.venv/bin/python scripts/reference FOLDER

FOLDER gets `pages` (Markdown, for the site), `man` (manual pages) and `completions` (of shells): rivuletctl from its
typer commands, rivulet-controller from its argparse parser, the rack's file from the controller's pydantic models.
"""

from __future__ import annotations

import sys
from pathlib import Path

import commands
import configuration


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    for name in ("pages", "man"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    sections = configuration.sections()
    (folder / "pages" / "configuration.md").write_text(configuration.page(sections))
    (folder / "man" / "rivulet-rack.5").write_text(configuration.manual(sections))
    for program in (commands.rivuletctl(), commands.controller()):
        (folder / "pages" / f"{program.name}.md").write_text(commands.page(program))
        (folder / "man" / f"{program.name}.1").write_text(commands.manual(program))
    for shell, file in commands.COMPLETIONS.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(commands.completion(shell))


if __name__ == "__main__":
    main()

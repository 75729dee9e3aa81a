"""Writes the reference of the programs and of the rack's file, from the programs themselves.

.venv/bin/python scripts/reference FOLDER

FOLDER gets `pages` (Markdown, for the site), `man` (manual pages) and `completions` (of shells): rivuletctl from its
typer commands, rivulet-controller from its argparse parser, the rack's file from the controller's pydantic models, and
the Rust programs (in target/release, or in the folder RIVULET_BIN) from what they print for --help.
"""

from __future__ import annotations

import sys
from pathlib import Path

import commands
import configuration
import programs


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    for name in ("pages", "man"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    sections = configuration.sections()
    (folder / "pages" / "configuration.md").write_text(configuration.page(sections))
    (folder / "man" / "rivulet-rack.5").write_text(configuration.manual(sections))
    try:
        built = programs.all_of_them()
    except programs.NotBuiltError as e:
        sys.exit(str(e))
    for program in (commands.rivuletctl(), commands.controller(), *built):
        (folder / "pages" / f"{program.name}.md").write_text(commands.page(program))
        (folder / "man" / f"{program.name}.1").write_text(commands.manual(program))
    for name, script in (("rivuletctl", commands.completion), ("rivulet", programs.completion)):
        for shell, file in commands.COMPLETIONS.items():
            path = folder / file.format(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(script(shell))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Checks the links of all Markdown files: the file and the heading that each one names must exist.

scripts/links.py

Links to other hosts are not followed. Source files that name a page (`docs/NAME.md`) are checked too. The anchors of
headings are those that GitHub makes, and scripts/site.py gives the headings of the site the same ones.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
# Targets in round brackets (which may contain one pair of brackets), of references, and of HTML attributes.
LINK = re.compile(r"\]\(\s*<?((?:[^()\s<>]|\([^()\s]*\))+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?(?:\s|$)")
ATTRIBUTE = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"")
NAMED = re.compile(r"<[a-z]+\b[^>]*?\b(?:id|name)=\"([^\"]+)\"")
PAGE = re.compile(r"\bdocs/[a-z0-9-]+\.md\b")
SOURCES = (
    ".rs",
    ".py",
    ".c",
    ".h",
    ".p4",
    ".lua",
    ".sh",
    ".mk",
    ".toml",
    ".yaml",
    ".service",
    ".env",
    ".json",
    ".html",
)


def files(root: Path) -> list[str]:
    """Names of the files of the repository, with those that are not committed yet."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted({name for name in names if name and (root / name).is_file()})


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading, from its Markdown or its plain text."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"<[^>]+>", "", text).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def number(name: str, taken: set[str]) -> str:
    """The same anchor, with a number behind it if it is taken; takes it."""
    found, count = name, 0
    while found in taken:
        count += 1
        found = f"{name}-{count}"
    taken.add(found)
    return found


def lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page outside of blocks of code, with their numbers from 1."""
    fence = ""
    for at, line in enumerate(text.splitlines(), start=1):
        found = FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and line.strip() == found[1]:
            fence = ""
        elif not fence:
            yield at, line


def anchors(text: str) -> set[str]:
    """The anchors of a page."""
    taken: set[str] = set()
    for _, line in lines(text):
        if heading := HEADING.match(line):
            number(anchor(heading[2]), taken)
        taken.update(NAMED.findall(CODE.sub("", line)))
    return taken


def links(text: str) -> Iterator[tuple[int, str]]:
    """The targets of a page's links and pictures, with their lines."""
    for at, line in lines(text):
        plain = CODE.sub("", line)
        for pattern in (LINK, REFERENCE, ATTRIBUTE):
            for target in pattern.findall(plain):
                yield at, target


def mistakes(root: Path) -> list[str]:
    """Every link that leads nowhere, as FILE:LINE: LINK: REASON."""
    known = files(root)
    pages = {name: (root / name).read_text() for name in known if name.endswith(".md")}
    headings = {name: anchors(text) for name, text in pages.items()}
    present, found = set(known), []
    for name, text in pages.items():
        for at, target in links(text):
            if not ELSEWHERE.match(target) and (wrong := why_not(name, target, present, headings)):
                found.append(f"{name}:{at}: {target}: {wrong}")
    for name in known:
        # Tests invent names of pages.
        if not name.endswith(SOURCES) or "tests" in Path(name).parts:
            continue
        for at, line in enumerate((root / name).read_text(errors="replace").splitlines(), start=1):
            found += [f"{name}:{at}: {page}: no such page" for page in PAGE.findall(line) if page not in present]
    return found


def why_not(page: str, target: str, present: set[str], headings: dict[str, set[str]]) -> str:
    """The reason why a link of a page to a file of the repository leads nowhere; "" if it leads somewhere."""
    path, _, name = urllib.parse.unquote(target).partition("#")
    file = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
    if path.startswith("/") or file.startswith(".."):
        return "not in the repository: write the path from the page's own folder"
    if file not in present:
        return "no such file (a folder is none: name its README.md)"
    if name and file in headings and name not in headings[file]:
        return "no heading has this anchor"
    return ""


def main() -> int:
    found = mistakes(ROOT)
    for mistake in found:
        print(f"links: {mistake}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Builds the documentation site in build/site/html: `make docs`.

scripts/site/build.py [--pages]

The pages of docs/ link to pages and files beside that folder. So all Markdown files of the repository, and the files
that they link to, are copied to build/site/pages in the same folders; mkdocs needs no rewritten links then. --pages
stops before mkdocs. mkdocs is installed in build/site/venv, from requirements.txt beside this file
(`uv pip compile --generate-hashes requirements.in -o requirements.txt` renews it).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import links  # noqa: E402

ROOT = links.ROOT
SITE = ROOT / "build" / "site"
PAGES = SITE / "pages"
REFERENCE = ROOT / "build" / "reference"
REQUIREMENTS = HERE / "requirements.txt"


def copy_pages() -> None:
    """Copies the pages and what they link to, in place of earlier copies, and adds the generated reference."""
    shutil.rmtree(PAGES, ignore_errors=True)
    wanted = {name for name in links.files(ROOT) if name.endswith(".md")}
    for page in tuple(wanted):
        for _, target in links.links((ROOT / page).read_text()):
            if not links.ELSEWHERE.match(target) and not target.startswith("#"):
                path = urllib.parse.unquote(target).partition("#")[0]
                wanted.add(os.path.normpath(os.path.join(os.path.dirname(page), path)))
    for name in wanted:
        copy = PAGES / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
    reference = [str(ROOT / ".venv" / "bin" / "python"), str(HERE.parent / "reference"), str(REFERENCE)]
    subprocess.run(reference, check=True)
    shutil.copytree(REFERENCE / "pages", PAGES / "docs" / "reference")
    for name in ("site.css", "iframe-worker.js"):
        shutil.copyfile(HERE / name, PAGES / name)


def mkdocs() -> Path:
    """The program, installed if it is not there in the version of requirements.txt."""
    environment, stamp = SITE / "venv", SITE / "venv" / ".requirements.sha256"
    program, wanted = environment / "bin" / "mkdocs", hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        print("installing mkdocs into build/site/venv", flush=True)
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--clear", str(environment)], check=True)
        pip = [str(environment / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
        stamp.write_text(wanted)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", action="store_true", help="only write build/site/pages")
    options = parser.parse_args()
    SITE.mkdir(parents=True, exist_ok=True)
    copy_pages()
    if options.pages:
        return 0
    # Suppresses a note of the theme about other programs. `--quiet` would hide the warnings from `--strict`.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [str(mkdocs()), "build", "--strict", "--config-file", str(HERE / "mkdocs.yml")]
    done = subprocess.run(command, env=environment, check=False).returncode
    if done == 0:
        print(f"site: {(SITE / 'html' / 'index.html').relative_to(ROOT)}")
    return done


if __name__ == "__main__":
    sys.exit(main())

"""Tests of the documentation site: its navigation, and (marked `long`) the built site in a browser."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent.parent
SITE = ROOT / "build" / "site"
sys.path.insert(0, str(ROOT / "controller" / "tests"))
from browser import CHROMIUM, Browser  # noqa: E402

PAGES = ("index.html", "docs/tutorial.html", "docs/results.html", "docs/security.html", "docs/wire-format.html")
"""Pages with pictures, long tables and wide code."""
PHONE = 360
"""Width of a small phone, CSS pixels."""
LOADS = re.compile(r"<(?:script|img|iframe|link|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'> ]+)", re.I)
STYLE_LOADS = re.compile(r"url\(\s*[\"']?((?:https?:)?//[^\"')]+)|@import\s+[\"']((?:https?:)?//[^\"']+)", re.I)


def named(navigation: Any) -> list[str]:
    """The pages of a navigation, in order."""
    if isinstance(navigation, str):
        return [navigation]
    parts = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for part in parts for page in named(part)]


def test_every_page_is_in_the_navigation_once() -> None:
    found = named(YAML(typ="safe").load(ROOT / "scripts" / "site" / "mkdocs.yml")["nav"])
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    pages = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    found = [page for page in found if not page.startswith("docs/reference/")]
    assert sorted(found) == sorted(page for page in pages if (ROOT / page).exists())


@pytest.fixture(scope="module")
def html() -> Path:
    """The folder of the built site."""
    command = [sys.executable, str(ROOT / "scripts" / "site" / "build.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return SITE / "html"


@pytest.mark.long
def test_site_loads_nothing_from_other_hosts(html: Path) -> None:
    assert (html / "index.html").exists()
    for file in html.rglob("*"):
        if file.suffix in (".html", ".css"):
            pattern = LOADS if file.suffix == ".html" else STYLE_LOADS
            assert pattern.findall(file.read_text()) == [], file


@pytest.mark.long
def test_link_that_leads_nowhere_fails_the_build(html: Path) -> None:
    page = SITE / "pages" / "docs" / "glossary.md"
    before = page.read_text()
    page.write_text(before + "\n[a](tutorial.md#none)\n")
    try:
        config = str(ROOT / "scripts" / "site" / "mkdocs.yml")
        command = [str(SITE / "venv" / "bin" / "mkdocs"), "build", "--strict", "-f", config, "-d", str(SITE / "broken")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "does not contain an anchor '#none'" in done.stderr, done.stderr
    finally:
        page.write_text(before)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
async def test_pages_fit_a_phone_and_search_finds_them_from_files(html: Path, tmp_path: Path) -> None:
    async with Browser(tmp_path, width=PHONE, height=700) as page:
        for name in PAGES:
            await page.open(f"file://{html}/{name}")
            await page.until(f"document.readyState === 'complete' && location.pathname.endsWith('/{name}')")
            assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE, name
            broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
            assert await page.evaluate(broken) == [], name
        await page.open(f"file://{html}/index.html?q=liveness")
        await page.until("document.querySelectorAll('.md-search-result__item').length > 3")
        assert page.errors == []

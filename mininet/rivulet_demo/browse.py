"""Loads a page again and again with headless Chromium and an empty cache.

    python -m rivulet_demo.browse --out browse.json --picture page.png URL SECONDS

The page itself reports whether all its pictures have arrived, or how many have not. With `--again URL` that page is
loaded once in place of the other; it repeats rounds by itself and reports each on the console.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rivulet_lab import RackError

from .fetch import show_live
from .mosaic import COMPLETE

PATIENCE_S = 60
_ROUND = re.compile(r'CONSOLE.*"round: (\d+) of (\d+) in (\d+) ms"')
_OVER = re.compile(r'CONSOLE.*"over"')
AWAKE = (
    "--disable-background-timer-throttling", "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
)  # fmt: skip
"""Chromium throttles hidden pages, up to a minute at a time, unless these flags prevent it."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--window-size=1000,760",
)  # fmt: skip


def chromium() -> str:
    """Path of the browser's program; RackError if it is not installed."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise RackError("there is no Chromium: `scripts/setup.sh --browser` installs it")
    return found


def load(url: str, *flags: str) -> str:
    """Loads a page with an empty cache; returns the browser's output."""
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium(), *FLAGS, f"--user-data-dir={profile}", *flags, url]
        # Its own session, so that one process group id ends all its processes.
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        ) as browser:
            try:
                return browser.communicate(timeout=PATIENCE_S)[0]
            except subprocess.TimeoutExpired:
                return ""
            finally:
                _kill(browser.pid)


def rounds(url: str, seconds: float, *flags: str) -> Iterator[dict[str, object]]:
    """Rounds that the page reports on the console for this many seconds, over the connections that it keeps."""
    with tempfile.TemporaryDirectory() as profile:
        # At normal priority: at ours a page that never idles would starve the controller.
        ordinary = ["chrt", "--other", "0", "nice", "-n", "-5"]
        # With a debugging port the browser keeps running after the page has loaded.
        more = ["--enable-logging=stderr", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
        with subprocess.Popen(
            [*ordinary, chromium(), *FLAGS, *flags, *AWAKE, *more, f"{url}?{seconds:g}"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as browser:
            assert browser.stderr is not None
            patience = threading.Timer(seconds + PATIENCE_S, _kill, (browser.pid,))
            patience.start()
            try:
                over = False
                for line in browser.stderr:
                    now = time.monotonic()
                    over = over or bool(_OVER.search(line))
                    if said := _ROUND.search(line):
                        came, of, took = (int(number) for number in said.groups())
                        yield _load(now - took / 1e3, took / 1e3, f"{came} of {of} loaded", whole=came == of > 0)
                    if over:
                        return
                yield _load(time.monotonic(), 0.0, "the page did not finish", whole=False)
            finally:
                patience.cancel()
                _kill(browser.pid)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _load(began: float, seconds: float, says: str, whole: bool) -> dict[str, object]:
    return {"at": began, "seconds": seconds, "says": says, "whole": whole}


def loads(url: str, seconds: float, *flags: str) -> Iterator[dict[str, object]]:
    """Loads by a new browser with an empty cache each."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        page = load(url, *flags, "--dump-dom")
        said = re.search(r'id="state">([^<]*)<', page)
        says = said[1] if said else "nothing came"
        yield _load(began, time.monotonic() - began, says, whole=COMPLETE in says)


def main() -> int:
    """Exit code 0 when every load had all objects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("seconds", type=float, help="duration")
    parser.add_argument(
        "--again", metavar="URL", default="", help="a page that is loaded once and repeats its rounds by itself"
    )
    parser.add_argument("--out", type=Path, required=True, help="file for the result, JSON")
    parser.add_argument("--picture", type=Path, required=True, help="file for a screenshot of the last load, PNG")
    parser.add_argument("--live", type=Path, required=True, help="file that is kept up to date with the loads so far")
    parser.add_argument("--flag", action="append", default=[], help="a further flag of Chromium")
    options = parser.parse_args()
    # So that the browser is ended too when this process is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found: list[dict[str, object]] = []
    show_live(options.live, 0)
    repeat, url = (rounds, options.again) if options.again else (loads, options.url)
    for one in repeat(url, options.seconds, *options.flag):
        found.append(one)
        show_live(options.live, len(found))
    load(options.url, *options.flag, f"--screenshot={options.picture}")
    options.out.write_text(json.dumps(found))
    return 0 if found and all(one["whole"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())

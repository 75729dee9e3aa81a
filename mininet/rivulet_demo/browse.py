"""A browser as a user has it: headless Chromium with an empty cache loads a page again and again.

    python -m rivulet_demo.browse --out browse.json --picture page.png URL SECONDS

What counts is what the page says of itself: all its pictures have come, or how many have not. With `--again URL` that
page is loaded once in place of the other, stays, and says on the console what became of each of its rounds.
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
"""A page that nobody looks at is put to sleep otherwise, up to a minute at a time."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--window-size=1000,760",
)  # fmt: skip


def chromium() -> str:
    """The browser's program; RackError where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise RackError("there is no Chromium: `scripts/setup.sh --browser` installs it")
    return found


def load(url: str, *flags: str) -> str:
    """Loads a page with an empty cache; what the browser prints."""
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium(), *FLAGS, f"--user-data-dir={profile}", *flags, url]
        # A session of its own, so that all its processes can be ended by their one id.
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        ) as browser:
            try:
                return browser.communicate(timeout=PATIENCE_S)[0]
            except subprocess.TimeoutExpired:
                return ""
            finally:
                _kill(browser.pid)


def rounds(url: str, seconds: float) -> Iterator[dict[str, object]]:
    """What a page says of itself that loads everything again and again for so long, over the connections it has."""
    with tempfile.TemporaryDirectory() as profile:
        # A page that never rests would keep the controller from the machine, if it were scheduled as we are.
        ordinary = ["chrt", "--other", "0", "nice", "-n", "-5"]
        # It would end at once if nobody could ask it for more.
        more = ["--enable-logging=stderr", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
        with subprocess.Popen(
            [*ordinary, chromium(), *FLAGS, *AWAKE, *more, f"{url}?{seconds:g}"],
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
                        yield _load(now - took / 1e3, took / 1e3, f"{came} of {of} came", whole=came == of > 0)
                    if over:
                        return
                yield _load(time.monotonic(), 0.0, "it did not come to its end", whole=False)
            finally:
                patience.cancel()
                _kill(browser.pid)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _load(began: float, seconds: float, says: str, whole: bool) -> dict[str, object]:
    return {"at": began, "seconds": seconds, "says": says, "whole": whole}


def loads(url: str, seconds: float) -> Iterator[dict[str, object]]:
    """A new browser with an empty cache each time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        page = load(url, "--dump-dom")
        said = re.search(r'id="state">([^<]*)<', page)
        says = said[1] if said else "nothing came"
        yield _load(began, time.monotonic() - began, says, whole=COMPLETE in says)


def main() -> int:
    """Exit code 0 when every load had all objects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("seconds", type=float, help="for how long")
    parser.add_argument("--again", metavar="URL", default="", help="a page that is loaded once and goes on by itself")
    parser.add_argument("--out", type=Path, required=True, help="where the result goes, as JSON")
    parser.add_argument("--picture", type=Path, required=True, help="where the last load's screenshot goes, PNG")
    parser.add_argument("--live", type=Path, required=True, help="a file that always holds the loads so far")
    options = parser.parse_args()
    # So that the browser goes too when this is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found: list[dict[str, object]] = []
    show_live(options.live, 0)
    how = rounds(options.again, options.seconds) if options.again else loads(options.url, options.seconds)
    for one in how:
        found.append(one)
        show_live(options.live, len(found))
    load(options.url, f"--screenshot={options.picture}")
    options.out.write_text(json.dumps(found))
    return 0 if found and all(one["whole"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())

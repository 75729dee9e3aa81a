"""A browser as a user has it: headless Chromium with an empty cache loads a page again and again.

    python -m rivulet_demo.browse --out browse.json --picture page.png URL SECONDS

What counts is what the page says of itself: all its pictures have come, or how many have not.
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
import time
from pathlib import Path

from rivulet_lab import RackError

from .fetch import show_live
from .mosaic import COMPLETE

PATIENCE_S = 60
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
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(browser.pid, signal.SIGKILL)


def main() -> int:
    """Exit code 0 when every load had all objects."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("seconds", type=float, help="for how long")
    parser.add_argument("--out", type=Path, required=True, help="where the result goes, as JSON")
    parser.add_argument("--picture", type=Path, required=True, help="where the last load's screenshot goes, PNG")
    parser.add_argument("--live", type=Path, required=True, help="a file that always holds the loads so far")
    options = parser.parse_args()
    # So that the browser goes too when this is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    loads: list[dict[str, object]] = []
    show_live(options.live, 0)
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        began = time.monotonic()
        page = load(options.url, "--dump-dom")
        said = re.search(r'id="state">([^<]*)<', page)
        says = said[1] if said else "nothing came"
        loads.append({"at": began, "seconds": time.monotonic() - began, "says": says, "whole": COMPLETE in says})
        show_live(options.live, len(loads))
    load(options.url, f"--screenshot={options.picture}")
    options.out.write_text(json.dumps(loads))
    return 0 if loads and all(one["whole"] for one in loads) else 1


if __name__ == "__main__":
    sys.exit(main())

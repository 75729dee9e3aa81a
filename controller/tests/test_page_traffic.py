"""The status page of a real rack: a click drains a replica, and the packets of a real download go
elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from netrack import MEGABYTES, SWITCHES, NetRack, needs_rack
from ports import free_port

from rivulet_controller.client import Client

pytestmark = [
    needs_rack,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.skipif("embedded" not in SWITCHES, reason="needs the embedded switch (make build)"),
]


class PageRack(NetRack):
    """A rack with its API on loopback for a browser; the page may kill r3."""

    def __init__(self, folder: Path, switch: str) -> None:
        super().__init__(folder, switch)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/#token=sesame"
        self.client = Client(f"127.0.0.1:{self.port}", "sesame", timeout_s=10.0)
        (folder / "tokens").touch(mode=0o600)
        (folder / "tokens").write_text("page:apply:sesame\n")

    def description(self) -> str:
        text = (
            super()
            .description()
            .replace(
                f'"unix:{self.folder}/api.sock"',
                f'"127.0.0.1:{self.port}", api_token_file: {self.folder}/tokens, lab: true',
            )
        )
        kill = f'"kill_command": ["sh", "-c", "kill -9 $(cat {self.folder}/r3.pid)"]'
        return text.replace('{"name": "r3",', f'{{"name": "r3", {kill},')

    def start_replica(self, name: str) -> None:
        super().start_replica(name)
        (self.folder / f"{name}.pid").write_text(str(self.processes[name].pid))


@contextmanager
def downloads(rack: NetRack) -> Iterator[list[float]]:
    """Downloads one after the other, none of which may fail; yields the longest gaps in
    milliseconds.
    """
    gaps: list[float] = []
    problems: list[BaseException] = []
    ending = threading.Event()

    def work() -> None:
        try:
            while not ending.is_set():
                gaps.append(rack.finish(rack.download())["longest_gap_ms"])
        except BaseException as error:
            problems.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield gaps
    finally:
        ending.set()
        worker.join(120)
        assert not problems, problems
        assert gaps, "at least one download ended"


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[PageRack]:
    built = PageRack(tmp_path, "embedded")
    try:
        built.build(MEGABYTES)
        yield built
    finally:
        built.down()


def rate(replica: str) -> str:
    """The packets a second that the page shows on a replica's arrow."""
    shown = f"document.querySelector('[data-rate-of=\"{replica}\"]').textContent"
    return f"(t => parseFloat(t) * (t.includes('k') ? 1000 : 1))({shown})"


async def test_click_on_drain_moves_real_packets(rack: PageRack, tmp_path: Path) -> None:
    with downloads(rack):
        async with Browser(tmp_path / "profile") as page:
            await page.open(rack.url)
            await page.until("document.querySelectorAll('[data-replica].live').length === 3", 90.0)
            for name in ("r1", "r2", "r3"):
                await page.until(f"{rate(name)} > 20", 90.0)
            await page.evaluate("window.confirm = () => true")
            await page.click('[data-replica="r1"] [data-action="drain"]')
            await page.until("""document.querySelector('[data-replica="r1"] .state').textContent === 'draining'""")
            # A drained replica may still replace one that a busy machine delayed for longer than
            # the bound.
            few = f"{rate('r1')} < 0.05 * ({rate('r2')} + {rate('r3')})"
            await page.until(f"{few} && {rate('r2')} > 20 && {rate('r3')} > 20", 90.0)
            await page.click('[data-replica="r1"] [data-action="undrain"]')
            await page.until(f"{rate('r1')} > 20", 90.0)
            # A click kills it during a download, which continues.
            await page.click('[data-replica="r3"] [data-action="kill"]')
            excluded = """document.querySelector('[data-replica="r3"] .state').textContent"""
            await page.until(f"['excluded', 'silent'].includes({excluded})", 90.0)
            await asyncio.to_thread(rack.processes.pop("r3").popen.wait, 10)
            await page.until(f"{rate('r3')} === 0 && {rate('r1')} > 20", 90.0)
            rack.start_replica("r3")
            await page.until("document.querySelector('[data-replica=\"r3\"]').classList.contains('live')", 90.0)
            await page.until(f"{rate('r3')} > 20", 90.0)
            assert page.errors == []
            if folder := os.environ.get("RIVULET_SCREENSHOTS"):
                await page.evaluate("window.confirm = () => true")
                await page.click('[data-replica="r2"] [data-action="drain"]')
                await page.click('[data-replica="r3"] .head')
                await asyncio.sleep(20.0)
                for file, size in (("page.png", (1100, 900)), ("page-phone.png", (390, 844))):
                    await page.resize(*size)
                    await asyncio.sleep(1.2)
                    await page.screenshot(Path(folder) / file)

"""The status page in a headless Chromium: what it shows, that its buttons act, and that it loads
nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, running, until
from ports import free_port
from sample_rack import NAMES, RACK

from rivulet_controller.controller import Controller
from rivulet_controller.daemon import serve_api
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@asynccontextmanager
async def rack_with_page(tmp_path: Path, tokens: bool = True) -> AsyncIterator[tuple[Controller, FakeSwitch, str]]:
    """A rack under load with its page, and tokens with the roles read and operate."""
    port = free_port()
    (tmp_path / "tokens").touch(mode=0o600)
    (tmp_path / "tokens").write_text("carol:read:looking\nbob:operate:sesame\n")
    extra = f", api_token_file: {tmp_path}/tokens" if tokens else ""
    listen = f"listen: {{api: '127.0.0.1:{port}', lab: true{extra}}}\nstate: {tmp_path}/state.db\n"
    text = RACK.replace("ip: 10.0.2.1}", f"ip: 10.0.2.1, kill_command: [touch, {tmp_path}/killed]}}") + listen
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path, text) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        tasks = [asyncio.create_task(serve_api(controller, controller.config)), asyncio.create_task(_traffic(switch))]
        agents = [FakeAgent(f"unix:{tmp_path}/agents", name) for name in ("r1", "r2", "r3")]
        agents[1].trods = agent_pb2.TrodsStatus(protected=5, unprotected={"tls": 2, "no_etag": 1}, adopted=1)
        async with agents[0], agents[1], agents[2]:
            try:
                yield controller, switch, f"http://127.0.0.1:{port}/"
            finally:
                for task in tasks:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task


async def _traffic(switch: FakeSwitch) -> None:
    """Counters as a switch counts: requests go to replicas by the first place of the slots."""

    def add(counter: str, cell: int, count: int) -> None:
        switch.counters[counter, cell] = switch.counters.get((counter, cell), 0) + count

    while True:
        held = switch.lines()
        for replica in range(3):
            add("heartbeats", replica, 25)
            asked = 20 * sum(f"first={replica:#x}," in line for line in held)
            # One of five packets is plain TCP.
            add("replica_packets", replica, 5 * asked // 4)
            add("replica_requests", replica, asked)
            add("port_answers", 101 + replica, asked)
        add("drops", NAMES.value("drop_reason_t", "REPLAY"), 1)
        await asyncio.sleep(0.05)


async def test_page_shows_trods_counts(tmp_path: Path) -> None:
    async with rack_with_page(tmp_path, tokens=False) as (_, _, url), Browser(tmp_path / "profile") as page:
        await page.open(url)
        numbers = """document.querySelector('[data-replica="{}"] .numbers').textContent"""
        await page.until(
            f"""document.querySelector('[data-replica="r2"]') && {numbers.format("r2")}.includes('TRODS')""", 60.0
        )
        shown = await page.evaluate(numbers.format("r2"))
        assert shown.endswith("TRODS: 5 protected, 3 not (no etag 1, tls 2), 1 adopted, 0 refused")
        assert "TRODS" not in await page.evaluate(numbers.format("r1"))
        assert page.errors == []


async def test_click_on_drain_moves_traffic(tmp_path: Path) -> None:
    async with rack_with_page(tmp_path) as (controller, _, url), Browser(tmp_path / "profile") as page:
        await page.open(f"{url}#token=sesame")
        await page.until("""document.querySelector('[data-replica="r1"]')?.classList.contains('live')""", 60.0)
        rate = "parseFloat(document.querySelector('[data-rate-of=\"r1\"]').textContent)"
        await page.until(f"{rate} > 0")
        await page.evaluate("window.confirm = () => true")
        await page.click('[data-replica="r1"] [data-action="drain"]')
        await until(lambda: controller.draining() == {"r1"}, "the controller drains r1")
        await page.until("""document.querySelector('[data-replica="r1"] .state').textContent === 'draining'""")
        await page.until(f"{rate} === 0")
        await page.click('[data-replica="r1"] [data-action="undrain"]')
        await page.until(f"{rate} > 0")
        assert page.errors == []


async def test_kill_button_confirms_and_appears_only_in_labs(tmp_path: Path) -> None:
    async with rack_with_page(tmp_path) as (_, _, url), Browser(tmp_path / "profile") as page:
        await page.open(f"{url}#token=sesame")
        await page.until("""document.querySelectorAll('[data-replica]').length === 3""", 60.0)
        assert await page.evaluate("""document.querySelector('[data-replica="r2"] [data-action="kill"]').hidden""")
        await page.evaluate("window.asked = 0, window.confirm = () => (++window.asked, false)")
        await page.click('[data-replica="r1"] [data-action="kill"]')
        assert await page.evaluate("window.asked") == 1 and not (tmp_path / "killed").exists()
        await page.evaluate("window.confirm = () => true")
        await page.click('[data-replica="r1"] [data-action="kill"]')
        await until((tmp_path / "killed").exists, "the kill command ran")


async def test_page_fits_a_phone_and_loads_nothing_external(tmp_path: Path) -> None:
    async with rack_with_page(tmp_path) as (controller, switch, url), Browser(tmp_path / "profile", 360, 740) as page:
        await page.open(f"{url}#token=sesame")
        await page.until("""document.querySelector('[data-replica="r3"]')?.classList.contains('live')""", 60.0)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360, "nothing sticks out sideways"
        for what in ("#rack text", ".reason", "button", "td"):
            sizes = f"[...document.querySelectorAll({what!r})].map(e => parseFloat(getComputedStyle(e).fontSize))"
            assert await page.evaluate(f"Math.min(...{sizes})") >= 12, f"{what} is too small to read"
        assert await page.evaluate("document.querySelector('#rack').getBoundingClientRect().width") <= 360
        scale = "(s => s.getBoundingClientRect().width / s.viewBox.baseVal.width)(document.querySelector('#rack'))"
        assert await page.evaluate(scale) > 0.95, "the picture is drawn for this width, not shrunk"
        touch = "[...document.querySelectorAll('button')].filter(b => b.offsetParent).map(b => b.offsetHeight)"
        assert await page.evaluate(f"Math.min(...{touch})") >= 32
        urls = await page.evaluate("performance.getEntriesByType('resource').map(r => r.name)")
        assert all(name.startswith(url) for name in urls), urls
        switch.counters["replica_exclusions", 1] = 1
        await page.until("""document.querySelector('[data-replica="r2"] .state').textContent === 'excluded'""")
        controller.refuse_config("a test", "rack.yaml:3: <b>wrong</b>")
        await page.until("!document.querySelector('#problem').hidden")
        assert await page.evaluate("document.querySelector('#problem b')") is None, "text stays text"
        assert page.errors == []


async def test_page_asks_for_token(tmp_path: Path) -> None:
    async with rack_with_page(tmp_path) as (controller, _, url), Browser(tmp_path / "profile") as page:
        await page.open(url)
        await page.until("document.querySelector('#token')?.hidden === false", 60.0)
        assert await page.evaluate("document.querySelectorAll('[data-replica]').length") == 0
        button = """document.querySelector('[data-replica="r2"] [data-action="drain"]')"""
        shown = f"(e => e !== null && e.offsetParent !== null)({button})"
        for token, buttons in (("looking", False), ("sesame", True)):
            await page.evaluate("document.querySelector('#change').click()")
            await page.evaluate(f"document.querySelector('#token input').value = '{token}'")
            await page.click("#token button")
            await page.until("document.querySelectorAll('[data-replica]').length === 3")
            await page.until(f"({shown}) === {str(buttons).lower()}")
        await page.evaluate("window.asked = 0, window.confirm = () => ++window.asked > 1")
        await page.click('[data-replica="r2"] [data-action="drain"]')
        assert await page.evaluate("window.asked") == 1 and controller.draining() == frozenset()
        await page.click('[data-replica="r2"] [data-action="drain"]')
        await until(lambda: controller.draining() == {"r2"}, "drained with the token")


async def test_page_without_tokens_is_read_only(tmp_path: Path) -> None:
    async with rack_with_page(tmp_path, tokens=False) as (_, _, url), Browser(tmp_path / "profile") as page:
        await page.open(url)
        await page.until("document.querySelectorAll('[data-replica]').length === 3", 60.0)
        buttons = "[...document.querySelectorAll('[data-action]')].filter(b => b.offsetParent).length"
        assert await page.evaluate(buttons) == 0


async def test_screenshots(tmp_path: Path) -> None:
    """Takes screenshots of both widths; the pictures of docs/ are those of a real rack
    (test_page_traffic.py).
    """
    async with rack_with_page(tmp_path) as (controller, switch, url), Browser(tmp_path / "profile") as page:
        await page.open(f"{url}#token=sesame")
        await page.until("""document.querySelector('[data-replica="r1"]')?.classList.contains('live')""", 60.0)
        await controller.decide("r2", draining=True)
        await asyncio.sleep(1.0)
        for name, size in (("page.png", (1100, 900)), ("page-phone.png", (390, 844))):
            await page.resize(*size)
            await asyncio.sleep(1.2)
            await page.screenshot(tmp_path / name)
            assert (tmp_path / name).stat().st_size > 10_000
        assert switch.counters

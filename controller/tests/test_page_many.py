"""The status page of a large rack: two switches are two nodes, and 64 replicas fit on a screen."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from browser import CHROMIUM, Browser
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import running, until
from ports import free_port
from sample_rack import NAMES
from typer.testing import CliRunner

from rivulet_controller import cli
from rivulet_controller.client import Client
from rivulet_controller.controller import Controller
from rivulet_controller.daemon import serve_api

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
REPLICAS = 64
FIRST, SECOND = "tor1", "tor2"


def large(addresses: tuple[str, str], folder: Path, port: int) -> str:
    """Two racks with half of the replicas each, and one service of all."""
    lines = ["switches:"]
    for number, (name, address) in enumerate(zip((FIRST, SECOND), addresses, strict=True), 1):
        ports = [1, *range(101, 101 + REPLICAS // 2)]
        lines += [
            f"  - name: {name}",
            f"    address: {address}",
            f"    number: {number}",
            f'    mac: "02:00:00:00:0{number}:fe"',
            f"    addresses: [10.0.{number}.254]",
            f"    ports: {ports}",
            f'    hosts: [{{ip: 10.0.{number}.200, mac: "02:00:00:00:0{number}:01", port: 1}}]',
            f"    routes: [{{prefix: 0.0.0.0/0, via: 10.0.{number}.200}}]",
        ]
    lines += ["replicas:"]
    for index in range(REPLICAS):
        rack, place = 1 + index * 2 // REPLICAS, index % (REPLICAS // 2)
        mac = f"02:00:00:0{rack}:02:{place:02x}"
        where = f'switch: tor{rack}, port: {101 + place}, mac: "{mac}", ip: 10.0.{rack}.{1 + place}'
        lines.append(f"  - {{name: r{index + 1}, {where}}}")
    names = [f"r{index + 1}" for index in range(REPLICAS)]
    lines += [f"services: [{{name: web, addresses: [10.9.0.1], port: 80, replicas: {names}}}]"]
    lines += [f"listen: {{api: '127.0.0.1:{port}', control: 'unix:{folder}/control', lab: true}}"]
    lines += [f"state: {folder}/state.db"]
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def rack(tmp_path: Path) -> AsyncIterator[tuple[Controller, tuple[FakeSwitch, FakeSwitch], str]]:
    """Two switches under load, the controller and its page. Each switch sends to its own replicas,
    the first one also a little to the other rack's.
    """
    port = free_port()

    async def traffic() -> None:
        while True:
            for index in range(REPLICAS):
                home = index * 2 // REPLICAS
                for number, switch in enumerate((one, two)):
                    asked = 10 + index if number == home else 2 * (number == 0)
                    for counter, cell, count in (
                        ("heartbeats", index, 25),
                        ("replica_requests", index, asked),
                        ("replica_packets", index, asked),
                        ("port_answers", 101 + index % (REPLICAS // 2), asked),
                    ):
                        switch.counters[counter, cell] = switch.counters.get((counter, cell), 0) + count
            await asyncio.sleep(0.1)

    async with FakeSwitch(NAMES) as one, FakeSwitch(NAMES) as two:
        text = large((one.address, two.address), tmp_path, port)
        async with running(one, tmp_path, text) as controller:
            tasks = [asyncio.create_task(serve_api(controller, controller.config)), asyncio.create_task(traffic())]
            try:
                await until(lambda: len(controller.fleet.health.before) == 2, "both are read")
                yield controller, (one, two), f"http://127.0.0.1:{port}/"
            finally:
                for task in tasks:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task


def bottom(selector: str) -> str:
    """The lower edge of the lowest of some elements."""
    return f"Math.max(...[...document.querySelectorAll({selector!r})].map(e => e.getBoundingClientRect().bottom))"


async def test_64_replicas_fit_on_one_screen(tmp_path: Path) -> None:
    async with rack(tmp_path) as (_, (one, _), url), Browser(tmp_path / "profile", 1280, 800) as page:
        await page.open(url)
        await page.until(f"document.querySelectorAll('[data-replica].live').length === {REPLICAS}", 60.0)
        nodes = "[...document.querySelectorAll('[data-node={}]')].length"
        assert await page.evaluate(nodes.format("switch")) == 2
        assert await page.evaluate(nodes.format("replica")) == 2, "all of a switch together"
        assert await page.evaluate(bottom("[data-replica]")) <= 800, "all at a glance"
        assert await page.evaluate("document.documentElement.scrollWidth") <= 1280
        # A tile shows that its replica is excluded; a click shows all details.
        one.counters["replica_exclusions", 6] = 1
        await page.until("""document.querySelector('[data-replica="r7"]').classList.contains('excluded')""")
        colour = "getComputedStyle(document.querySelector('[data-replica=\"{}\"]')).borderLeftColor"
        assert await page.evaluate(colour.format("r7")) != await page.evaluate(colour.format("r8"))
        await page.evaluate("""document.querySelector('[data-replica="r7"] .head').click()""")
        await page.until("document.querySelectorAll('[data-replica=\"r7\"] .past').length >= 3")
        shown_text = await page.evaluate("""document.querySelector('[data-replica="r7"] .more').textContent""")
        assert "by tor1: excluded by tor1" in shown_text and "live" in shown_text, shown_text
        if folder := os.environ.get("RIVULET_SCREENSHOTS_MANY"):
            await asyncio.sleep(3.0)
            await page.screenshot(Path(folder) / "many-open.png")
            await page.evaluate("""document.querySelector('[data-replica="r7"] .head').click()""")
            await asyncio.sleep(1.2)
            await page.screenshot(Path(folder) / "many.png")
        await page.resize(390, 844)
        await asyncio.sleep(1.2)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        await page.evaluate("""document.querySelector('.open .head')?.click()""")
        height = "document.querySelector('#replicas').getBoundingClientRect().height"
        assert await page.evaluate(height) <= 844, "a phone's screen is enough for all"
        sizes = "[...document.querySelectorAll('.head span')].map(e => parseFloat(getComputedStyle(e).fontSize))"
        assert await page.evaluate(f"Math.min(...{sizes})") >= 12
        if folder:
            await page.screenshot(Path(folder) / "many-phone.png")
            await page.evaluate("document.querySelector('#replicas').scrollIntoView()")
            await page.screenshot(Path(folder) / "many-phone-2.png")
        assert page.errors == []


async def test_page_and_rivuletctl_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    async with rack(tmp_path) as (controller, _, url), Browser(tmp_path / "profile", 1280, 800) as page:
        agent = FakeAgent(f"unix:{tmp_path}/agents", "r3")
        async with agent:
            address = f"unix:{tmp_path}/control"
            client = Client(address)
            await until(lambda: controller.view("r3").agent, "its agent is there")
            await asyncio.to_thread(client.post, "/api/replicas/r3/drain")
            await asyncio.to_thread(client.post, "/api/services/web/rotate", {"kinds": ["seal"]})
            await until(lambda: controller.view("r3").state == "draining", "it drains")
            found = await asyncio.to_thread(client.get, "/api/status")

            async def run(*arguments: str) -> str:
                result = await asyncio.to_thread(CliRunner().invoke, cli.app, ["--api", address, *arguments])
                assert result.exit_code == 0, result.output
                return str(result.output)

            await page.open(url)
            await page.until("""document.querySelector('[data-replica="r3"]')?.classList.contains('draining')""", 60.0)
            shown = await page.evaluate("document.querySelector('#events').textContent")
            for expected in (": drain r3", ": rotate service web, kinds seal"):
                assert expected in shown, shown
            keys = await page.evaluate("document.querySelector('#services').textContent")
            assert re.search(r"old, (next in \d+ min|\d+ being distributed)", keys), keys
            table = await run("services")
            assert re.search(r"old, (next in \d+ min|\d+ being distributed)", table), table
            # The history is updated once a second.
            await until(lambda: controller.monitor.history.states("r3")[-1]["state"] == "draining", "it is noted")
            shown_text = await run("replica", "r3")
            assert (
                "not excluded since the controller started" in shown_text
                and "draining new flows go elsewhere" in shown_text
            )
            assert [each["name"] for each in found["replicas"]] == [f"r{i + 1}" for i in range(REPLICAS)]
            rows = (await run("replicas")).splitlines()
            assert sum("tor2" in row for row in rows) == REPLICAS // 2


async def test_page_counts_requests_not_packets(tmp_path: Path) -> None:
    """Requests by switch and replica, as each switch counts them, without packets of plain TCP."""
    async with rack(tmp_path) as (controller, (one, _), url):
        one.counters["replica_packets", 0] += 1_000_000
        await until(lambda: controller.view("r1").packets_per_s > 100_000, "plain packets")
        async with httpx.AsyncClient(base_url=url) as client:
            found = (await client.get("/api/replicas/r33")).json()
            assert (await client.get("/api/replicas/r99")).status_code == 404
        assert set(found["requests_by_switch"]) == {FIRST, SECOND}
        assert 0 < found["requests_by_switch"][FIRST] < found["requests_by_switch"][SECOND]
        assert controller.view("r1").requests_per_s < 10_000
        assert all(second["requests"] < 100_000 for second in controller.fleet.health.history)

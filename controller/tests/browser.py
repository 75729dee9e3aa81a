"""Drives a headless Chromium over its DevTools protocol: opens a page, evaluates JavaScript,
clicks.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import websockets

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
START_S = 60.0


class Navigated(Exception):
    """The page was left during an evaluation."""


class Browser:
    """One page of a browser with a profile of its own.

    >>> async with Browser(folder) as page:
    ...     await page.open("http://127.0.0.1:8080/")
    """

    def __init__(self, profile: Path, width: int = 1200, height: int = 1000) -> None:
        self._profile = profile
        self._size = (width, height)
        self._process: asyncio.subprocess.Process | None = None
        self._socket: Any = None
        self._number = 0
        self.errors: list[str] = []
        """Exceptions of the page, and requests that its policy refused."""

    async def __aenter__(self) -> Browser:
        assert CHROMIUM is not None
        self._process = await asyncio.create_subprocess_exec(
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
            "--remote-debugging-port=0", f"--user-data-dir={self._profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        port = await self._port()
        async with httpx.AsyncClient(trust_env=False) as client:
            targets = (await client.get(f"http://127.0.0.1:{port}/json/list")).json()
        target = next(t for t in targets if t["type"] == "page")
        self._socket = await websockets.connect(target["webSocketDebuggerUrl"], max_size=64 << 20, proxy=None)
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.resize(*self._size)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._socket is not None:
            await self._socket.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()

    async def _port(self) -> int:
        """The port that the browser chose, from a file in its profile."""
        file = self._profile / "DevToolsActivePort"
        async with asyncio.timeout(START_S):
            while True:
                lines = file.read_text().splitlines() if file.exists() else []
                if len(lines) >= 2:
                    return int(lines[0])
                await asyncio.sleep(0.05)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a DevTools command. Raises AssertionError if the browser refuses it."""
        self._number += 1
        number = self._number
        await self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        async with asyncio.timeout(START_S):
            while True:
                message = json.loads(await self._socket.recv())
                if message.get("method") == "Runtime.exceptionThrown":
                    self.errors.append(str(message["params"]["exceptionDetails"]))
                elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                    self.errors.append(message["params"]["entry"]["text"])
                if message.get("id") == number:
                    if message.get("error", {}).get("message") == "Inspected target navigated or closed":
                        raise Navigated
                    assert "error" not in message, message["error"]
                    return dict(message["result"])

    async def resize(self, width: int, height: int) -> None:
        """Sets the viewport's size in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def open(self, url: str) -> None:
        """Opens an address."""
        await self.call("Page.navigate", url=url)

    async def evaluate(self, script: str) -> Any:
        """Evaluates a JavaScript expression."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str, patience_s: float = 40.0) -> Any:
        """Waits until a JavaScript expression is true."""
        end, value = asyncio.get_running_loop().time() + patience_s, None
        while True:
            # A page that is being reloaded answers once it is loaded.
            with suppress(Navigated):
                value = await self.evaluate(script)
            if value:
                return value
            assert asyncio.get_running_loop().time() < end, f"not within {patience_s:g} s: {script}"
            await asyncio.sleep(0.05)

    async def click(self, selector: str) -> None:
        """Clicks with the mouse on the middle of an element."""
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = await self.evaluate(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    async def screenshot(self, path: Path, whole: bool = True) -> None:
        """A screenshot of the page as PNG."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))

"""Configurations are checked in worker processes: whatever they contain, the API and agents are
served meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pytest
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, rack, running, served, until
from ports import free_port
from sample_rack import NAMES, RACK

from rivulet_controller import daemon
from rivulet_controller import worker as worker_module
from rivulet_controller.config import ConfigError
from rivulet_controller.worker import Busy, Overdue, Worker

ME = {"x-rivulet-client": "a reader"}

ANSWERS, REPORTS = 20, 2
"""Least number of API responses and agents' reports while a plan is checked; on the event loop
there would be one or none."""


def hostile(services: int = 900, slots: int = 64, members: int = 64) -> str:
    """80 kB of configuration that fits a switch's tables, with slots that take many seconds to
    compute.
    """
    replicas = ",".join(
        f"{{name: r{i}, switch: tor1, port: 101, ip: 10.0.{2 + i // 200}.{1 + i % 200}}}" for i in range(members)
    )
    names = ",".join(f"r{i}" for i in range(members))
    of_each = ",".join(
        f"{{name: s{i}, addresses: [10.9.{i // 200}.{1 + i % 200}], port: 80, pool: p, slots: {slots},"
        f" replicas: {f'&all [{names}]' if i == 0 else '*all'}}}"
        for i in range(services)
    )
    head = RACK[: RACK.index("replicas:")]
    return f"{head}replicas: [{replicas}]\nservices: [{of_each}]\n"


async def test_api_and_agents_are_served_during_hostile_plan(tmp_path: Path) -> None:
    port = free_port()
    text = hostile()
    assert 70_000 < len(text) < 100_000
    async with (
        served(tmp_path, "", f"127.0.0.1:{port}") as (controller, _),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=300.0) as client,
        FakeAgent(f"unix:{tmp_path}/agents", "r1") as agent,
    ):
        await until(lambda: "r1" in controller.agents.agents, "r1 is there")
        known = controller.agents.agents["r1"]
        plan = asyncio.create_task(client.post("/api/plan", content=text, headers=ME))
        answered = reported = 0
        while not plan.done():
            assert (await client.get("/api/leader")).json()["leading"]
            answered += 1
            if answered % 5 == 0:
                before = known.reported_at
                agent._fresh.set()
                await until(lambda before=before: known.reported_at > before, "a report comes in")  # type: ignore[misc]
                reported += 1
        assert answered >= ANSWERS and reported >= REPORTS, (answered, reported)
        answer = await plan
        assert answer.status_code == 200
        assert sum("slots[" in line and line[0] == "+" for line in answer.json()["tor1"]) > 50_000
        # A job that takes too long is refused, and the next one runs normally.
        controller.validator.plans = Worker("plans", cpu_s=1.0)
        answer = await client.post("/api/plan", content=text, headers=ME)
        assert answer.status_code == 422
        assert answer.json()["detail"] == [
            "config: checking it took more than 1 s of processor time, 120 s or 1 GiB of memory"
        ]
        good = await client.post("/api/plan", content=controller.text, headers=ME)
        assert good.status_code == 200 and good.json() == {"tor1": []}


async def test_too_many_entries_are_refused_before_computing(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        for text, table in ((hostile(slots=1024), "slots"), (hostile(200).replace("pool: p, ", ""), "replicas")):
            with pytest.raises(ConfigError, match=f"entries for table `{table}`, which has"):
                await controller.validator.plan(rack(switch, text), controller.local)
            with pytest.raises(ConfigError, match=f"entries for table `{table}`, which has"):
                await controller.validator.change(rack(switch, text), "config", controller.local)


async def test_change_is_checked_while_plans_wait(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        validator = controller.validator
        await validator.plan(rack(switch), controller.local)
        assert validator.plans.pid is not None
        os.kill(validator.plans.pid, signal.SIGSTOP)
        plans = [asyncio.create_task(validator.plan(rack(switch), controller.local)) for _ in range(7)]
        await until(lambda: sum(plan.done() for plan in plans) == 2, "two do not wait")
        refused = [plan for plan in plans if plan.done()]
        assert [type(plan.exception()) for plan in refused] == [Busy, Busy]
        changed = await validator.change(rack(switch).replace("liveness: 20ms", "liveness: 25ms"), "config")
        assert changed.services[0].liveness == 0.025 and len([p for p in plans if p.done()]) == 2
        os.kill(validator.plans.pid, signal.SIGCONT)
        assert {await plan for plan in plans if plan not in refused} == {b'{"tor1": []}'}


async def test_waiting_or_refused_plans_copy_nothing(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        validator, baseline, copies = controller.validator, controller.validator._baseline, []
        validator._baseline = lambda: copies.append(1) or baseline()  # type: ignore[func-returns-value]
        await validator.plan(rack(switch), controller.local)
        assert validator.plans.pid is not None and len(copies) == 1
        os.kill(validator.plans.pid, signal.SIGSTOP)
        plans = [asyncio.create_task(validator.plan(rack(switch), controller.local)) for _ in range(50)]
        await until(lambda: sum(plan.done() for plan in plans) == 45, "all but five are refused")
        assert len(copies) == 2, "that of the plan that runs"
        os.kill(validator.plans.pid, signal.SIGCONT)
        await asyncio.gather(*plans, return_exceptions=True)
        assert len(copies) == 6


async def test_worker_imports_nothing_from_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pickle", "resource", "rivulet_controller"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nraise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    worker = Worker("tests")
    assert await worker.run(pid) != os.getpid()
    await worker.stop()
    assert not (tmp_path / "imported").exists()


def spins() -> None:
    while True:
        pass


def sleeps() -> None:
    time.sleep(3600)


def grows() -> int:
    held = []
    while True:
        held.append(bytearray(1 << 20))


def is_large() -> bytes:
    return bytes(worker_module.ANSWER_MAX_BYTES + 1)


def fails() -> None:
    raise ValueError("of the job")


def pid() -> int:
    return os.getpid()


async def test_excessive_job_is_killed_and_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker("tests", cpu_s=1.0, wall_s=60.0)
    before = await worker.run(pid)
    assert before != os.getpid() and await worker.run(pid) == before, "one process does job after job"
    for job in (spins, grows, is_large):
        with pytest.raises(Overdue):
            await worker.run(job)
        after = await worker.run(pid)
        assert after != before, job.__name__
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        before = after
    assert "TimeoutError" not in caplog.text, "the bounds of processor time and memory end them, not the clock"
    with pytest.raises(ValueError, match="of the job"):
        await worker.run(fails)
    assert await worker.run(pid) == before, "a job that fails ends nothing"
    await worker.stop()


async def test_job_that_waits_forever_is_killed() -> None:
    worker = Worker("tests", wall_s=3.0)
    with pytest.raises(Overdue):
        await worker.run(sleeps)
    assert worker.pid is None
    await worker.stop()


async def test_idle_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "IDLE_S", 0.05)
    worker = Worker("tests")
    number = await worker.run(pid)

    def has_ended() -> bool:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        return False

    await until(has_ended, "it ends by itself")
    assert await worker.run(pid) != number
    await worker.stop()


async def test_file_is_checked_again_after_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "FILE_POLL_S", 0.05)
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        path, validator = tmp_path / "rack.yaml", controller.validator
        path.write_text(rack(switch))
        await validator.change(rack(switch), "config")
        following = asyncio.create_task(daemon._follow_file(controller, path, asyncio.Event()))
        assert validator.changes.pid is not None
        os.kill(validator.changes.pid, signal.SIGSTOP)
        changes = [asyncio.create_task(validator.change(rack(switch), "config")) for _ in range(5)]
        await asyncio.sleep(0.1)
        path.write_text(rack(switch).replace("liveness: 20ms", "liveness: 25ms"))
        await until(lambda: "try again later" in controller.config_problem, "it is refused")
        os.kill(validator.changes.pid, signal.SIGCONT)
        await asyncio.gather(*changes)
        await until(lambda: controller.config.services[0].liveness == 0.025, "it is in force")
        await until(lambda: not controller.config_problem, "there is no problem any more")
        following.cancel()

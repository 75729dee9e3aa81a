"""A service that an agent refuses is a problem of the controller at once, without effect on other
services.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, running, until
from sample_rack import NAMES, RACK
from test_changes import OTHER

from rivulet_controller import view
from rivulet_controller.keys import Kind
from rivulet_controller.metrics import Metrics

WHY = "service other: an address that is not one host's"


async def test_refused_service_is_shown_and_isolated(tmp_path: Path) -> None:
    async with (
        FakeSwitch(NAMES) as switch,
        running(switch, tmp_path, RACK + OTHER) as controller,
        AsyncExitStack() as stack,
    ):
        agents = [
            await stack.enter_async_context(FakeAgent(f"unix:{tmp_path}/agents", name)) for name in ("r1", "r2", "r3")
        ]
        await until(lambda: as_described(controller, switch), "first apply")
        await until(lambda: all(agent.newest.version for agent in agents), "an update each")
        assert controller.problems() == [] and view.snapshot(controller)["problems"] == []
        agents[0].refuses = {"other": WHY}
        controller.rotate("web", frozenset({Kind.SEAL}))
        problem = f"replica r1: its agent refuses: {WHY}"
        await until(lambda: controller.problems() == [problem], "a problem of the controller")
        snapshot = view.snapshot(controller)
        assert snapshot["problems"] == [problem]
        by_name = {replica["name"]: replica for replica in snapshot["replicas"]}
        assert by_name["r1"]["refused_services"] == ["other"] and by_name["r2"]["refused_services"] == []
        text = Metrics(controller).text().decode()
        assert 'rivulet_replica_refused_services{replica="r1"} 1.0' in text
        assert 'rivulet_replica_refused_services{replica="r2"} 0.0' in text and "rivulet_problems 1.0" in text

        r1 = agents[0].newest.services[0].replica

        def firsts(service: str) -> set[int]:
            return next({*s.slots[::2]} for s in agents[1].newest.services if s.name == service)

        await until(lambda: r1 not in firsts("other"), "its slots go to the others")
        assert r1 in firsts("web"), "what it serves it keeps"
        await until(lambda: as_described(controller, switch), "the switch too")
        await until(
            lambda: (key := controller.state.rings["web"].usable(Kind.SEAL)) is not None and key.epoch > 1, "a key"
        )

        agents[0].refuses = {}
        controller.rotate("other", frozenset({Kind.SEAL}))
        await until(lambda: controller.problems() == [] and r1 in firsts("other"), "all is well again")

"""Replicas are upgraded one after the other during a download, an ssh session and a websocket,
which all continue.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from netrack import REPOSITORY, SERVICE, needs_rack
from test_trods_survival import PlainRack, download, holder, standing, upgrade

from rivulet_lab import Process, talk

pytestmark = [
    needs_rack,
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("memcached") is None or shutil.which("sshd", path="/usr/sbin") is None,
        reason="memcached or openssh-server is not installed",
    ),
]

SSH, CHAT = 22, 8080


class TalkRack(PlainRack):
    """Replicas that serve sessions beside nginx: sshd as the kernel's plain TCP, and a websocket
    echo under TRODS.
    """

    def description(self) -> str:
        text = super().description()
        start = text.index("  - name: files\n")
        files = text[start : text.index("keys:")]
        chat = files.replace("name: files", "name: chat").replace("port: 80\n", f"port: {CHAT}\n")
        ssh = chat.replace("name: chat", "name: ssh").replace(f"port: {CHAT}\n", f"port: {SSH}\n")
        ssh = "".join(line for line in ssh.splitlines(True) if "trods" not in line)
        return text[: start + len(files)] + chat + ssh + text[start + len(files) :]

    def start_replica(self, name: str) -> None:
        """Starts all servers and the agent."""
        if f"sshd {name}" not in self.processes:
            self.start(f"sshd {name}", talk.sshd(self.folder / "ssh", f"{SERVICE}:{SSH}"), self.spaces[name])
            self.start(f"chat {name}", _talk("serve-websocket", SERVICE, str(CHAT)), self.spaces[name])
        super().start_replica(name)

    def agent(self, name: str, program: str) -> list[str]:
        """No health check by HTTP, since not all of its services use HTTP."""
        command = super().agent(name, program)
        at = command.index("--health-path")
        return command[:at] + command[at + 2 :]

    def session(self, what: str, port: int) -> Process:
        """Starts a client's session."""
        key = [str(self.folder / "ssh" / "client")] if what == "ssh" else []
        return self.start(what, _talk(what, SERVICE, str(port), *key), self.spaces["c1"], stdout=subprocess.PIPE)


def _talk(*arguments: str) -> list[str]:
    path = f"import sys; sys.path.insert(0, {str(REPOSITORY / 'mininet')!r})"
    return [sys.executable, "-c", f"{path}; from rivulet_lab.talk import main; sys.exit(main())", *arguments]


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TalkRack]:
    """One rack for all tests of this file."""
    with standing(TalkRack(tmp_path_factory.mktemp("moves"), "embedded")) as rack:
        yield rack


def test_connections_survive_upgrade_of_each_replica(rack: TalkRack) -> None:
    before = rack.exclusions()
    sessions = {what: rack.session(what, port) for what, port in (("ssh", SSH), ("websocket", CHAT))}
    for what, session in sessions.items():
        assert session.popen.stdout is not None and session.popen.stdout.readline() == b"talking\n", what
    flow = download(rack, 42501)
    first = holder(rack, flow)
    # Upgrades the download's replica first, so that the download moves.
    order = [first, *(name for name in rack.replicas if name != first)]
    for name in order:
        # The download may be over before the second upgrade.
        upgrade(rack, name, flow if name == order[0] else None)
    assert flow.ended_well(), rack.status()
    for what, session in sessions.items():
        session.popen.terminate()
        report = json.loads(session.output(60))
        assert report["whole"], (what, report)
        assert report["answers"] > 0
    assert rack.trods("refused") == 0
    assert rack.exclusions() == before, "an agent that was restarted was missed"

"""Tests of the lab: it finds binaries, and removes everything at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rivulet_lab import End, Lab, RackError, binary, shape, standing, switches, veth

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def namespaces() -> set[str]:
    """The namespaces of `ip netns` that this process made."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.startswith(f"rv{os.getpid()}-")}


def has_ended(pid: int) -> bool:
    """Whether a process has ended (it may wait for its parent)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_binaries_are_searched_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVULET_BIN", str(tmp_path))
    with pytest.raises(RackError, match=f"{tmp_path}/rivulet-switch does not exist: run `make build` first"):
        switches.program("embedded")
    (tmp_path / "rivulet-switch").touch()
    assert binary("rivulet-switch") == switches.program("embedded") == str(tmp_path / "rivulet-switch")
    monkeypatch.delenv("RIVULET_BIN")
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path))
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "rivulet").touch()
    assert binary("rivulet") == str(tmp_path / "ci" / "rivulet")


def test_failed_wait_reports_log(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    ended = lab.start("brief", ["sh", "-c", "echo last words; exit 3"])
    with pytest.raises(RackError, match=r"it continues: brief ended \(3\)\nthe log of brief ends:\nlast words"):
        lab.until(lambda: False, "it continues", 20.0, ended)
    with pytest.raises(RackError, match=r"it continues: not within 0\.1 s"):
        lab.until(lambda: False, "it continues", 0.1)
    piped = lab.start("piped", ["sh", "-c", "echo words >&2; exit 4"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with pytest.raises(RackError, match=r"piped failed \(4\): words"):
        piped.output()


@needs_root
def test_bpf_file_system_is_mounted_while_lab_runs(tmp_path: Path) -> None:
    with standing(Lab(tmp_path)) as lab:
        folder = lab.bpf_fs()
        assert folder == tmp_path / "bpf" and folder.is_mount()
        (folder / "pins").mkdir()
    assert not folder.is_mount() and not list(folder.iterdir())


def test_process_ignoring_sigterm_is_killed_and_names_are_unique(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    stubborn = lab.start("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"])
    lab.until(lambda: "ready" in stubborn.text(), "it is ready", 20.0, stubborn)
    with pytest.raises(RackError, match="stubborn is already running"):
        lab.start("stubborn", ["true"])
    stubborn.end(patience_s=0.1)
    assert stubborn.popen.returncode == -signal.SIGKILL


def test_processes_end_when_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys, pathlib\nfrom rivulet_lab import Lab\n"
        "lab = Lab(pathlib.Path(sys.argv[1]))\n"
        "process = lab.start('sleep', ['sh', '-c', 'echo ready; exec sleep 1000'])\n"
        "lab.until(lambda: 'ready' in process.text(), 'it runs', 20.0, process)\n"
        "print(process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    Lab(tmp_path).until(lambda: has_ended(int(done.stdout)), "it ends with its parent", 20.0)


@needs_root
def test_link_forwards_whole_frames_and_is_removed(tmp_path: Path) -> None:
    before = namespaces()
    with pytest.raises(RackError, match=r"`ip netns exec .* ping .*` failed"), standing(Lab(tmp_path)) as lab:
        one, two = lab.namespace("one"), lab.namespace("two")
        veth(End(one, "a", mac="02:00:00:00:00:0a"), End(two, "b", ipv6=True), mtu=9000)
        one.ip("addr add 10.0.0.1/24 dev a")
        two.ip("addr add 10.0.0.2/24 dev b", "addr add fd00::2/64 dev b nodad")
        lab.start("sleep", ["sleep", "1000"], two)
        for device in (one.run("ip", "link", "show", "a"), two.run("ip", "link", "show", "b")):
            assert "mtu 9000" in device and "UP" in device
        assert "02:00:00:00:00:0a" in one.run("ip", "link", "show", "a")
        assert "inet6" not in one.run("ip", "addr", "show", "dev", "a"), "its kernel sends nothing by itself"
        features = one.run("ethtool", "-k", "a")
        for line in ("tx-checksumming: off", "tcp-segmentation-offload: off", "generic-receive-offload: off"):
            assert line in features
        shape(one, "a", 8.0)
        assert "tbf" in one.run("tc", "qdisc", "show", "dev", "a") and "8Mbit" in one.run("tc", "qdisc", "show")
        shape(one, "a", None)
        assert "tbf" not in one.run("tc", "qdisc", "show", "dev", "a")
        one.run("ping", "-c", "1", "-W", "5", "10.0.0.2")
        one.run("ping", "-c", "1", "-W", "1", "10.0.0.9")
    assert not lab.processes and namespaces() == before

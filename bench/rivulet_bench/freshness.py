"""Decides whether a stored figure is older than a change of the code that it measures, by commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .stats import REPOSITORY, RESULTS, Json

STACK = ("host/packet", "host/transport", "host/pktio", "host/server", "host/client", "host/rivulet")
TOR = ("p4src/build/rivulet.json", "switch")  # the compiled program: moved or reworded sources leave it as it is
SOURCES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("soak", "chaos", "figure9", "figure16", "figure17"), (*STACK, *TOR, "controller/rivulet_controller")
    ),
    **dict.fromkeys(("figure10", "figure11", "figure12", "host", "wide"), STACK),
    **dict.fromkeys(("stateless", "stateless-large"), ("host/plain", "host/server", "host/pktio", *TOR)),
    **dict.fromkeys(("trods", "trods-hangs"), ("host/trods", "host/bpf", "host/rivulet/src/agent")),
    "cm": ("host/cm", "host/libcm", "host/bpf", "host/cm-apps"),
    "switch": TOR,
    "transport": ("host/transport", "host/packet"),
}
"""Paths that each section's figures depend on beside the bench, including tests, comments and documents."""


def _git(*arguments: str) -> str:
    """Output of git; empty if it fails."""
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def measured_at(name: str, data: Json) -> str:
    """The measured commit, or for older figures the commit that added their file."""
    recorded = str(data.get("machine", {}).get("commit", "")).removesuffix("+")
    file = (RESULTS / f"{name}.json").relative_to(REPOSITORY)
    # With a fixed length, so that the page is the same in clones with more objects.
    return recorded or _git("log", "-1", "--format=%h", "--abbrev=7", "--", str(file))


def changes_since(commit: str, sources: tuple[str, ...]) -> int | None:
    """Commits since then that changed the sources; None if this clone lacks that commit."""
    if not commit or not _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
        return None
    return int(_git("rev-list", "--count", f"{commit}..HEAD", "--", *sources) or 0)


def is_stale(name: str, data: Json) -> bool:
    """Whether the sources have changed since the measurement; False in a clone without that commit."""
    # The bench too: it has the setting, such as rates and queues.
    bench = f"bench/rivulet_bench/{name.replace('-', '_')}.py"
    return bool(changes_since(measured_at(name, data), (*SOURCES[name], bench)))


def unmarked(page: Path, stale: dict[str, bool], mark: str) -> list[str]:
    """Stale sections of the page without the mark."""
    sections = page.read_text().split("\n## ")[1:]
    titles = {section.partition("\n")[0]: section for section in sections}
    return [title for title, old in stale.items() if old and mark not in titles.get(title, "")]

# SPDX-License-Identifier: Apache-2.0
"""Removals of what the server of 64 kilobytes defends against (docs/tiny.md): data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal


def tiny(file: str, old: str, new: str, test: str) -> Removal:
    return Removal(f"host/tiny/src/{file}", old, new, (f"tiny:{test}",))


ANSWERS = "requests_are_answered_by_their_method_and_target"

PROGRAMS = {"tiny": ("-p", "rivulet-tiny", "--test", "it")}

REMOVALS = {
    "tiny-page": tiny(
        "server.rs",
        "if answer.identity(&self.identities) != c.identity {",
        "if false {",
        "server_with_another_page_does_not_continue_the_answer",
    ),
    "tiny-body": tiny("session.rs", " || framing.has_body()", "", ANSWERS),
    "tiny-head": tiny("session.rs", "None if self.head.is_full()", "None if false", ANSWERS),
}

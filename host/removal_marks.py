# SPDX-License-Identifier: Apache-2.0
"""Removals of what gives each client a marked picture of its own (docs/watermark.md): data for removal.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from defences import Removal


def http(file: str, old: str, new: str) -> Removal:
    test = "agent:http::answer::tests::marked_answers_are_private_to_their_client"
    return Removal(f"host/rivulet/src/http/{file}", old, new, (test,))


REMOVALS = {
    "marks-cache": http("answer.rs", 'let _ = write!(out, "Cache-Control: private\\r\\n");', ""),
    "marks-version": http("answer.rs", "if self.mark.is_some() { VERSION_MARKED } else { VERSION }", "VERSION_MARKED"),
    "marks-tag": http("marks.rs", ".update(places.text())", ""),
    "marks-unfit": http("marked.rs", "else { return Ok(Kind::Unfit) }", "else { return Ok(Kind::Plain) }"),
    "marks-table": Removal(
        "host/rivulet/src/serve/table.rs",
        "if self.marks.as_ref().is_some_and(|marks| marks.covers(whole, &body)) {",
        "if false {",
        ("agents:watermark::each_client_gets_a_mark_of_its_own",),
    ),
}

"""Manual pages in roff, from short Markdown: `code` becomes bold."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from version import version


def escape(text: str) -> str:
    """Text without Markdown, on one line, safe at the beginning of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", " ".join(text.split()))
    return f"\\&{text}" if text.startswith((".", "'")) else text


def head(name: str, section: int, about: str) -> str:
    """The title and the line that `apropos` shows."""
    title = f'.TH {name.upper()} {section} "" "rivulet {version()}"\n'
    return f"{title}.SH NAME\n{name.replace('-', chr(92) + '-')} \\- {escape(about)}\n"


def heading(text: str) -> str:
    return f'.SH "{escape(text.upper())}"\n'


def paragraph(text: str) -> str:
    return f".PP\n{escape(text)}\n"


def entry(term: str, text: str) -> str:
    """A term and its explanation below it."""
    return f".TP\n\\fB{escape(term)}\\fR\n{escape(text)}\n"

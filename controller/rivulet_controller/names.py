"""Names and numbers of the P4 program: its schema and its enumerations, read from the P4Info.

Drop reasons, event kinds, check modes and the like are numbered once, in the P4 program.
"""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path

import finsy as fy
from finsy.proto import p4i
from google.protobuf import text_format

from .config import SwitchConfig

ENUMS = frozenset(
    {
        "affinity_t",
        "check_mode_t",
        "drop_reason_t",
        "event_kind_t",
        "outcome_t",
        "plain_t",
        "own_class_t",
        "policy_t",
        "punt_reason_t",
        "service_meter_t",
    }
)
"""Enumerations that the controller uses."""


ARTIFACTS = Path(__file__).resolve().parents[2] / "p4src" / "build"
"""Folder of the compiled program unless a switch's `pipeline` names another."""


def program_folder(switch: SwitchConfig, checks: str) -> Path:
    """Folder of the program that a switch has to run under this `checks` of the configuration."""
    return switch.pipeline or (ARTIFACTS / "host" if checks == "host" else ARTIFACTS)


class NamesError(Exception):
    """The program's files are missing, or do not fit this controller."""


class Names:
    """The P4Info of the program and its enumerations.

    >>> names = Names(Path("p4src/build"))
    >>> names.value("check_mode_t", "ENFORCE")
    2
    """

    def __init__(self, artifacts: Path) -> None:
        """Reads `rivulet.p4info.txtpb` and `rivulet.json` once. Raises NamesError.

        A program that is recompiled later takes effect when the controller restarts, not when a
        session reconnects.
        """
        self.p4info_path = artifacts / "rivulet.p4info.txtpb"
        self.program_path = artifacts / "rivulet.json"
        p4info, program = _read(self.p4info_path), _read(self.program_path)
        _match(artifacts / "manifest.json", {self.p4info_path.name: p4info, self.program_path.name: program})
        try:
            message = text_format.Parse(p4info, p4i.P4Info())
        except (text_format.ParseError, ValueError) as error:
            raise NamesError(f"{self.p4info_path} is not a P4Info: {error}") from None
        self.schema = fy.P4Schema(message, program)
        self._for_sessions = fy.P4Schema(message)
        info = self.schema.type_info.serializable_enums
        self._enums = {name: dict(info[name].members) for name in ENUMS if name in info}
        self._back = {enum: {v: k for k, v in members.items()} for enum, members in self._enums.items()}
        self.digest = next((digest.alias for digest in self.schema.digests), "")
        self.entities = frozenset(e.alias for kind in (self.schema.tables, self.schema.meters) for e in kind)
        """Tables and meters of the program."""
        self.counters = frozenset(counter.alias for counter in self.schema.counters)
        self.checks = "tor" if "nonce_keys" in self.entities else "host"
        """The `checks` of the configuration that this program is for."""

    def session_schema(self) -> fy.P4Schema:
        """The schema for one session. It lacks the program, so that finsy does not push it by
        itself.
        """
        # A copy: finsy stores the switch's P4Runtime version in the schema of its session.
        return copy.copy(self._for_sessions)

    def value(self, enum: str, member: str) -> int:
        """The number of a member. Raises NamesError if the program lacks it."""
        try:
            return self._enums[enum][member]
        except KeyError:
            raise NamesError(
                f"the P4Info {self.p4info_path} does not define {enum}.{member}, which is needed"
            ) from None

    def member(self, enum: str, value: int) -> str:
        """The name of a value, or the number as text if the program has no name for it."""
        return self._back.get(enum, {}).get(value, str(value))

    def members(self, enum: str) -> dict[str, int]:
        """All members of an enumeration with their numbers."""
        return dict(self._enums.get(enum, {}))


def program_of(switch: SwitchConfig, checks: str, known: dict[Path, Names]) -> Names:
    """The program that a switch has to run under this `checks`; `known` keeps those that were read.

    Raises NamesError, also for a `pipeline` with a program for the other value of `checks`.
    """
    folder = program_folder(switch, checks)
    names = known.get(folder) or known.setdefault(folder, Names(folder))
    if names.checks != checks:
        raise NamesError(
            f"{names.program_path} is the program for `checks: {names.checks}`, and the configuration has"
            f" `checks: {checks}`: change one of them, or leave out `pipeline` of switch {switch.name!r}"
        )
    return names


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NamesError(
            f"{path} cannot be read ({error.strerror}): run `make p4`, or point `pipeline` at the folder that has it"
        ) from None


def _match(manifest: Path, outputs: dict[str, bytes]) -> None:
    """Refuses files of two different compilations, for example during one. Without a manifest,
    accepts the files.
    """
    if not manifest.is_file():
        return
    try:
        wanted = json.loads(manifest.read_bytes())["outputs"]
    except (OSError, ValueError, KeyError, TypeError):
        raise NamesError(f"{manifest} cannot be read: run `make p4`") from None
    for name, content in outputs.items():
        if hashlib.sha256(content).hexdigest() != wanted.get(name):
            raise NamesError(
                f"{manifest.with_name(name)} does not belong to the compilation in {manifest.name}: run `make p4`"
            )

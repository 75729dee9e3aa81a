# SPDX-License-Identifier: Apache-2.0
"""Rules that the P4Info must keep, and the artifact's own checks."""

from __future__ import annotations

import json
import re
import sys
import unittest
from pathlib import Path
from typing import Any

P4SRC = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(P4SRC / "tools"))

import artifact  # noqa: E402

Message = dict[str, list[Any]]


def parse_text(text: str) -> Message:
    """A protobuf text message as nested dicts of lists: enough for a P4Info, without the protobuf package."""
    tokens = re.findall(r'"(?:\\.|[^"\\])*"|[\w.+-]+|[{}:<>\[\],;]', re.sub(r"^\s*#.*$", "", text, flags=re.M))
    position = 0

    def message() -> Message:
        nonlocal position
        fields: Message = {}
        while position < len(tokens) and tokens[position] != "}":
            name = tokens[position]
            position += 1
            if tokens[position] == ":":
                position += 1
            if tokens[position] == "{":
                position += 1
                value: Any = message()
                position += 1
            else:
                value = tokens[position].strip('"')
                position += 1
            fields.setdefault(name, []).append(value)
        return fields

    return message()


class P4InfoRules(unittest.TestCase):
    """Keys named, tables sized or const, default actions const or known, aliases without dots, enums complete."""

    # Set by the controller as the default entry: the switch's own data.
    SETTABLE_DEFAULTS = frozenset({"tor"})

    @classmethod
    def setUpClass(cls) -> None:
        cls.info = parse_text((artifact.BUILD / artifact.OUTPUTS[1]).read_text())
        cls.tables = {table["preamble"][0]["alias"][0]: table for table in cls.info["tables"]}
        cls.program = json.loads((artifact.BUILD / artifact.OUTPUTS[0]).read_text())

    def test_keys_are_named(self) -> None:
        for alias, table in self.tables.items():
            for field in table.get("match_fields", []):
                self.assertRegex(field["name"][0], r"^[a-z][a-z0-9_]*$", f"a key of {alias} has no @name of its own")

    def test_tables_are_sized_or_const(self) -> None:
        sizes = [
            int(n) for n in re.findall(r"SIZE\s*=\s*(\d+);|SERVICE_COUNT\s*=\s*(\d+);", self.sources()) for n in n if n
        ]
        sizes += [1024]  # POOL_COUNT
        for alias, table in self.tables.items():
            if "is_const_table" in table or "match_fields" not in table:
                continue
            self.assertIn(int(table["size"][0]), sizes, f"{alias} has p4c's default size, not one of its own")

    def test_default_actions_are_const_or_listed(self) -> None:
        for alias, table in self.tables.items():
            if alias not in self.SETTABLE_DEFAULTS:
                self.assertIn("const_default_action_id", table, f"{alias}: a default action that may be changed")

    def test_alias_of_each_used_table_is_one_word(self) -> None:
        for kind in ("tables", "actions", "counters", "meters", "digests", "controller_packet_metadata"):
            for entity in self.info[kind]:
                self.assertRegex(entity["preamble"][0]["alias"][0], r"^[A-Za-z0-9_]+$")

    def test_enumerations_reach_the_p4info(self) -> None:
        enums = {e["key"][0]: e["value"][0]["members"] for e in self.info["type_info"][0]["serializable_enums"]}
        wanted = {"drop_reason_t", "outcome_t", "fate_t", "event_kind_t", "punt_reason_t", "policy_t", "check_mode_t"}
        wanted |= {"service_meter_t"}
        self.assertEqual(wanted - set(enums), set())
        source = self.sources()
        for name in wanted:
            body = re.search(rf"enum bit<\d+> {name} \{{(.*?)\}}", source, re.S)
            assert body is not None
            members = re.findall(r"(\w+)\s*=\s*\d+", re.sub(r"//.*", "", body[1]))
            self.assertEqual([m["name"][0] for m in enums[name]], members)

    def test_drop_reasons_are_numbered_without_gaps(self) -> None:
        body = re.search(r"enum bit<8> drop_reason_t \{(.*?)\}", self.sources(), re.S)
        assert body is not None
        numbers = [int(n) for n in re.findall(r"=\s*(\d+)", re.sub(r"//.*", "", body[1]))]
        self.assertEqual(numbers, list(range(len(numbers))))

    def test_every_drop_reason_is_documented(self) -> None:
        text = (P4SRC.parent / "docs" / "dataplane.md").read_text()
        enums = {e["key"][0]: e["value"][0]["members"] for e in self.info["type_info"][0]["serializable_enums"]}
        missing = [m["name"][0] for m in enums["drop_reason_t"] if f"`{m['name'][0]}`" not in text]
        self.assertEqual(missing, ["NONE"])

    def test_no_table_is_empty_of_documentation(self) -> None:
        text = (P4SRC.parent / "docs" / "dataplane.md").read_text()
        names = list(self.tables) + [c["preamble"][0]["alias"][0] for c in self.info["counters"] + self.info["meters"]]
        self.assertEqual([name for name in names if f"`{name}`" not in text], [])

    def test_ids_are_the_sources(self) -> None:
        """A table or action keeps its number whatever is added before it."""
        declared = re.findall(r"@id\((0x0[12]\w{6})\)\s+(?:action|table) (\w+)", self.sources())
        numbers = [number for number, _ in declared]
        self.assertEqual(len(set(numbers)), len(numbers))
        emitted = {
            entity["preamble"][0]["alias"][0]: int(entity["preamble"][0]["id"][0])
            for kind in ("tables", "actions")
            for entity in self.info[kind]
        }
        del emitted["NoAction"]  # core.p4's
        self.assertEqual(emitted, {name: int(number, 16) for number, name in declared})

    def test_every_reference_names_a_key(self) -> None:
        keys = {(alias, f["name"][0]) for alias, table in self.tables.items() for f in table.get("match_fields", [])}
        keys.add(("builtin::multicast_group_table", "multicast_group_id"))
        named = re.findall(r"@refers_to\(([\w:]+), (\w+)\)", self.sources())
        self.assertEqual([reference for reference in named if reference not in keys], [])
        emitted = (artifact.BUILD / artifact.OUTPUTS[1]).read_text().count("@refers_to(")
        self.assertEqual(emitted, len(named))

    def test_a_sentence_stands_above_every_table(self) -> None:
        for path in artifact.sources():
            for comment, name in re.findall(r"^([^\n]*)\n(?:    @id\(\w+\)\n)?    table (\w+)", path.read_text(), re.M):
                self.assertRegex(comment, r"^    // .*\.$", f"{path.name}: nothing says what {name} is")

    def test_egress_reads_one_struct_of_the_ingress(self) -> None:
        for control in ("Write", "Rewrite", "Stamp", "AnswerRewrite", "TooBigRewrite"):
            found = re.search(rf"control {control}\((.*?)\)\s*{{", self.sources(), re.S)
            assert found is not None
            self.assertIn("in bridged_t bridged", found[1], control)
            self.assertNotIn("metadata_t", found[1], control)

    def test_files_are_short(self) -> None:
        for path in artifact.sources():
            lines = len(path.read_text().splitlines())
            self.assertLessEqual(lines, 500, f"{path.name} has {lines} lines")

    def test_only_the_thin_files_name_the_architecture(self) -> None:
        words = re.compile(
            r"\bstandard_metadata|\bV1Switch|\bregister<|\bcounter<|\bmeter<|\bhash\(|\brandom\(|\bdigest<|\bresubmit_|"
            r"\btruncate\(|\bmark_to_drop|_checksum\(|@field_list|\bverify\(|\blookahead|\bpacket_length|\bbit<9>"
        )
        for path in artifact.sources():
            thin = path.parent.name == "v1model"
            found = [] if thin else words.findall(re.sub(r"//.*", "", path.read_text()))
            self.assertEqual(found, [], f"{path.name} names the architecture")

    @staticmethod
    def sources() -> str:
        return "\n".join(path.read_text() for path in artifact.sources())


class HostProgram(unittest.TestCase):
    """The program without checks differs from the other by what it leaves out."""

    LEFT_OUT = frozenset(
        {"nonce_keys", "metered_classes", "cookie_keys"}
        | {"set_nonce_keys", "no_key", "meter_as", "set_cookie_keys", "no_cookie_keys"}
        | {"suspects", "service_meters", "uncookied_meter"}
    )

    def test_it_leaves_out_tables_and_changes_none(self) -> None:
        infos = [parse_text((program.build / artifact.OUTPUTS[1]).read_text()) for program in artifact.PROGRAMS]
        for kind in ("tables", "actions", "counters", "meters", "digests", "controller_packet_metadata"):
            tor, host = ({e["preamble"][0]["alias"][0]: e for e in info[kind]} for info in infos)
            self.assertEqual({name: e for name, e in tor.items() if name not in self.LEFT_OUT}, host, kind)
        tor, host = ({e["key"][0]: e for e in info["type_info"][0]["serializable_enums"]} for info in infos)
        self.assertEqual({name: e for name, e in tor.items() if name != "service_meter_t"}, host)

    def test_only_heartbeats_are_hashed_under_a_key(self) -> None:
        program = json.loads((artifact.HOST.build / artifact.OUTPUTS[0]).read_text())
        self.assertEqual([r["name"] for r in program["register_arrays"] if "sketch" in r["name"]], [])
        rounds = [a["name"] for a in program["actions"] if a["name"].endswith((".compress", ".finalize"))]
        callers = {re.sub(r"(\.hash_(end|word))+\.\w+$", "", name).rpartition(".")[2] for name in rounds}
        self.assertEqual(callers, {"heartbeat_hash", "answer_hash"})


class Artifact(unittest.TestCase):
    """The staleness check finds every kind of change."""

    def test_a_changed_source_is_noticed(self) -> None:
        hashes = artifact.source_hashes
        try:
            artifact.source_hashes = lambda: hashes() | {"core/types.p4": "0" * 64, "core/new.p4": "1" * 64}
            problems = artifact.stale(artifact.TOR)
        finally:
            artifact.source_hashes = hashes
        for name in ("core/types.p4", "core/new.p4"):
            self.assertTrue(any(name in problem for problem in problems), problems)

    def test_a_changed_output_is_noticed(self) -> None:
        digest = artifact.digest
        try:
            artifact.digest = lambda path: "0" * 64 if path.suffix == ".json" else digest(path)
            problems = artifact.stale(artifact.TOR)
        finally:
            artifact.digest = digest
        self.assertTrue(any("rivulet.json" in problem for problem in problems), problems)

    def test_nothing_of_this_machine_is_in_the_program(self) -> None:
        text = (artifact.BUILD / artifact.OUTPUTS[0]).read_text()
        for word in ("source_info", "/tmp", "/home", str(P4SRC)):
            self.assertNotIn(word, text)


if __name__ == "__main__":
    unittest.main()

"""Hostile YAML: bounded before anything is built, with the line of each value."""

import pytest

from rivulet_controller.config import ConfigError
from rivulet_controller.document import MAX_BYTES, MAX_DEPTH, MAX_VALUES, DocumentError, read
from rivulet_controller.rack_file import MAX_PROBLEMS, parse


def billion(levels: int) -> str:
    """About 50 bytes a level, with nine times the values of the level below."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (billion(9), 6, f"more than {MAX_VALUES} values"),
        ("a: &a [*a]\n", 1, "refers to no anchor"),
        ("a: 1\nb: *c\n", 2, "refers to no anchor"),
        # libyaml's composer recurses: without the bound, 50,000 levels crash the process.
        ("- " * 50_000 + "x\n", 1, f"deeper than {MAX_DEPTH} levels"),
        ("a:\n  " + "[" * 50_000 + "]" * 50_000, 2, f"deeper than {MAX_DEPTH} levels"),
        ("a: 1\n" + "x" * MAX_BYTES, 1, f"at most {MAX_BYTES}"),
        ("a: " + "9" * 9000, 1, "not YAML"),
        ("a: 2001-99-99", 1, "not YAML"),
        ("a: b\n\tc: d", 2, "not YAML"),
        ("\0", 1, "not YAML"),
        ("a: !!python/object:os.system {}", 1, "not YAML"),
        ("a: b\n---\nc: d\n", 2, "not YAML"),
    ],
)
def test_oversized_or_invalid_yaml_is_refused_with_line(text: str, line: int, words: str) -> None:
    with pytest.raises(DocumentError, match=words.replace("(", "\\(")) as caught:
        read(text)
    assert caught.value.line == line


def test_honest_anchors_and_merges_still_work() -> None:
    document = read("base: &base {port: 1, mtu: 9000}\nhosts:\n  - <<: *base\n    ip: a\n  - {<<: *base, port: 2}\n")
    assert document.values["hosts"] == [{"port": 1, "mtu": 9000, "ip": "a"}, {"port": 2, "mtu": 9000}]
    assert document.line(("hosts", 0, "ip")) == 4
    assert document.line(("hosts", 1, "port")) == 5
    # A mistake in merged keys has the line of the anchor.
    assert document.line(("hosts", 0, "port")) == 1
    assert document.line(("nothing",)) == 1
    assert read("").values is None


def test_number_of_reported_mistakes_is_bounded() -> None:
    text = "replicas:\n" + "".join(f"  - {{name: r{n}, mac: '02', ip: x, switch: tor1, port: 1}}\n" for n in range(500))
    with pytest.raises(ConfigError) as caught:
        parse(text, "rack.yaml")
    assert len(caught.value.problems) == MAX_PROBLEMS + 1
    # Two mistakes for each replica, and two missing sections.
    assert caught.value.problems[-1] == f"rack.yaml: and {2 * 500 + 2 - MAX_PROBLEMS} more"


def test_colon_in_flow_mapping_follows_yaml_1_2() -> None:
    document = read("a: 1\nlisten: {agents: unix:/run/x, api: 127.0.0.1:8080}\n")
    assert document.values["listen"] == {"agents": "unix:/run/x", "api": "127.0.0.1:8080"}
    assert document.line(("listen", "api")) == 2
    with pytest.raises(DocumentError, match="deeper than"):
        read("x: {a: unix:/x}\ny: " + "[" * 40 + "]" * 40)
    with pytest.raises(DocumentError, match="found unexpected ':'"):
        read("x: {a: unix:/x}\n" + "# long\n" * 20_000)

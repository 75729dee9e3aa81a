"""Configurations that are refused, with line and message."""

from pathlib import Path

import pytest

from rivulet_controller.config import ConfigError
from rivulet_controller.local import with_local_parts
from rivulet_controller.rack_file import load, parse

GOOD = """\
switches:
  - name: tor1
    address: 127.0.0.1:9559
    number: 1
    mac: "02:00:00:00:00:fe"
    addresses: [10.0.0.254, "fd00::fe"]
    ports: [1, 2, 3]
replicas:
  - {name: r1, switch: tor1, port: 2, mac: "02:00:00:00:01:01", ip: 10.0.1.1}
  - {name: r2, switch: tor1, port: 3, mac: "02:00:00:00:01:02", ip: 10.0.1.2, weight: 2}
services:
  - name: web
    addresses: [10.9.0.1, "fd09::1"]
    port: 80
    replicas: [r1, r2]
    liveness: 20ms
keys: {seal_rotation: 1h, nonce_rotation: 20 min}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "rack.yaml")
    return caught.value.problems


def test_good_file_is_read_with_defaults_and_units() -> None:
    config = parse(GOOD)
    assert config.services[0].liveness == pytest.approx(0.020)
    assert config.keys.seal_rotation == 3600.0
    assert config.services[0].policy == "block"
    assert (config.services[0].plain, config.keys.cookie_rotation) == ("kernel", 43200.0)
    for plain in ("none", "kernel", "stateless"):
        assert parse(GOOD.replace("    liveness: 20ms", f"    plain: {plain}")).services[0].plain == plain
    assert config.replica("r2").weight == 2


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("    liveness: 20ms", "    livenes: 20ms", 16, "services.0.livenes: unknown field"),
        ("    liveness: 20ms", "    liveness: 20 parsecs", 16, "is not a duration such as 20ms"),
        ("    liveness: 20ms", "    liveness: 3ms", 12, "at least two heartbeats"),
        ("[r1, r2]", "[r1, r3]", 15, "there is no replica 'r3'"),
        ("[r1, r2]", "[r1, r1]", 15, "'r1' appears twice"),
        ("port: 3,", "port: 7,", 10, "has no port 7"),
        ("10.0.1.2,", "10.0.1.1,", 10, "already the address of replica 'r1'"),
        ("name: r2,", "name: r1,", 10, "'r1' appears twice"),
        ("    port: 80\n", "", 12, "services.0.port: missing"),
        ('mac: "02:00:00:00:00:fe"', "mac: fe", 5, "is not a MAC address"),
        ("nonce_rotation: 20 min", "nonce_rotation: 2h", 17, "an hour at most"),
        ("seal_rotation: 1h", "seal_rotation: 1s", 17, "more than 60 keys would be live"),
        ("    liveness: 20ms", "    slots: 100", 12, "100 is not a power of two"),
        (
            "    liveness: 20ms",
            "    plain: sometimes",
            16,
            "services.0.plain: 'sometimes': must be 'none', 'kernel', 'stateless'",
        ),
        (
            "    liveness: 20ms",
            "    plain_tcp: false",
            16,
            "services.0.plain_tcp: replaced by `plain`: write `plain: kernel`",
        ),
        ("    liveness: 20ms", "    plain: false", 16, "services.0.plain: false: must be 'none'"),
        (
            "    liveness: 20ms",
            "    affinity: address",
            16,
            "services.0.affinity: 'address': must be 'flow' or 'client'",
        ),
        (
            "    liveness: 20ms",
            "    plain: none\n    affinity: client",
            17,
            "services.0.affinity: client: is for plain TCP, which `plain: none` refuses",
        ),
        ("seal_rotation: 1h", "cookie_rotation: 2d", 17, "keys.cookie_rotation: 172800: must be at most 86400"),
        (
            "    liveness: 20ms",
            "    tls: {certificates: [{certificate: site.pem, key: /site.key}]}",
            16,
            "services.0.tls.certificates.0.certificate: 'site.pem' is not an absolute path on the replicas",
        ),
        (
            "    liveness: 20ms",
            "    tls: {certificates: []}",
            16,
            "services.0.tls.certificates: ",
        ),
        (
            "    liveness: 20ms",
            "    tls: {certificates: [{certificate: /c, key: /k}], forwarded: x}",
            16,
            "services.0.tls.forwarded: 'x': must be 'headers', 'proxy' or 'none'",
        ),
        (
            "    liveness: 20ms",
            "    tls: {certificates: [{certificate: /c, key: /k}], server: 10.9.0.1:80}",
            16,
            "services.0.tls.server: 10.9.0.1:80 is the service itself",
        ),
        (
            "    liveness: 20ms",
            "    tls: {certificates: [{certificate: /c, key: /k}], server: localhost}",
            16,
            "services.0.tls.server: 'localhost' is not ADDRESS:PORT such as 127.0.0.1:80",
        ),
        (
            "    liveness: 20ms",
            "    tls: {certificates: [{certificate: /c, key: /k}]}\n    plain: stateless",
            16,
            "services.0.tls: TLS needs `plain: trods`",
        ),
        ("seal_rotation: 1h", "ticket_rotation: 2d", 17, "keys.ticket_rotation: 172800: must be at most 43200"),
        ("services:", "services: [", 11, "not YAML"),
    ],
)
def test_mistakes_name_line_and_field(old: str, new: str, line: int, words: str) -> None:
    assert old in GOOD
    found = problems(GOOD.replace(old, new))
    assert any(words in problem for problem in found), found
    if "not YAML" not in words:
        assert any(problem.startswith(f"rack.yaml:{line}: ") for problem in found), found


AGENT_RULES = [
    ("    liveness: 20ms", "    heartbeat: 50us", 16, "heartbeat: 50us is not within 100us to 10s"),
    ("    liveness: 20ms", "    heartbeat: 15s\n    liveness: 40s", 16, "heartbeat: 15s is not within 100us to 10s"),
    ("    liveness: 20ms", "    liveness: 2h", 16, "liveness: 2h is not within 100us to 10min"),
    ("    liveness: 20ms", "    liveness: .inf", 16, "services.0.liveness: "),
    ("    liveness: 20ms", "    liveness: 1e999", 16, "services.0.liveness: "),
    ("    number: 1", "    number: 1\n    device_id: 1" + "0" * 23, 5, "switches.0.device_id: "),
    ("127.0.0.1:9559", "127.0.0.1:95590", 3, "switches.0.address: "),
    ("seal_rotation: 1h", "horizon: 10us", 17, "keys.horizon: 10us is not within 1ms"),
    ("[10.9.0.1,", "[0.0.0.0,", 13, "services.0.addresses.0: 0.0.0.0 is in 0.0.0.0/8"),
    ("[10.9.0.1,", "[224.0.0.5,", 13, "services.0.addresses.0: 224.0.0.5 is in 224.0.0.0/4"),
    ("[10.9.0.1,", "[127.0.0.1,", 13, "services.0.addresses.0: 127.0.0.1 is in 127.0.0.0/8"),
    ("[10.9.0.1,", "[255.255.255.255,", 13, "services.0.addresses.0: 255.255.255.255 is in 240.0.0.0/4"),
    ("[10.9.0.1,", "[5,", 13, "services.0.addresses.0: '5' is not an IP address"),
    ("fd09::1", "::", 13, "services.0.addresses.1: :: is in ::/128"),
    ("fd09::1", "fe80::1", 13, "services.0.addresses.1: fe80::1 is in fe80::/10"),
    ("fd09::1", "::ffff:10.0.0.1", 13, "is in ::ffff:0:0/96"),
    ("fd09::1", "fd09::1%eth0", 13, "services.0.addresses.1: 'fd09::1%eth0' has a zone"),
    ("ip: 10.0.1.2,", "ip: 127.0.0.2,", 10, "replicas.1.ip: 127.0.0.2 is in"),
    ("[10.0.0.254,", "[0.0.0.0,", 6, "switches.0.addresses.0: 0.0.0.0 is in"),
    ("02:00:00:00:01:02", "00:00:00:00:00:00", 10, "replicas.1.mac: "),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), AGENT_RULES, ids=[rule[3] for rule in AGENT_RULES])
def test_agents_limits_are_checked_with_line_and_value(old: str, new: str, line: int, words: str) -> None:
    found = problems(GOOD.replace(old, new, 1))
    assert any(words in problem and problem.startswith(f"rack.yaml:{line}: ") for problem in found), found


def routed(*routes: str) -> str:
    """The rack with routes at its switch."""
    hosts = "    hosts: [{ip: 10.0.0.1, port: 1}, {ip: 10.0.0.2, port: 1}, {ip: 'fd00::1', port: 1}]\n"
    return GOOD.replace(
        "replicas:", hosts + "    routes:\n" + "".join(f"      - {r}\n" for r in routes) + "replicas:", 1
    )


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ("{prefix: 0.0.0.0/0, via: 10.0.0.2}", "0.0.0.0/0 already has the next hop 10.0.0.1"),
        ("{prefix: 10.0.0.254/32, via: 10.0.0.1}", "10.0.0.254/32 is an address of switch 'tor1' itself"),
        ("{prefix: '::/0', via: 10.0.0.1}", "both must be IPv4, or both IPv6"),
    ],
)
def test_conflicting_routes_are_refused(route: str, words: str) -> None:
    default = "{prefix: 0.0.0.0/0, via: 10.0.0.1}"
    assert len(parse(routed(default, "{prefix: 10.8.0.0/16, via: 10.0.0.2}")).switches[0].routes) == 2
    (problem,) = problems(routed(default, route))
    assert problem.startswith("rack.yaml:11: switches.0.routes.1.") and words in problem


def test_services_of_a_replica_and_their_heartbeats_are_bounded() -> None:
    def many(count: int, rest: str) -> str:
        services = (
            f"  - {{name: s{n}, addresses: [10.8.{n // 250}.{n % 250 + 1}], port: 80, replicas: [r1], {rest}}}\n"
            for n in range(count)
        )
        return GOOD.replace("keys:", "".join(services) + "keys:")

    shared = "pool: all, liveness: 1s"
    assert len(parse(many(1023, shared)).services) == 1024
    (problem,) = problems(many(1024, shared))
    assert "replica 'r1' has more than 1024 services" in problem
    (problem,) = problems(many(300, "heartbeat: 2ms, liveness: 1s"))
    assert "r1' would send more than 100000 heartbeats a second: let services of the same replicas share" in problem


def test_links_wider_than_the_sketch() -> None:
    fast = GOOD.replace("    ports:", "    link_mbps: 1000\n    ports:")
    assert [s.name for s in parse(fast).wider_than_the_sketch()] == ["tor1"], "hosts judge the rest"
    assert parse(fast.replace("1000", "769")).wider_than_the_sketch() == parse(GOOD).wider_than_the_sketch() == []
    strict = fast.replace("    liveness: 20ms", "    liveness: 20ms\n    checks: {unjudged: drop}")
    (problem,) = problems(strict)
    assert "link_mbps" in problem and "769 Mb/s" in problem
    parse(strict.replace("1000", "500"))
    parse(strict.replace("unjudged: drop", "unjudged: drop, replay: off"))


def test_clashing_addresses_are_refused() -> None:
    clash = GOOD.replace("keys:", "  - {name: other, addresses: [10.9.0.1], port: 80, replicas: [r1]}\nkeys:")
    assert problems(clash) == ["rack.yaml:17: services.1.addresses.0: 10.9.0.1 port 80 is already served by 'web'"]
    other_port = clash.replace("port: 80, replicas", "port: 81, replicas")
    assert len(parse(other_port).services) == 2


SECOND = """\
  - name: tor2
    address: 127.0.0.1:9560
    number: 2
    mac: "02:00:00:00:00:fd"
    addresses: ["fd00:2::fe"]
    ports: [1]
    hosts: [{ip: "fd00:2::1", port: 1}]
replicas:
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("[10.0.0.254,", "[10.9.0.1,", 6, "10.9.0.1 is an address of service 'web'"),
        ("ip: 10.0.1.1}", "ip: 10.9.0.1}", 9, "replicas.0.ip: 10.9.0.1 is an address of service 'web'"),
        ("ip: 10.0.1.1}", "ip: 10.0.0.254}", 9, "10.0.0.254 is an address of switch 'tor1' itself"),
        ("02:00:00:00:01:02", "02:00:00:00:01:01", 10, "02:00:00:00:01:01 is already behind port 2"),
        ("02:00:00:00:01:02", "02:00:00:00:00:fe", 10, "the MAC address of switch 'tor1' itself"),
        ("02:00:00:00:01:02", "03:00:00:00:01:02", 10, "is a group address"),
        ("ports: [1, 2, 3]", "ports: [1, 2, 3, 2]", 7, "port 2 appears twice"),
        ("ports: [1, 2, 3]", "ports: [1, 2, 3, 510]", 7, "510: must be at most 509"),
        ("replicas:\n  -", SECOND.replace("9560", "9559") + "  -", 8, "device 1 at 127.0.0.1:9559 is already switch"),
        ("replicas:\n  -", SECOND.replace("number: 2", "number: 1") + "  -", 8, "already the number of switch 'tor1'"),
        ("replicas:\n  -", SECOND + "  -", 8, "has no route to replica 'r1' (10.0.1.1) of another switch"),
        ("replicas:\n  -", SECOND + "  -", 8, "the tunnel to replica 'r1' needs an IPv4 address of switch 'tor2'"),
        ("ports: [1, 2, 3]", "ports: [1, 2, 3]\n    hosts: [{ip: 10.0.0.1, port: 9}]", 8, "has no port 9"),
        (
            "ports: [1, 2, 3]",
            "ports: [1, 2, 3]\n    routes: [{prefix: 0.0.0.0/0, via: 10.0.0.7}]",
            8,
            "10.0.0.7 is not one of the hosts",
        ),
    ],
)
def test_conflicting_addresses_ports_and_switches_are_refused(old: str, new: str, line: int, words: str) -> None:
    assert old in GOOD
    found = problems(GOOD.replace(old, new, 1))
    assert any(words in problem for problem in found), found
    at = next(int(p.split(":")[1]) for p in found if words in p)
    assert at >= line and (at == line or "tor2" in new), found


def test_empty_binary_and_missing_files_are_errors(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert "must hold" in problems("")[0]
    binary = tmp_path / "x.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (binary, tmp_path / "absent.yaml"):
        with pytest.raises(ConfigError, match="cannot be read"):
            load(path)


def test_example_configuration_is_valid() -> None:
    assert len(load(Path(__file__).parents[1] / "examples" / "rack.yaml").replicas) == 3


def test_shared_configuration_keeps_local_listeners() -> None:
    own = parse(GOOD + "listen: {api: 'unix:/run/one.api'}\netcd: {endpoints: ['http://127.0.0.1:2379']}\n")
    other = parse(GOOD + "listen: {api: 'unix:/run/two.api'}\nstate: /tmp/two.db\n")
    assert with_local_parts(other, own, "config") == own
    alone = parse(GOOD)
    with pytest.raises(ConfigError, match=r"config: listen: only the controller's own file may set it"):
        with_local_parts(other, alone, "config")


def test_stored_configuration_cannot_add_kill_commands() -> None:
    stored = parse(GOOD)
    commands = stored.replicas[0].model_copy(update={"kill_command": ("/bin/stranger",)})
    stranger = commands.model_copy(update={"name": "stranger"})
    stored = stored.model_copy(update={"replicas": (commands, stranger)})
    found = with_local_parts(stored, parse(GOOD))
    assert [replica.kill_command for replica in found.replicas] == [(), ()]

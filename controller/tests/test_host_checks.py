"""`checks: host`: a rack whose replicas make all checks of requests."""

from __future__ import annotations

import pytest
from sample_rack import NAMES, RACK, TWO_RACKS, config, fragments, lines, numbers_of, weights_of

from rivulet_controller.config import Config, SwitchConfig
from rivulet_controller.entry import Entry, Meter
from rivulet_controller.names import ARTIFACTS, Names, NamesError, program_folder, program_of
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.placement import prepare
from rivulet_controller.rack_file import ConfigError
from rivulet_controller.state import State
from rivulet_controller.updates import update

HOST = Names(ARTIFACTS / "host")
AT_HOST = "checks: host\n"
STATELESS = RACK + "    plain: stateless\n"


def test_only_rows_of_checks_are_left_out() -> None:
    at_tor, at_host = lines(fragments(config(STATELESS))), lines(fragments(config(STATELESS + AT_HOST), names=HOST))
    gone = {line.partition("[")[0] for line in at_tor - at_host}
    assert gone == {"nonce_keys", "cookie_keys", "service_checks", "meter service_meters", "meter uncookied_meter"}
    assert len(at_host - at_tor) == 1
    (checks,) = at_host - at_tor
    assert "key_mode=0x0" in checks and "sum_mode=0x0" in checks and "nonce_epoch=0x1" in checks, "epochs are stamped"


def test_every_row_has_a_table_in_program() -> None:
    items = [item for part in fragments(config(STATELESS + AT_HOST), names=HOST).values() for item in part]
    named = {i.table if isinstance(i, Entry) else i.meter for i in items if isinstance(i, Entry | Meter)}
    assert named <= HOST.entities
    assert not named >= NAMES.entities


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TWO_RACKS, "switches.1.name: 'tor2': with `checks: host` all replicas are behind one ToR"),
        (RACK + "    checks: {replay: off}\n", "services.0.checks: the ToR makes none of these checks"),
        (RACK + "    meters: {syn: 5}\n", "services.0.meters.syn: the ToR does not meter classes of requests"),
    ],
)
def test_settings_without_effect_are_refused(text: str, words: str) -> None:
    config(text)
    with pytest.raises(ConfigError) as refused:
        config(text + AT_HOST)
    assert words in str(refused.value)


def test_icmp_errors_stay_metered() -> None:
    rack = config(RACK + "    meters: {icmp_error: 7}\n" + AT_HOST)
    meters = [i for i in fragments(rack, names=HOST)["service web"] if isinstance(i, Meter)]
    assert [(m.meter, m.cir) for m in meters] == [("icmp_error_meter", 7)]


@pytest.mark.parametrize(("text", "wanted"), [(RACK, "HALF_SIP_HASH"), (RACK + AT_HOST, "CRC32")])
def test_agent_update_has_hash_function_of_program(text: str, wanted: str) -> None:
    rack, state = config(text), State()
    fragments(rack, state=state)
    numbers = numbers_of(rack, state)
    service = update(rack, "r1", numbers, state.rings, state.slots, weights_of(rack), frozenset()).services[0]
    assert agent_pb2.SlotHash.Name(service.slot_hash) == f"SLOT_HASH_{wanted}"


def test_program_follows_the_configuration() -> None:
    def names_of(switch: SwitchConfig, checks: str) -> Names:
        return program_of(switch, checks, {})

    def pipeline(rack: Config, folder: str) -> Config:
        switch = rack.switches[0].model_copy(update={"pipeline": ARTIFACTS / folder})
        return rack.model_copy(update={"switches": (switch,)})

    at_host = config(RACK + AT_HOST)
    assert program_folder(at_host.switches[0], "host") == ARTIFACTS / "host"
    assert prepare(at_host, State(), names_of).services == {"web": 1}
    prepare(pipeline(at_host, "host"), State(), names_of)
    with pytest.raises(NamesError, match="is the program for `checks: tor`, and the configuration has `checks: host`"):
        prepare(pipeline(at_host, "."), State(), names_of)
    with pytest.raises(NamesError, match="is the program for `checks: host`"):
        prepare(pipeline(config(), "host"), State(), names_of)

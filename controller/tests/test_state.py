"""Durable state: which values are kept, their file's permissions, and numbers that do not change
without need.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rivulet_controller.keys import KeyRing, Kind, Lives
from rivulet_controller.state import Decision, OutOfNumbers, State, allocate
from rivulet_controller.store import SqliteStore, StoreError

LIVES = Lives(seal_rotation=10.0, nonce_rotation=20.0, resume=100.0, horizon=4.0)


def all_held(kind: Kind, epoch: int) -> bool:
    return True


def test_store_keeps_values_with_private_permissions(tmp_path: Path) -> None:
    path = tmp_path / "state" / "controller.db"
    store = SqliteStore(path)
    state = State(store.load())
    ring = KeyRing().tick(0.0, LIVES, all_held).tick(0.0, LIVES, all_held).tick(10.0, LIVES, all_held)
    state.set_ring("web", ring)
    state.set_decision("r1", Decision(draining=True, weight=3))
    state.set_slots("web", ((0, 1), (1, 0), (63, 0)))
    assert state.number("service", ["web", "other"], 1, 4095) == {"web": 1, "other": 2}
    assert [state.next_counter("tor1"), state.next_counter("tor1"), state.next_counter("tor2")] == [1, 2, 1]
    store.save(state.changes())
    assert state.changes() == {}, "what is durable is not saved again"
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o077 == 0, f"{file.name} can be read by others"
    store.close()

    again = State(SqliteStore(path).load())
    for kind in Kind:
        assert again.rings["web"].of(kind) == ring.of(kind)
    assert again.decisions == {"r1": Decision(draining=True, weight=3)}
    assert again.slots == {"web": ((0, 1), (1, 0), (63, 0))}
    assert again.number("service", ["new", "other"], 1, 4095) == {"new": 3, "other": 2}
    assert again.next_counter("tor1") == 3


def test_removed_services_lose_keys_and_slots() -> None:
    state = State()
    for name in ("web", "old"):
        state.set_ring(name, KeyRing().tick(0.0, LIVES, all_held))
        state.set_slots(name, ((0, 0),))
    state.changes()
    state.forget_services(["web"])
    assert state.changes() == {"keys/old": None, "slots/old": None}


def test_failed_saves_are_retried_and_newer_values_win() -> None:
    state = State()
    state.next_counter("a")
    state.next_counter("b")
    failed = state.changes()
    state.next_counter("a")
    state.retry(failed)
    assert state.changes() == {"counter/a": b"2", "counter/b": b"1"}


@pytest.mark.parametrize("value", [b"", b"[1]", b"{", b'[{"kind": "seal"}]'])
def test_unreadable_state_is_named(value: bytes) -> None:
    with pytest.raises(ValueError, match="'keys/web' cannot be read"):
        State({"keys/web": value})


def test_unusable_stores_raise_store_error(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    with pytest.raises(StoreError, match="controller"):
        SqliteStore(blocker / "controller.db")
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match="garbage"):
        SqliteStore(garbage)


def test_numbers_are_reused_only_when_exhausted() -> None:
    known = allocate({}, ["a", "b", "c"], 0, 3)
    assert known == {"a": 0, "b": 1, "c": 2}
    assert allocate(known, ["c", "d"], 0, 3) == {"c": 2, "d": 3}, "a fresh number before one that was in use"
    full = {**known, "d": 3}
    assert allocate(full, ["b", "e"], 0, 3) == {"b": 1, "e": 0}
    with pytest.raises(OutOfNumbers):
        allocate(full, ["a", "b", "c", "d", "e"], 0, 3)


def test_digest_matches_the_stored_state(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "controller.db")
    state = State()
    state.make_secret()
    state.set_ring("web", KeyRing().tick(0.0, LIVES, all_held).tick(0.0, LIVES, all_held))
    state.set_decision("r1", Decision(draining=True))
    state.set_slots("web", ((0, 1), (1, 0)))
    state.set_document("applied", "digest\ntext: ä")
    state.set_mac("r1", "02:00:00:00:00:01")
    state.set_time(12.5, 1e9)
    state.next_counter("election")
    state.number("service", ["web", "other"], 1, 4095)
    assert state.unsaved() == len(state.stored()) == 10
    assert state.digest() != State(store.load()).digest()
    store.save(state.changes())
    assert state.unsaved() == 0 and state.stored() == store.load()
    before = state.copy()
    for change in (
        lambda: state.set_decision("r1", Decision()),
        lambda: state.set_ring("web", state.rings["web"].tick(11.0, LIVES, all_held)),
        lambda: state.forget_services([]),
        lambda: state.roll_back(before),
        lambda: state.drop_document("applied"),
    ):
        change()
        assert state.digest() != State(store.load()).digest(), "what is not saved is seen"
        store.save(state.changes())
        assert state.digest() == State(store.load()).digest()
    store.close()


FULL = """
import sys
from pathlib import Path
from rivulet_controller.store import SqliteStore, StoreError
folder = Path(sys.argv[1])
store = SqliteStore(folder / "controller.db")
store.save({"a": b"1"})
filler = (folder / "filler").open("wb", buffering=0)
try:
    while filler.write(b"0" * 4096):
        pass
except OSError:
    pass
for _ in range(2):
    try:
        store.save({"a": None, "b": bytes(100_000)})
    except StoreError as error:
        print(error)
    print(store.load())
(folder / "filler").unlink()
filler.close()
store.save({"a": None, "b": b"2"})
print(store.load())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small disk is mounted")
def test_full_disk_is_reported_and_keeps_old_values(tmp_path: Path) -> None:
    mounted = 'mount -t tmpfs -o size=512k small "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--mount", "sh", "-c", mounted, "sh", str(tmp_path), sys.executable, FULL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    message = f"state file {tmp_path}/controller.db: database or disk is full"
    assert done.stdout.splitlines() == [message, "{'a': b'1'}", message, "{'a': b'1'}", "{'b': b'2'}"]

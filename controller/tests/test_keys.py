"""Key rings: a key is held everywhere before it is usable, and withdrawn only when it is no longer
needed.
"""

import random

import pytest
from sample_rack import held as all_held
from sample_rack import none_held

from rivulet_controller.keys import (
    CONFIRM_MARGIN_S,
    EPOCH_MAX,
    SERVICE_KINDS,
    WITHDRAWN_S,
    KeyRing,
    Kind,
    Lives,
    State,
    next_epoch,
)

LIVES = Lives(seal_rotation=10.0, nonce_rotation=20.0, resume=100.0, horizon=4.0, cookie_rotation=50.0)


def test_key_is_usable_once_all_hold_it() -> None:
    ring = KeyRing().tick(0.0, LIVES, none_held)
    assert [key.state for key in ring.keys] == [State.ACCEPTED] * len(SERVICE_KINDS)
    ring = ring.tick(1000.0, LIVES, none_held)
    assert ring.usable(Kind.SEAL) is None and len(ring.keys) == len(SERVICE_KINDS)
    ring = ring.tick(1001.0, LIVES, all_held)
    assert all(ring.usable(kind) is not None for kind in SERVICE_KINDS)


def test_old_seal_key_lasts_as_long_as_continuations() -> None:
    ring = KeyRing().tick(0.0, LIVES, none_held).tick(0.0, LIVES, all_held)
    ring = ring.tick(10.0, LIVES, none_held)
    assert [(k.epoch, k.state) for k in ring.of(Kind.SEAL)] == [(1, State.USABLE), (2, State.ACCEPTED)]
    ring = ring.tick(11.0, LIVES, all_held)
    assert [(k.epoch, k.state) for k in ring.of(Kind.SEAL)] == [(1, State.RETIRED), (2, State.USABLE)]
    gone = 11.0 + 100.0 + CONFIRM_MARGIN_S
    assert 1 in [k.epoch for k in ring.tick(gone - 0.1, LIVES, none_held).of(Kind.SEAL)]
    assert 1 not in [k.epoch for k in ring.tick(gone, LIVES, none_held).of(Kind.SEAL)]


def test_rotation_interval_ignores_distribution_time() -> None:
    ring = KeyRing()
    made: list[float] = []
    for tenth in range(1000):
        now = tenth / 10
        late = [k.epoch for k in ring.of(Kind.SEAL) if now - k.created >= 4.0]
        ring = ring.tick(now, LIVES, lambda kind, epoch, late=late: kind is Kind.NONCE or epoch in late)  # type: ignore[misc]
        newest = ring.of(Kind.SEAL)[-1]
        if newest.epoch > len(made):
            made.append(newest.created)
    assert made == pytest.approx([10.0 * n for n in range(10)], abs=0.2)


def test_nonce_key_ends_one_horizon_after_successor() -> None:
    ring = KeyRing().tick(0.0, LIVES, none_held).tick(0.0, LIVES, all_held)
    ring = ring.tick(20.0, LIVES, none_held).tick(20.0, LIVES, all_held)
    gone = 20.0 + LIVES.horizon + CONFIRM_MARGIN_S
    assert 1 in [k.epoch for k in ring.tick(gone - 0.1, LIVES, none_held).of(Kind.NONCE)]
    ring = ring.tick(gone, LIVES, none_held)
    assert 1 not in [k.epoch for k in ring.accepted(Kind.NONCE)]
    withdrawn = next(k for k in ring.of(Kind.NONCE) if k.epoch == 1)
    assert withdrawn.state is State.WITHDRAWN, "the ToRs refuse it before they forget it"
    assert 1 not in [k.epoch for k in ring.tick(gone + WITHDRAWN_S, LIVES, none_held).of(Kind.NONCE)]


def test_cookie_key_is_accepted_before_and_after_use() -> None:
    ring = KeyRing().tick(0.0, LIVES, none_held)
    assert ring.cookies() is None, "no replica holds it"
    ring = ring.tick(0.0, LIVES, all_held)

    def epochs() -> tuple[int, int]:
        pair = ring.cookies()
        assert pair is not None
        return pair[0].epoch, pair[1].epoch

    assert epochs() == (1, 1)
    ring = ring.tick(50.0, LIVES, none_held)
    assert epochs() == (1, 2), "the successor is accepted before any ToR makes cookies with it"
    ring = ring.tick(51.0, LIVES, all_held)
    assert epochs() == (2, 1)
    ring = ring.tick(100.0, LIVES, none_held)
    assert epochs() == (2, 3) and [k.epoch for k in ring.accepted(Kind.COOKIE)] == [1, 2, 3]
    ring = ring.tick(51.0 + 50.0 + CONFIRM_MARGIN_S, LIVES, all_held)
    assert epochs() == (3, 2) and [k.epoch for k in ring.accepted(Kind.COOKIE)] == [2, 3]
    assert {len(key.secret) for key in ring.of(Kind.COOKIE)} == {8}
    assert not any(key.state is State.WITHDRAWN for key in ring.of(Kind.COOKIE)), "a switch has no word for that"


def test_clock_jump_back_withdraws_no_key_early() -> None:
    ring = KeyRing().tick(1000.0, LIVES, none_held).tick(1000.0, LIVES, all_held)
    ring = ring.tick(1020.0, LIVES, none_held).tick(1020.0, LIVES, all_held)
    back = ring.tick(5.0, LIVES, none_held)
    assert {k.epoch for k in back.of(Kind.NONCE)} == {1, 2, 3}
    later = back.tick(5.0 + LIVES.horizon, LIVES, none_held)
    assert {k.epoch for k in later.of(Kind.NONCE)} == {1, 2, 3}


def test_ring_always_has_one_usable_key() -> None:
    rng = random.Random(7)
    ring, now = KeyRing(), 0.0
    for _ in range(3000):
        now += rng.choice([0.0, 0.1, 1.0, 5.0, 30.0])
        had = {kind: ring.usable(kind) for kind in Kind}
        chance = rng.random()
        ring = ring.tick(now, LIVES, lambda kind, epoch, chance=chance: chance < 0.5)  # type: ignore[misc]
        for kind in Kind:
            keys = ring.of(kind)
            assert sum(k.state is State.USABLE for k in keys) <= 1
            assert sum(k.state is State.ACCEPTED for k in keys) <= 1
            assert [k.epoch for k in keys] == sorted(k.epoch for k in keys)
            assert had[kind] is None or ring.usable(kind) is not None, "a usable key vanished without a successor"


def test_epochs_skip_zero_and_text_hides_secrets() -> None:
    assert next_epoch(EPOCH_MAX) == 1
    ring = KeyRing().tick(0.0, LIVES, none_held)
    for key in ring.keys:
        assert key.secret.hex() not in repr(ring) and repr(key.secret) not in repr(ring)
    nonce = ring.of(Kind.NONCE)[0]
    assert (len(nonce.k), len(nonce.k_prime), len(nonce.opening)) == (8, 8, 16)
    assert nonce.k != nonce.k_prime

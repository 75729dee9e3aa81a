"""Key rings: the seal, nonce, cookie and ticket keys of a service, which rotate by epoch.

A new key is *accepted* (being distributed to every ToR and every live replica). Once all of them
hold it, it is *usable*: the ToR stamps its epoch into requests. Its successor makes it *retired*,
and it is withdrawn when no continuation needs it any more: after the resume time for seal keys, the
horizon for nonce keys, another rotation for cookie and ticket keys.

Pure functions: time is an argument, randomness comes from `secrets`. `Key` hides its secret when
printed.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

EPOCH_MAX = 0xFFFF
"""Epochs have 16 bits: 1 to 65535, then 1 again; 0 means none (docs/wire-format.md)."""

CONFIRM_MARGIN_S = 1.0
"""Added to the time that a retired key is accepted, for requests on their way and ToRs that are
being updated."""


WITHDRAWN_S = 1.0
"""How long a withdrawn nonce key stays in the ToRs, so that late requests fail as KEY_NOT_USABLE,
not as unknown."""


class Kind(enum.StrEnum):
    """Kinds of keys: three for each service, one more for services with TLS, and one shared by each
    replica and the ToRs.
    """

    SEAL = "seal"
    NONCE = "nonce"
    COOKIE = "cookie"
    TOR = "tor"
    TICKET = "ticket"


class State(enum.StrEnum):
    """Stage in a key's life. A withdrawn nonce key stays in the ToRs for WITHDRAWN_S, marked as not
    usable.
    """

    ACCEPTED = "accepted"
    USABLE = "usable"
    RETIRED = "retired"
    WITHDRAWN = "withdrawn"


SERVICE_KINDS = (Kind.SEAL, Kind.NONCE, Kind.COOKIE)
"""Kinds of every service."""

TLS_KINDS = (*SERVICE_KINDS, Kind.TICKET)
"""Kinds of a service with TLS."""

RACK_RING = "/tor"
"""Name of the one ring of kind TOR, which no service can have. Each replica's keys are derived from
it."""

SECRET_BYTES = {Kind.SEAL: 16, Kind.NONCE: 32, Kind.COOKIE: 8, Kind.TOR: 32, Kind.TICKET: 32}
"""Seal: the KDF's master key. Nonce: K (8 bytes), K' (8), opening key (16). Cookie: a HalfSipHash
key. ToR: see `TorKeys`. Ticket: a ChaCha20-Poly1305 key."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of one epoch. Times are seconds of the controller's clock."""

    kind: Kind
    epoch: int
    secret: bytes = field(repr=False)
    created: float
    state: State = State.ACCEPTED
    since: float = 0.0

    @property
    def k(self) -> bytes:
        """Nonce key K, 8 bytes."""
        return self.secret[:8]

    @property
    def k_prime(self) -> bytes:
        """Nonce key K' (retransmissions), 8 bytes."""
        return self.secret[8:16]

    @property
    def opening(self) -> bytes:
        """Key of the opening PRF, 16 bytes."""
        return self.secret[16:32]


def derived(secret: bytes, purpose: str, name: str) -> bytes:
    """A HalfSipHash key (8 bytes) derived from a secret: for slots, heartbeats and blocks."""
    return hashlib.blake2s(name.encode(), key=secret, person=purpose.encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class TorKeys:
    """Keys that one replica shares with the ToRs in one epoch: HalfSipHash keys of 8 bytes."""

    epoch: int
    heartbeat: bytes = field(repr=False)
    block: bytes = field(repr=False)
    newest: bool
    """Whether this is the newest key that replicas may use."""
    usable: bool


def words(key: bytes) -> tuple[int, int]:
    """The two 32-bit words of a HalfSipHash key, as tables hold them."""
    return int.from_bytes(key[:4], "little"), int.from_bytes(key[4:8], "little")


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`, skipping 0."""
    return 1 if epoch >= EPOCH_MAX else epoch + 1


@dataclass(frozen=True, slots=True)
class Lives:
    """Lifetimes of keys in seconds: until a successor is made, and after the successor is usable."""

    seal_rotation: float
    nonce_rotation: float
    resume: float
    horizon: float
    tor_rotation: float = 86400.0
    cookie_rotation: float = 43200.0
    ticket_rotation: float = 3600.0

    def rotation(self, kind: Kind) -> float:
        """Age at which a usable key gets a successor."""
        rotations = {
            Kind.SEAL: self.seal_rotation,
            Kind.NONCE: self.nonce_rotation,
            Kind.COOKIE: self.cookie_rotation,
            Kind.TOR: self.tor_rotation,
            Kind.TICKET: self.ticket_rotation,
        }
        return rotations[kind]

    def linger(self, kind: Kind) -> float:
        """How long a retired key is accepted."""
        # A replica cut off from the controller keeps its old heartbeat key; a connection keeps the
        # cookie it began with.
        lives = {
            Kind.SEAL: self.resume,
            Kind.NONCE: self.horizon,
            Kind.COOKIE: self.cookie_rotation,
            Kind.TOR: self.tor_rotation,
            Kind.TICKET: self.ticket_rotation,
        }
        return lives[kind] + CONFIRM_MARGIN_S


def _aged(key: Key, now: float, lives: Lives) -> Key | None:
    """Drops a retired key that is no longer needed; a nonce key is first withdrawn for WITHDRAWN_S."""
    if key.state is State.WITHDRAWN:
        return key if 0 <= now - key.since < WITHDRAWN_S else None
    if key.state is not State.RETIRED or now - key.since < lives.linger(key.kind):
        return key
    return replace(key, state=State.WITHDRAWN, since=now) if key.kind is Kind.NONCE else None


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All keys of a service, oldest first within a kind."""

    keys: tuple[Key, ...] = ()

    def of(self, kind: Kind) -> tuple[Key, ...]:
        """The keys of one kind, oldest first."""
        return tuple(key for key in self.keys if key.kind is kind)

    def accepted(self, kind: Kind) -> tuple[Key, ...]:
        """The keys of one kind that replicas hold, oldest first."""
        return tuple(key for key in self.keys if key.kind is kind and key.state is not State.WITHDRAWN)

    def tor_keys(self, pool: str, replica: str) -> tuple[TorKeys, ...]:
        """The keys that a replica of a pool shares with the ToRs, oldest first. Only for the ring
        of kind TOR.
        """
        place = f"{pool}/{replica}"
        usable = self.usable(Kind.TOR)
        return tuple(
            TorKeys(
                key.epoch,
                derived(key.secret, "beat", place),
                derived(key.secret, "block", place),
                key.state in (State.ACCEPTED, State.USABLE),
                key is usable,
            )
            for key in self.accepted(Kind.TOR)
        )

    def cookies(self) -> tuple[Key, Key] | None:
        """The cookie key with which a ToR makes cookies, and a second one that it also accepts;
        None before one is usable.

        The second is the successor if there is one, so that every ToR accepts its cookies before
        any makes them; connections of the predecessor are a rotation old by then. With a single
        key, both are that key.
        """
        usable = self.usable(Kind.COOKIE)
        if usable is None:
            return None
        others = [key for key in self.accepted(Kind.COOKIE) if key is not usable]
        return usable, others[-1] if others else usable

    def newest(self) -> float:
        """The latest time in any key; 0 without keys."""
        return max((max(key.created, key.since) for key in self.keys), default=0.0)

    def next_change(self, lives: Lives) -> float:
        """When `tick` may next change something without any other event."""
        times = [float("inf")]
        for key in self.keys:
            if key.state is State.USABLE:
                times.append(key.created + lives.rotation(key.kind))
            elif key.state is State.RETIRED:
                times.append(key.since + lives.linger(key.kind))
            elif key.state is State.WITHDRAWN:
                times.append(key.since + WITHDRAWN_S)
        return min(times)

    def usable(self, kind: Kind) -> Key | None:
        """The newest usable key, or None."""
        return next((key for key in reversed(self.of(kind)) if key.state is State.USABLE), None)

    def tick(
        self,
        now: float,
        lives: Lives,
        held_everywhere: Callable[[Kind, int], bool],
        rotate_now: frozenset[Kind] = frozenset(),
        given: Mapping[Kind, int] | None = None,
        kinds: Sequence[Kind] = SERVICE_KINDS,
    ) -> KeyRing:
        """The ring's next stage. `held_everywhere`: whether ToRs and live replicas hold an
        epoch's key.

        `given`: the last epoch of each kind that any ring of this service had. A new ring continues
        after it, since a replica may still hold that epoch with another secret.

        If the clock was set back, a key from the future counts as old and is replaced, and a
        retired key's time starts again, so that none is withdrawn early.
        """
        ring: list[Key] = []
        for kind in kinds:
            keys = list(self.of(kind))
            keys = [replace(key, since=now) if key.state is State.RETIRED and key.since > now else key for key in keys]
            pending = next((key for key in keys if key.state is State.ACCEPTED), None)
            if pending is not None and held_everywhere(kind, pending.epoch):
                keys = [
                    replace(key, state=State.USABLE, since=now)
                    if key is pending
                    else replace(key, state=State.RETIRED, since=now)
                    if key.state is State.USABLE
                    else key
                    for key in keys
                ]
                pending = None
            current = next((key for key in reversed(keys) if key.state is State.USABLE), None)
            # Counted from creation, so that slow distribution does not lengthen the interval
            # between rotations.
            due = current is None or now - current.created >= lives.rotation(kind) or current.created > now
            if pending is None and (due or kind in rotate_now):
                epoch = next_epoch(keys[-1].epoch if keys else (given or {}).get(kind, 0))
                keys.append(Key(kind, epoch, secrets.token_bytes(SECRET_BYTES[kind]), created=now, since=now))
            ring += [aged for key in keys if (aged := _aged(key, now, lives)) is not None]
        return KeyRing(tuple(ring))

# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
"""The wire format without scapy: constants, nonces, checksums, the test vectors.

`rivulet_scapy` builds and dissects packets; `rivulet_check` checks them against the format's rules.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

OPTION_KIND = 253
OPTION_LENGTH = 8
EX_ID = 0x5256
VERSION = 2
MAX_ATTEMPT = 3
MAX_GAIN = 8
LEAST_CLOCK = 16
MAX_ENTRIES = MAX_WANTS = MAX_UCONTS = MAX_GROUP = 16
NO_UCONT = 255
HEARTBEAT_ETHERTYPE = 0x88B5
HEARTBEAT_PORT = 34997
HEARTBEAT_VERSION = 2
ANSWER_LENGTH = 36
READY, SETTLED, ANSWER = 0x01, 0x40, 0x80
TOR_BLOCK = 18
ENTRIES_SEEN = 4

REQUEST_CLASSES = {"SYN": 0, "NORMAL": 1, "PROBE": 2, "TIMEOUT": 3, "RESTART": 4, "REKEY": 5, "CLOSE": 6}
RESPONSE_CLASSES = {
    "DATA": 0x80,
    "RETRANSMISSION": 0x81,
    "GROUP": 0x82,
    "SKIP": 0x83,
    "WAIT": 0x84,
    "NOT_MINE": 0x85,
    "CHALLENGE": 0x86,
    "INPUT": 0x87,
    "ERROR": 0x88,
}
CLASSES = REQUEST_CLASSES | RESPONSE_CLASSES
CLASS_NAMES = {value: name for name, value in CLASSES.items()}
KINDS = {"ORIGINAL": 0, "RETRANSMITTED": 1, "MARK": 2}

CHECKED, TIME_VALID = 0x01, 0x02
INPUT, TOKEN, PAD, FORMER, RETIRE = 0x01, 0x02, 0x04, 0x08, 0x10
FULL, DELTA, UCONT, OFFSET, PRIME, END, CONSUMED, HAS_TOKEN = (1 << i for i in range(8))
_CARRY = FULL | DELTA | UCONT | PRIME | CONSUMED | HAS_TOKEN
ALLOWED = {
    "DATA": 0xFF,
    "SKIP": 0xFF,
    "INPUT": 0xFF,
    "ERROR": 0xFF,
    "RETRANSMISSION": UCONT | OFFSET | PRIME | END,
    "GROUP": PRIME,
    "WAIT": _CARRY,
    "NOT_MINE": _CARRY,
    "CHALLENGE": PRIME,
}
FIN, SYN, RST, ACK, URG = 0x01, 0x02, 0x04, 0x10, 0x20
_MASK = 0xFFFFFFFF


def load_vectors(path: Path | None = None) -> dict[str, Any]:
    """The content of docs/wire-vectors.json."""
    path = path or Path(__file__).resolve().parent.parent / "docs" / "wire-vectors.json"
    vectors: dict[str, Any] = json.loads(path.read_text())
    return vectors


# --- nonces -----------------------------------------------------------------------------------------


def _sip_rounds(v: tuple[int, int, int, int], n: int) -> tuple[int, int, int, int]:
    def rotl(x: int, n: int) -> int:
        return (x << n | x >> (32 - n)) & _MASK

    v0, v1, v2, v3 = v
    for _ in range(n):
        v0 = (v0 + v1) & _MASK
        v1 = rotl(v1, 5) ^ v0
        v0 = rotl(v0, 16)
        v2 = (v2 + v3) & _MASK
        v3 = rotl(v3, 8) ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = rotl(v3, 7) ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = rotl(v1, 13) ^ v2
        v2 = rotl(v2, 16)
    return v0, v1, v2, v3


def sip_state(key: tuple[int, int], *words: int) -> tuple[int, int, int, int]:
    """State of HalfSipHash-2-4 after these words of a message."""
    k0, k1 = key
    v = k0, k1, 0x6C796765 ^ k0, 0x74656462 ^ k1
    for word in words:
        v0, v1, v2, v3 = _sip_rounds((v[0], v[1], v[2], v[3] ^ word), 2)
        v = v0 ^ word, v1, v2, v3
    return v


def half_sip_hash(key: tuple[int, int], *words: int) -> int:
    """HalfSipHash-2-4 of a message of these 32-bit words, as an integer."""
    v0, v1, v2, v3 = sip_state(key, *words, (4 * len(words) & 0xFF) << 24)
    _, v1, _, v3 = _sip_rounds((v0, v1, v2 ^ 0xFF, v3), 4)
    return v1 ^ v3


def nonce_r(k0: int, k1: int, tag: int, number: int) -> int:
    """Nonce r(x) of a number: the hash of the two words tag and number."""
    return half_sip_hash((k0, k1), tag, number & _MASK)


def range_sum(key: tuple[int, int], tag: int, first: int, last: int) -> int:
    """XOR of the nonces of the packets first..last, both included."""
    return nonce_r(*key, tag, first & _MASK) ^ nonce_r(*key, tag, (last + 1) & _MASK)


# --- slots ------------------------------------------------------------------------------------------


class WordsHash(Protocol):
    """A hash of 32-bit words under a service's slot key."""

    def __call__(self, key: tuple[int, int], *words: int) -> int: ...


def crc32_words(key: tuple[int, int], *words: int) -> int:
    """CRC-32 of the key and these words: the hash of slots where replicas make the checks."""
    return zlib.crc32(b"".join(word.to_bytes(4, "big") for word in (*key, *words)))


def flow_hash(
    key: tuple[int, int],
    client: bytes,
    service: bytes,
    client_port: int,
    service_port: int,
    hashed: WordsHash = half_sip_hash,
) -> int:
    """Hash of a connection under the service's slot key; addresses have 16 bytes, IPv4 is mapped."""
    words = [int.from_bytes((client + service)[at : at + 4], "big") for at in range(0, 32, 4)]
    return hashed(key, *words, client_port << 16 | service_port)


def client_hash(key: tuple[int, int], client: bytes, hashed: WordsHash = half_sip_hash) -> int:
    """Hash of a client's address alone, for services with client affinity."""
    return hashed(key, *(int.from_bytes(client[at : at + 4], "big") for at in range(0, 16, 4)))


def block_hash(key: tuple[int, int], tag: int, number: int, attempt: int, hashed: WordsHash = half_sip_hash) -> int:
    """Hash of a block of eight consecutive numbers and one attempt."""
    return hashed(key, tag, (attempt & 7) << 29 | number >> 3)


def owner(pick: int, slots: Sequence[tuple[int, int]], candidates: int) -> int | None:
    """The replica that gets a packet: its slot's first candidate, else the second, else any, chosen evenly."""
    for replica in slots[pick & (len(slots) - 1)]:
        if candidates >> replica & 1:
            return replica
    members = [replica for replica in range(64) if candidates >> replica & 1]
    share = (pick * 0x9E3779B9 & _MASK) >> 16
    return members[share * len(members) >> 16] if members else None


# --- tags -------------------------------------------------------------------------------------------


def words_key(key: bytes) -> tuple[int, int]:
    """A key as the two words that the controller distributes."""
    return int.from_bytes(key[:4], "little"), int.from_bytes(key[4:8], "little")


def tag_of(key: tuple[int, int], message: bytes) -> int:
    """Tag of bytes, which are hashed as big-endian words."""
    assert len(message) % 4 == 0
    return half_sip_hash(key, *(int.from_bytes(message[at : at + 4], "big") for at in range(0, len(message), 4)))


def with_tag(key: tuple[int, int], message: bytes) -> bytes:
    """A heartbeat or an answer (given without its tag) with its tag appended."""
    return message + tag_of(key, message).to_bytes(4, "big")


def block_tag(key: tuple[int, int], option: bytes, sequence: int, payload: bytes) -> int:
    """Tag of the ToR block at the start of a request's payload; `option` is the TCP option, 8 bytes."""
    message = payload[:14] + payload[18:20] + option[4:8] + payload[20:24]
    if option[4] == REQUEST_CLASSES["SYN"]:
        return tag_of(key, message + sequence.to_bytes(4, "big"))
    seen = 8 * min(payload[18], ENTRIES_SEEN)
    return tag_of(key, message + payload[24:36] + payload[44 : 44 + seen])


# --- checksums --------------------------------------------------------------------------------------


def internet_checksum(data: bytes) -> int:
    """RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF

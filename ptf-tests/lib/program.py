# SPDX-License-Identifier: Apache-2.0
"""The program under test: that of the ToR's checks, or that of `checks: host`, and its hashes of slots."""

import os
from functools import partial
from pathlib import Path

import rivulet_wire as wire
from packets import CHECKED, TIME_VALID

ROOT = Path(__file__).resolve().parents[2]
# ptf-tests/removal.py and `run.py --program host` run another program than the committed one of the ToR.
BUILD = Path(os.environ.get("RIVULET_P4_BUILD", ROOT / "p4src" / "build"))
CHECKS_AT_TOR = '"nonce_keys"' in (BUILD / "rivulet.p4info.txtpb").read_text()

MARKED = CHECKED | TIME_VALID if CHECKS_AT_TOR else TIME_VALID
"""Flags of the ToR block of a request in which no check finds a fault."""

_hash = wire.half_sip_hash if CHECKS_AT_TOR else wire.crc32_words
flow_hash = partial(wire.flow_hash, hashed=_hash)
client_hash = partial(wire.client_hash, hashed=_hash)
block_hash = partial(wire.block_hash, hashed=_hash)

// SPDX-License-Identifier: Apache-2.0
// The hashes that choose a slot, and the tag of the ToR block: HalfSipHash under a key.
#include "../control/half_sip_hash.p4"

// SPDX-License-Identifier: Apache-2.0
// The ToR program for v1model where replicas make the checks (`checks: host`): no keyed hash of a
// client's packet, no sketch, no cookies. Heartbeats keep their tags.
#define CHECKS_AT_HOST
#include "rivulet.p4"

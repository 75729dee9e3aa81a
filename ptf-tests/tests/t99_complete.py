# SPDX-License-Identifier: Apache-2.0
"""The last test of a whole run: every drop reason was provoked by some test before it."""

import unittest

import traffic
from rack import RackTest

# Never dropped: the host judges freshness until the ToR has a clock (ClockNotSet sees it counted).
NEVER_DROPPED = {"UNJUDGED_CLOCK"}


class EveryDropReasonWasSeen(RackTest):
    """No reason without a test. Skipped when only some of the tests run."""

    def runTest(self) -> None:
        if len(traffic.SEEN_REASONS) < 30:
            raise unittest.SkipTest("only some of the tests ran")
        wanted = set(self.reasons) - {"NONE"} - NEVER_DROPPED
        self.assertEqual(wanted - traffic.SEEN_REASONS, set(), "drop reasons that no test provoked")

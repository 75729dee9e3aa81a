# SPDX-License-Identifier: Apache-2.0
"""Runs last: some test of the run has provoked every drop reason."""

import unittest

import traffic
from rack import RackTest

# Never dropped: the host checks freshness until the ToR has a clock, and ClockNotSet sees it counted.
NEVER_DROPPED = {"UNJUDGED_CLOCK"}


class EveryDropReasonIsProvoked(RackTest):
    """Every drop reason has a test. Skipped when only some of the tests run."""

    def runTest(self) -> None:
        if len(traffic.SEEN_REASONS) < 30:
            raise unittest.SkipTest("only some of the tests ran")
        wanted = set(self.reasons) - {"NONE"} - NEVER_DROPPED
        self.assertEqual(wanted - traffic.SEEN_REASONS, set(), "drop reasons that no test has provoked")

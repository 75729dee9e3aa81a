# SPDX-License-Identifier: GPL-2.0-only
"""What a test over p4c's PTF base class does: the pipeline, entries of each kind, packets through the ports, the
controller's packets, and the clean-up behind it."""

import base_test as bt
from ptf import testutils


class Basic(bt.P4RuntimeTest):
    """p4c's `tools/ptf/base_test.py` as it is, on the program of the P4Runtime tests."""

    def setUp(self):
        bt.P4RuntimeTest.setUp(self)
        assert self.updateConfig(), "the pipeline was not taken"

    @bt.autocleanup
    def runTest(self):
        packet = testutils.simple_udp_packet(eth_dst="02:00:00:00:01:05", ip_dst="10.1.2.3", ip_ttl=64, pktlen=80)
        testutils.send_packet(self, 1, packet)
        testutils.verify_no_other_packets(self)
        self.table_add(("routes", [self.Lpm("hdr.ipv4.dst", 0x0A010000, 16)]), ("forward", [("port", 2)]))
        testutils.send_packet(self, 1, packet)
        testutils.verify_packet(self, packet, 2)
        self.table_add(("routes", [self.Lpm("hdr.ipv4.dst", 0x0A010200, 24)]), ("forward", [("port", 3)]))
        testutils.send_packet(self, 1, packet)
        testutils.verify_packet(self, packet, 3)
        assert len(list(self.table_dump_data("routes")[0])) == 2

        # A group of the selector by the same class, and an error with its details.
        self.send_request_add_member("selector", 1, "forward", [("port", 4)])
        self.send_request_add_group("selector", 1, grp_size=32, mbr_ids=[1])
        with self.assertP4RuntimeError():
            self.table_add(("routes", [self.Lpm("hdr.ipv4.dst", 0x0A010200, 24)]), ("forward", [("port", 3)]))

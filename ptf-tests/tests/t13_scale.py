# SPDX-License-Identifier: Apache-2.0
"""The switch keeps no state per connection: table entries and memory do not grow."""

import os
from pathlib import Path

import packets
import rivulet_wire as wire
from layout import CLIENT
from ptf import testutils
from rack import RackTest


def switch_memory() -> int:
    """Resident memory of the switch in bytes."""
    pid = int(testutils.test_params_get()["pid"])
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


class ConnectionsLeaveNoState(RackTest):
    """10 and then 20,000 simulated connections (RIVULET_CONNECTIONS; `make test-long` takes 100,000).

    The table entries stay the same, and the switch's memory within 1 MB, which is 52 bytes a connection.
    """

    def runTest(self) -> None:
        many = int(os.environ.get("RIVULET_CONNECTIONS", "20000"))
        service = self.add_service()
        # Growth with the first packets, such as buffers, is not per connection.
        self.connections(service, 3000)
        self.connections(service, 10)
        entries, memory = self.switch.table_count(), switch_memory()
        self.connections(service, many)
        self.assertEqual(self.switch.table_count(), entries, "table entries depend on the number of connections")
        grown = switch_memory() - memory
        print(f"  {many:,} connections: {entries} table entries before and after, memory {grown / 1024:+.0f} kB")
        self.assertLessEqual(abs(grown), 1 << 20, f"the switch grew by {grown} bytes over {many} connections")

    def connections(self, service, count: int) -> None:
        """Sends requests of connections, each with its own tag, flow and number; at most 32 are in flight."""
        template = bytearray(self.to_service(service, self.good_request(service)))
        frame = packets.parse(bytes(template))
        head = frame.l4 + 28 + wire.TOR_BLOCK
        arrived = refused = 0
        for i in range(count):
            tag, number = self.random.getrandbits(32), self.random.getrandbits(32)
            entry = service.range(0, 0, base=number, tag=tag)
            template[frame.l4 : frame.l4 + 2] = (1024 + i % 60000).to_bytes(2, "big")
            template[frame.l4 + 26 : frame.l4 + 28] = (number & 0xFFFF).to_bytes(2, "big")
            template[head + 6 : head + 18] = tag.to_bytes(4, "big") + number.to_bytes(4, "big") * 2
            template[head + 18 : head + 24] = self.clock().to_bytes(6, "big")
            template[head + 26 : head + 34] = bytes(4) + entry.sum.to_bytes(4, "big")
            self.send(CLIENT, bytes(template))
            while i + 1 - arrived >= 32 or (i + 1 == count and arrived < count):
                result = self.dataplane.poll(0, timeout=1)
                if not isinstance(result, self.dataplane.PollSuccess):
                    refused += 1  # refused by a collision in the sketch
                    self.assertLessEqual(refused, 8 + count // 1000, f"{arrived} of {i + 1} requests arrived")
                    break
                arrived += 1
        self.assertGreaterEqual(arrived, count * 0.998, f"{arrived} of {count} connections' requests arrived")

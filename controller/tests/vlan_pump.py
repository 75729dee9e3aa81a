"""A VLAN interface for kernels without 802.1Q: frames between a tap device and a link, tagged on
the link.

`python vlan_pump.py LINK TAP VLAN` in the namespace of both; ends when killed.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
SOL_PACKET, PACKET_AUXDATA, ETH_P_ALL, PACKET_OUTGOING = 263, 8, 3, 4
AUXDATA = struct.Struct("=IIIHHHH")
VLAN_VALID = 0x10


def pump(link: str, name: str, vlan: int) -> None:
    """Relays frames both ways until killed."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    wire.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    wire.bind((link, ETH_P_ALL))
    tag = b"\x81\x00" + vlan.to_bytes(2, "big")
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([tap, wire], [], [])
        if tap in ready:
            frame = os.read(tap, 65536)
            wire.send(frame[:12] + tag + frame[12:])
        if wire in ready:
            frame, extra, _, address = wire.recvmsg(65536, 256)
            if address[2] == PACKET_OUTGOING:
                continue
            # Linux removes the tag from the frame and delivers it as metadata.
            for level, kind, data in extra:
                if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
                    status, _, _, _, _, tci, _ = AUXDATA.unpack_from(data)
                    if status & VLAN_VALID and tci & 0xFFF == vlan:
                        os.write(tap, frame)


if __name__ == "__main__":
    pump(sys.argv[1], sys.argv[2], int(sys.argv[3]))

//! Packet I/O on Linux interfaces behind one trait: AF_PACKET and AF_XDP.

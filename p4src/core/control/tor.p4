// SPDX-License-Identifier: Apache-2.0
// Identity, clock and limits of this ToR.
#ifndef RIVULET_TOR_P4
#define RIVULET_TOR_P4

#include "../metadata.p4"

control Tor(inout metadata_t meta) {
    // clock_offset: microseconds from the local clock to the common one. sketch_mask: words of a
    // row of the replay sketches in use, a power of two, minus one. Limits: keys that one slot of a
    // sketch takes.
    @id(0x01000001)
    action set_tor(microseconds_t clock_offset, bit<1> time_valid, bit<16> tor_id, mac_address_t mac, bit<32> ipv4,
                   bit<128> ipv6, @secret bit<32> sketch_key0, @secret bit<32> sketch_key1, bit<18> sketch_mask,
                   bit<32> replay_limit, bit<32> openings_limit) {
        meta.bridged.clock = meta.carried.now + clock_offset;
        meta.bridged.time_valid = time_valid;
        meta.bridged.tor_id = tor_id;
        meta.bridged.tor_mac = mac;
        meta.bridged.tor_ipv4 = ipv4;
        meta.bridged.tor_ipv6 = ipv6;
        meta.tor.sketch_key0 = sketch_key0;
        meta.tor.sketch_key1 = sketch_key1;
        meta.tor.sketch_mask = sketch_mask;
        meta.tor.replay_limit = replay_limit;
        meta.tor.openings_limit = openings_limit;
        meta.tor.ready = 1;
    }

    @id(0x01000002)
    action tor_unset() {
        meta.tor.ready = 0;
    }

    // One value each, set by the controller as the default entry.
    @id(0x02000001)
    table tor {
        actions = { set_tor; tor_unset; }
        default_action = tor_unset;
    }

    apply {
        tor.apply();
    }
}

#endif

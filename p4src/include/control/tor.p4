// SPDX-License-Identifier: Apache-2.0
// Who this ToR is and what time it is.
#ifndef RIVULET_TOR_P4
#define RIVULET_TOR_P4

#include "../metadata.p4"

control Tor(inout metadata_t meta) {
    // clock_offset: microseconds from the local clock to the common one. sketch_mask: words of a row of the replay
    // sketches in use, a power of two, minus one. Limits: keys that one slot of a sketch takes.
    action set_tor(microseconds_t clock_offset, bit<1> time_valid, bit<16> tor_id, mac_address_t mac, bit<32> ipv4,
                   bit<128> ipv6, bit<32> sketch_key0, bit<32> sketch_key1, bit<18> sketch_mask,
                   bit<32> replay_limit, bit<32> openings_limit) {
        meta.clock = meta.now + clock_offset;
        meta.time_valid = time_valid;
        meta.tor_id = tor_id;
        meta.own_mac = mac;
        meta.own_ipv4 = ipv4;
        meta.own_ipv6 = ipv6;
        meta.sketch_key0 = sketch_key0;
        meta.sketch_key1 = sketch_key1;
        meta.sketch_mask = sketch_mask;
        meta.replay_limit = replay_limit;
        meta.openings_limit = openings_limit;
        meta.tor_ready = 1;
    }

    action tor_unset() {
        meta.tor_ready = 0;
    }

    // One value each, set by the controller as the default entry.
    table tor {
        actions = { set_tor; tor_unset; }
        default_action = tor_unset;
    }

    apply {
        tor.apply();
    }
}

#endif

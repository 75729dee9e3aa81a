// SPDX-License-Identifier: Apache-2.0
// The metadata that Tofino gives a packet or keeps over a resubmission: ports have 9 bits, and at most
// 8 bytes of a resubmitted packet's metadata are kept.
#ifndef RIVULET_TNA_CARRIED_P4
#define RIVULET_TNA_CARRIED_P4

typedef bit<9> port_id_t;

// Port of the processor (PCIe) on a Tofino with two pipes; on one with four it is 192 too.
const port_id_t CPU_PORT  = 192;
// No front port has this number.
const port_id_t DROP_PORT = 511;

// Clock of liveness: bits 41 to 10 of the ingress MAC's timestamp. A unit is 1.024 us, and the
// clock wraps after 73 minutes.
typedef bit<32> ticks_t;

// What a resubmitted packet carries.
header resubmit_h {
    bit<6>       padding;
    pool_id_t    silent_pool;     // the member that the next pass excludes, or whose exclusion it ends
    bit<2>       padding_replica;
    replica_id_t silent_replica;
    bit<1>       silent;
    bit<7>       resubmits;
    bit<32>      pick;
}

// As v1model/carried.p4.
struct carried_t {
    port_id_t      ingress_port;
    microseconds_t now;
    bit<7>         resubmits;
    bit<1>         silent;
    bit<1>         judging;
    pool_id_t      silent_pool;
    replica_id_t   silent_replica;
    bit<32>        pick;
    bit<1>         checked;
    ticks_t        ticks;
}

#endif

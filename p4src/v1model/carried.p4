// SPDX-License-Identifier: Apache-2.0
// The metadata that v1model gives a packet or keeps over a resubmission, with v1model's names and
// widths: ports have 9 bits.
#ifndef RIVULET_V1MODEL_CARRIED_P4
#define RIVULET_V1MODEL_CARRIED_P4

typedef bit<9> port_id_t;

// --cpu-port and --drop-port of both switches.
const port_id_t CPU_PORT  = 510;
const port_id_t DROP_PORT = 511;

// Index of the @field_list that survives a resubmission.
const bit<8> RESUBMIT_FIELDS = 1;

// All standard metadata is zero after a resubmission, clock and ingress port too. Initialised in
// the first pass only.
struct carried_t {
    @field_list(1) port_id_t      ingress_port;  // port of the first pass
    @field_list(1) microseconds_t now;           // local clock of the first pass
    @field_list(1) bit<7>         resubmits;     // passes before this one
    @field_list(1) bit<1>         silent;        // the previous pass found this replica's heartbeats overdue
    @field_list(1) bit<1>         judging;       // a heartbeat that was recorded, to check this replica
    @field_list(1) pool_id_t      silent_pool;
    @field_list(1) replica_id_t   silent_replica;
    @field_list(1) bit<32>        pick;          // the policy's number: same slot in each pass
    @field_list(1) bit<1>         checked;       // verdict of the checks of the first pass
}

#endif

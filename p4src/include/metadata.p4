// SPDX-License-Identifier: Apache-2.0
// What one packet carries through the pipeline beside its headers.
#ifndef RIVULET_METADATA_P4
#define RIVULET_METADATA_P4

#include "headers.p4"

// Index of the @field_list that survives a resubmission.
const bit<8> RESUBMIT_FIELDS = 1;

// The four words of HalfSipHash, and the states after the tag's two rounds under K and K'.
struct nonce_state_t {
    bit<32> v0;
    bit<32> v1;
    bit<32> v2;
    bit<32> v3;
}

// The ToR block before it is overwritten, complemented (RFC 1624).
struct tor_block_t {
    bit<48> time;
    bit<16> tor_id;
    bit<16> exclusions;
    bit<16> seal_epoch;
    bit<16> nonce_epoch;
    bit<16> flags;
}

struct event_t {
    bit<8>  kind;      // event_kind_t
    bit<8>  reason;    // drop_reason_t
    bit<16> pool;
    bit<8>  replica;
    bit<32> sequence;
    bit<48> clock;
    bit<48> mac;
    bit<16> port;
    bit<16> vlan;
}

struct metadata_t {
    // Kept over a resubmission, because all standard metadata is zero after it. Initialised in the first pass only.
    @field_list(1) port_id_t      ingress_port;    // where the packet came from
    @field_list(1) microseconds_t now;             // local clock of the first pass
    @field_list(1) bit<7>         resubmits;       // passes before this one
    @field_list(1) replica_id_t   found_dead;      // the replica whose silence the pass before found
    @field_list(1) bit<32>        pick;            // the policy's number: same slot in each pass
    @field_list(1) bit<1>         checked;         // verdict of the checks of the first pass

    // Written by the parser.
    bit<16>       frame_length;     // bytes
    bit<16>       l2_length;        // bytes before the IP header
    drop_reason_t parse_reason;     // why the parser stopped, or the IPv4 checksum; NONE: well formed
    ip_address_t  src;
    ip_address_t  dst;
    ip_protocol_t protocol;
    bit<16>       l4_length;        // bytes behind the IP header
    bit<16>       payload_length;   // bytes behind the TCP header
    bit<1>        is_ip;
    bit<1>        is_fragment;
    bit<1>        has_extension;    // an IPv6 extension header
    quote_t       quote;

    // Decided by the ingress.
    drop_reason_t drop_reason;      // NONE: the packet lives
    port_id_t     egress_port;
    bit<16>       multicast_group;
    bit<1>        resubmit;
    vlan_id_t     vlan;             // of the frame as received; 0 untagged
    vlan_id_t     vlan_out;         // to send with
    mac_address_t own_mac;
    bit<32>       own_ipv4;
    bit<128>      own_ipv6;
    bit<16>       tor_id;
    bit<1>        time_valid;
    microseconds_t clock;           // the common clock
    bit<32>       sketch_key0;
    bit<32>       sketch_key1;
    bit<18>       sketch_mask;
    bit<32>       replay_limit;
    bit<32>       openings_limit;
    bit<1>        tor_ready;

    ip_address_t  lookup_address;   // what `addresses` is asked for
    bit<1>        address_own;
    bit<1>        address_service;
    ip_address_t  service_address;  // what `services` is asked for
    bit<16>       service_port;
    bit<1>        service_hit;
    service_id_t  service;
    bit<1>        is_service;       // to a service address
    bit<1>        is_request;       // a Rivulet request for a service
    outcome_t     outcome;
    pool_id_t     pool;
    policy_t      policy;
    slot_set_t    spray_set;
    slot_t        spray_mask;
    slot_set_t    flow_set;
    slot_t        flow_mask;
    bit<1>        plain_tcp;

    check_mode_t  key_mode;
    check_mode_t  time_mode;
    check_mode_t  range_mode;
    check_mode_t  sum_mode;
    check_mode_t  replay_mode;
    check_mode_t  meter_mode;
    bit<1>        drop_unjudged;
    bit<32>       horizon;
    epoch_t       seal_epoch;
    epoch_t       nonce_epoch;

    bit<1>        key_known;
    bit<1>        key_usable;
    bit<32>       k0;
    bit<32>       k1;
    bit<32>       k0_prime;
    bit<32>       k1_prime;
    nonce_state_t original;         // after the tag, under K
    nonce_state_t retransmitted;    // after the tag, under K'
    nonce_state_t state;            // of the hash under way
    bit<32>       nonce;            // its result
    bit<32>       sum;              // nonce of a range's first number
    bit<1>        has_ranges;
    bit<1>        ranges_unseen;    // more than four
    bit<32>       range_end;        // last number of the last range, minus base
    bit<1>        sums_right;
    bit<32>       sketch_tag;
    bit<32>       sketch_number;
    bit<8>        uses_allowed;
    bit<1>        opening;          // no proof: counted in the sketch of the openings
    drop_reason_t unjudged;         // what the switch could not judge
    check_mode_t  mode;             // of the check that just failed
    drop_reason_t failed;           // what it found
    bit<1>        suspect;          // some check failed in mode COUNT

    ip_address_t  client_address;   // of the flow, also when an ICMP error quotes it
    bit<16>       client_port;
    bit<1>        by_flow;          // choose by flow, not by the policy
    bit<1>        handed_on;        // a replica had no socket for it
    replica_id_t  handed_on_by;
    slot_set_t    slot_set;
    slot_t        slot;
    member_set_t  members;
    bit<32>       bound;
    bit<16>       copies_group;
    replica_id_t  first;
    replica_id_t  second;
    replica_id_t  replica;
    bit<1>        chosen;
    member_set_t  alive;            // members that are not excluded
    member_set_t  candidates;       // those that may take this packet
    member_set_t  rotated;
    replica_id_t  lowest;
    bit<16>       exclusions;

    bit<1>        is_heartbeat;     // one for this ToR
    bit<1>        admitted;         // on the port and from the source of its replica
    bit<1>        heartbeat_ready;
    bit<16>       readmitted;       // exclusions after which plain TCP is allowed again

    bit<1>        packet_out;       // leaves as it is
    bit<16>       copy;             // egress: which copy of a multicast
    drop_reason_t egress_reason;    // egress: why this copy is dropped, NONE: it is sent
    bit<16>       truncate_length;  // egress: bytes of the IP packet to send, 0: all
    bit<1>        to_replica;       // egress: rewrite by `encapsulations`
    bit<1>        to_copies;        // egress: one copy a live member
    bit<1>        is_remote;
    next_hop_t    next_hop;
    bit<1>        routed;           // a next hop was chosen
    bit<16>       mtu;
    bit<16>       overhead;
    bit<1>        is_flood;         // egress: no copy to the ingress port
    answer_t      answer;           // egress: what to make of it, sent back where it came from
    punt_reason_t punt;
    bit<1>        stamp;            // egress: overwrite the ToR block
    bit<1>        tag_out;          // egress: send with an 802.1Q tag

    // For the incremental repair of the TCP checksum (RFC 1624): complements of what is overwritten.
    bit<1>        repair_tcp;
    bit<16>       old_checksum;
    tor_block_t   old_block;
    bit<1>        fresh_neighbour;  // checksum of a neighbour advertisement that we wrote
    bit<1>        fresh_too_big4;
    bit<1>        fresh_too_big6_tcp;
    bit<1>        fresh_too_big6_udp;
    bit<32>       icmp6_length;     // upper-layer length for the pseudo header

    event_kind_t  event_kind;
    event_t       event;
}

#endif

// SPDX-License-Identifier: Apache-2.0
// The metadata of one packet, grouped by the part of the program that writes it. The parser
// initialises every field, because hardware does not.
#ifndef RIVULET_METADATA_P4
#define RIVULET_METADATA_P4

#include "headers.p4"
#include <carried.p4>

// Written by the parser.
struct parsed_t {
    bit<16>       frame_length;     // bytes
    bit<16>       l2_length;        // bytes before the IP header
    drop_reason_t reason;           // why the parser stopped, or the IPv4 checksum; NONE: well formed
    ip_address_t  src;
    ip_address_t  dst;
    bit<16>       l4_length;        // bytes behind the IP header
    bit<16>       payload_length;   // bytes behind the TCP header
    bit<1>        is_ip;
    bit<1>        is_fragment;
    bit<1>        has_extension;    // an IPv6 extension header
    quote_t       quote;
    syn_layout_t  syn_layout;
}

// The decision about the packet.
struct decided_t {
    drop_reason_t drop_reason;      // NONE: the packet is forwarded
    outcome_t     outcome;          // of a packet to a service
    port_id_t     egress_port;
    bit<16>       multicast_group;
    bit<1>        resubmit;
    bit<1>        is_service;       // to a service address, and for a replica
    bit<1>        is_request;       // a Rivulet request for a service
    event_kind_t  event_kind;
}

// Limits and keys of the switch, set by `tor`.
struct tor_t {
    bit<1>        ready;
    bit<32>       sketch_key0;
    bit<32>       sketch_key1;
    bit<18>       sketch_mask;
    bit<32>       replay_limit;
    bit<32>       openings_limit;
}

// The kind of the packet's address, and of its source.
struct address_t {
    bit<1>        own;
    bit<1>        service;
    bit<1>        guarded;          // from a port behind which a member of a pool with TRODS is
    bit<1>        of_member;        // plain TCP of bridged.replica, from the address of a service with TRODS
}

// The connection, also when an ICMP error quotes it.
struct flow_t {
    ip_address_t  service_address;
    ip_address_t  client_address;
    bit<16>       service_port;
    bit<16>       client_port;
    bit<32>       hash;             // of the connection, or with client affinity of the client
    bit<12>       client_cell;      // of `plain_meter`
    bit<1>        by_flow;          // choose by flow, not by the policy
    bit<1>        by_block;         // choose by flow and block of a large answer, under any policy
    replica_id_t  handed_on_by;     // the replica that had no socket for it
    bit<1>        holder_named;
    replica_id_t  holder;           // the replica that has the socket, as named by that one
}

// By `services` and `service_config`.
struct service_t {
    bit<1>        hit;
    service_id_t  id;
    policy_t      policy;
    slot_set_t    spray_set;
    slot_t        spray_mask;
    slot_set_t    flow_set;
    slot_t        flow_mask;
    plain_t       plain;
    affinity_t    affinity;         // of packets that go by flow
    bit<32>       slot_key0;        // slots are chosen by hashes under this key
    bit<32>       slot_key1;
}

// By `service_checks`.
struct checks_t {
    check_mode_t  key_mode;
    check_mode_t  time_mode;
    check_mode_t  range_mode;
    check_mode_t  sum_mode;
    check_mode_t  replay_mode;
    check_mode_t  meter_mode;
    bit<1>        drop_unjudged;
    bit<32>       horizon;
}

// By `nonce_keys`.
struct keys_t {
    bit<1>        known;
    bit<1>        usable;
    bit<32>       k0;
    bit<32>       k1;
    bit<32>       k0_prime;
    bit<32>       k1_prime;
    bit<32>       block_key0;       // by `replicas`: of the ToR block for one beyond the rack
    bit<32>       block_key1;
}

// The four words of HalfSipHash, and the result of a message that has ended.
struct hash_t {
    bit<32>       v0;
    bit<32>       v1;
    bit<32>       v2;
    bit<32>       v3;
    bit<32>       result;
}

struct hash_state_t {
    bit<32>       v0;
    bit<32>       v1;
    bit<32>       v2;
    bit<32>       v3;
}

// Set by `cookie_keys`, and derived from these keys.
struct cookie_t {
    bit<32>       current0;
    bit<32>       current1;
    bit<32>       other0;           // of the epoch before, or after
    bit<32>       other1;
    bit<16>       mtu;              // of the replicas, bytes of an IP packet
    hash_state_t  flow;             // the hash's state after the connection's words
    bit<32>       hash;             // of the connection
    bit<32>       distance;         // bytes from the ISN to the acknowledged number
}

struct nonce_t {
    hash_state_t  original;         // after the tag, under K
    hash_state_t  retransmitted;    // after the tag, under K'
    bit<32>       first;            // r of a range's first number
}

// The proof of a request.
struct proof_t {
    bit<1>        has_ranges;
    bit<1>        ranges_unseen;    // more than four
    bit<1>        beyond;           // the number answered lies behind the ranges in sight
    bit<32>       range_end;        // last number of the last range, minus base
    bit<1>        sums_right;
    bit<1>        opening;          // not proved: counted in the sketch of the openings
}

// Results of the checks.
struct verdict_t {
    drop_reason_t failed;           // by the check just made
    check_mode_t  mode;             // of that check
    bit<1>        suspect;          // some check failed in mode COUNT
    drop_reason_t unjudged;         // the check that the switch could not make
}

// By `pools`.
struct pool_t {
    member_set_t  members;
    bit<32>       bound;
    bit<32>       settle;
    bit<16>       copies_group;
    bit<1>        settled;          // this ToR has known the pool for long enough to give verdicts
}

// The live members, and the choice of one of them.
struct choice_t {
    member_set_t  not_readmitted;
    member_set_t  candidates;       // those that may take this packet
    replica_id_t  first;
    replica_id_t  second;
    bit<1>        chosen;
}

// Members of a set within every so many places (rank.p4).
struct sums_t {
    member_set_t  of2;
    member_set_t  of4;
    member_set_t  of8;
    member_set_t  of16;
    member_set_t  of32;
}

struct heartbeat_t {
    bit<1>        ours;             // addressed to this ToR
    bit<1>        admitted;         // on the port and from the source of its replica
    bit<1>        judging;          // a later pass, which checks the next member
    bit<1>        ready;
    bit<1>        third;            // ready, and the third such within the bound
    bit<1>        newest;           // its key is the newest
    bit<32>       key0;
    bit<32>       key1;
    bit<16>       readmitted;       // exclusions after which plain TCP is allowed again
}

struct event_t {
    bit<8>        kind;             // event_kind_t
    bit<8>        reason;           // drop_reason_t
    bit<16>       pool;
    bit<8>        replica;
    bit<32>       sequence;
    bit<48>       clock;
    bit<48>       mac;
    bit<16>       port;
    bit<16>       vlan;
}

// All that egress reads from ingress: one header before each packet, where the architecture carries
// no metadata.
struct bridged_t {
    port_id_t     ingress_port;
    bit<1>        packet_out;       // leaves as it is
    punt_reason_t punt;
    answer_t      answer;           // the answer to make of it, sent to the port that it came from
    fate_t        fate;
    bit<1>        stamp;            // overwrite the ToR block
    bit<1>        routed;           // a next hop was chosen
    bit<1>        to_replica;       // rewrite by `encapsulations`
    bit<1>        to_copies;        // one copy a live member
    bit<1>        is_remote;
    bit<1>        handed_on;        // a replica had no socket for it
    bit<8>        flags;            // of the ToR block, or of the answer to a heartbeat
    bit<1>        time_valid;
    vlan_id_t     vlan;             // of the frame as received; 0 untagged
    vlan_id_t     vlan_out;         // to send with
    pool_id_t     pool;
    replica_id_t  replica;
    member_set_t  alive;            // members that are not excluded
    next_hop_t    next_hop;
    bit<16>       mtu;
    bit<16>       path_mtu;         // of the tunnel, 0: that of the next hop
    bit<16>       overhead;         // bytes of the tunnel's headers
    bit<16>       entropy;          // of the flow, for a tunnel's source port
    mac_address_t tor_mac;
    bit<32>       tor_ipv4;
    bit<128>      tor_ipv6;
    bit<16>       tor_id;
    microseconds_t clock;           // the common clock
    key_epoch_t   key_epoch;
    bit<32>       tag;              // of the ToR block, or of the answer to a heartbeat
    member_set_t  plain;            // members that take plain TCP
    epoch_t       seal_epoch;
    epoch_t       nonce_epoch;
    syn_layout_t  syn_layout;       // of the SYN to answer with a cookie
    bit<32>       isn;
    bit<32>       stamp_value;      // TSval of its answer
    bit<16>       mss;              // announced in it
}

// The ToR block before it is overwritten, complemented (RFC 1624).
struct tor_block_t {
    bit<48>       time;
    bit<16>       tor_id;
    bit<16>       seal_epoch;
    bit<16>       nonce_epoch;
    bit<16>       flags;
    bit<32>       tag;
}

// Written by the egress, for the checksums and the end of the packet.
struct written_t {
    drop_reason_t reason;           // why this copy is dropped, NONE: it is sent
    bit<16>       truncate_length;  // bytes of the IP packet to send, 0: all
    bit<1>        repair_tcp;
    bit<16>       old_checksum;
    tor_block_t   old_block;
    bit<1>        fresh_neighbour;  // checksum of a neighbour advertisement that we wrote
    bit<1>        fresh_heartbeat6; // UDP checksum of an answer to a heartbeat
    bit<1>        fresh_too_big4;
    bit<1>        fresh_too_big6_tcp;
    bit<1>        fresh_too_big6_udp;
    bit<32>       icmp6_length;     // upper-layer length for the pseudo header
    bit<1>        fresh_syn_ack;    // checksum of a SYN-ACK that we wrote; zeros in front of or behind fields add nothing
    ip_address_t  pseudo_src;
    ip_address_t  pseudo_dst;
    bit<16>       tcp_length;
    bit<192>      syn_options;
}

struct metadata_t {
    carried_t     carried;
    parsed_t      parsed;
    decided_t     decided;
    tor_t         tor;
    address_t     address;
    flow_t        flow;
    service_t     service;
    checks_t      checks;
    keys_t        keys;
    cookie_t      cookie;
    hash_t        hash;
    nonce_t       nonce;
    proof_t       proof;
    verdict_t     verdict;
    pool_t        pool;
    choice_t      choice;
    sums_t        sums;
    heartbeat_t   heartbeat;
    event_t       event;
    bridged_t     bridged;
    written_t     written;
}

#endif

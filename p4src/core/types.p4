// SPDX-License-Identifier: Apache-2.0
// Types, constants and enumerations that the whole program shares. A number that P4, Rust and
// Python all use is written here once and reaches the others through the P4Info.
#ifndef RIVULET_TYPES_P4
#define RIVULET_TYPES_P4

typedef bit<12>  vlan_id_t;
typedef bit<48>  mac_address_t;
typedef bit<48>  microseconds_t;
// Every IP address is handled as 128 bits; an IPv4 address as ::ffff:a.b.c.d (RFC 4291 section
// 2.5.5.2), so that one table, one hash and one register serve both families.
typedef bit<128> ip_address_t;
typedef bit<16>  ether_type_t;
typedef bit<8>   ip_protocol_t;

// Service ids, pools and members are as wide as the arrays they index, so that no index is out of
// bounds.
typedef bit<12>  service_id_t;
typedef bit<10>  pool_id_t;
typedef bit<6>   replica_id_t;
// pool ++ replica, that is pool * 64 + replica.
typedef bit<16>  member_id_t;
typedef bit<64>  member_set_t;
typedef bit<16>  slot_set_t;
typedef bit<16>  slot_t;
typedef bit<16>  next_hop_t;
typedef bit<16>  epoch_t;
// Low half of the epoch of a key between a replica and the ToRs.
typedef bit<8>   key_epoch_t;

const ether_type_t ETHER_TYPE_IPV4      = 0x0800;
const ether_type_t ETHER_TYPE_ARP       = 0x0806;
const ether_type_t ETHER_TYPE_VLAN      = 0x8100;
const ether_type_t ETHER_TYPE_QINQ      = 0x88A8;
const ether_type_t ETHER_TYPE_IPV6      = 0x86DD;
const ether_type_t ETHER_TYPE_HEARTBEAT = 0x88B5;  // IEEE 802, local experimental 1

const ip_protocol_t PROTOCOL_HOP_BY_HOP  = 0;
const ip_protocol_t PROTOCOL_ICMP        = 1;
const ip_protocol_t PROTOCOL_IPV4        = 4;
const ip_protocol_t PROTOCOL_TCP         = 6;
const ip_protocol_t PROTOCOL_UDP         = 17;
const ip_protocol_t PROTOCOL_IPV6        = 41;
const ip_protocol_t PROTOCOL_ROUTING     = 43;
const ip_protocol_t PROTOCOL_FRAGMENT    = 44;
const ip_protocol_t PROTOCOL_ESP         = 50;
const ip_protocol_t PROTOCOL_AH          = 51;
const ip_protocol_t PROTOCOL_ICMPV6      = 58;
const ip_protocol_t PROTOCOL_DESTINATION = 60;
const ip_protocol_t PROTOCOL_MOBILITY    = 135;
const ip_protocol_t PROTOCOL_HIP         = 139;
const ip_protocol_t PROTOCOL_SHIM6       = 140;

const bit<16> UDP_PORT_HEARTBEAT = 34997;
const bit<16> UDP_PORT_GUE       = 6080;  // draft-ietf-intarea-gue

const bit<96> IPV4_MAPPED_PREFIX = 0x00000000_00000000_0000ffff;

// Bytes of each header where a length is computed.
const bit<16> IPV4_HEADER_BYTES = 20;
const bit<16> IPV6_HEADER_BYTES = 40;
const bit<16> UDP_HEADER_BYTES  = 8;
const bit<16> GUE_HEADER_BYTES  = 4;
const bit<16> ICMP_HEADER_BYTES = 8;

// TCP flags.
const bit<8> TCP_FIN = 0x01;
const bit<8> TCP_SYN = 0x02;
const bit<8> TCP_RST = 0x04;
const bit<8> TCP_ACK = 0x10;
const bit<8> TCP_URG = 0x20;

// The first word of aligned timestamps: two NOPs, kind 8, length 10 (RFC 7323 appendix A).
const bit<32> STAMPS_LEAD = 0x0101080a;

// The Rivulet option (docs/wire-format.md).
const bit<32> OPTION_LEAD    = 0xfd085256;  // kind 253 (RFC 4727, RFC 6994), length 8, ExID "RV"
const bit<32> OPTION_LEAD_ANY_LENGTH = 0xff00ffff;  // mask: kind and ExID
const bit<4>  OPTION_VERSION = 2;
const bit<4>  DATA_OFFSET_SEGMENT = 7;   // option only
const bit<4>  DATA_OFFSET_SYN     = 12;  // option and one block of 20 bytes

const bit<8> CLASS_SYN     = 0x00;
const bit<8> CLASS_NORMAL  = 0x01;
const bit<8> CLASS_PROBE   = 0x02;
const bit<8> CLASS_TIMEOUT = 0x03;
const bit<8> CLASS_RESTART = 0x04;
const bit<8> CLASS_REKEY   = 0x05;
const bit<8> CLASS_CLOSE   = 0x06;

// Offsets of the switch's part within the TCP payload, bytes.
const bit<16> REQUEST_SYN_BYTES   = 24;
const bit<16> REQUEST_FIXED_BYTES = 44;
const bit<8>  RANGE_COUNT_MAX     = 16;
const bit<8>  RANGES_SEEN         = 4;
const bit<8>  ATTEMPT_MAX         = 3;  // repeats of one request; a SYN and a NORMAL are not repeated

const bit<8> TOR_FLAG_CHECKED    = 0x01;
const bit<8> TOR_FLAG_TIME_VALID = 0x02;

const bit<8> HEARTBEAT_VERSION      = 2;
const bit<8> HEARTBEAT_FLAG_READY   = 0x01;
const bit<8> HEARTBEAT_FLAG_SETTLED = 0x40;  // of an answer: this ToR gives verdicts
const bit<8> HEARTBEAT_FLAG_ANSWER  = 0x80;
const bit<16> HEARTBEAT_BYTES = 20;
const bit<16> HEARTBEAT_ANSWER_BYTES = 36;

// Destination address with which a replica that hands a segment on names the connection's holder:
// 02:52:56:00:00:RR, RR is the holder's index in the pool.
const mac_address_t HOLDER_MAC      = 0x025256000000;
const mac_address_t HOLDER_MAC_MASK = 0xffffffffffc0;

// Replay slots are 2^22 microseconds = 4.19 s, no shorter than any horizon.
const bit<8> REPLAY_SLOT_SHIFT = 22;

// How far the stamp in a continuation may lie ahead of this ToR's clock: the agreement between
// ToRs.
const microseconds_t CLOCK_AGREEMENT = 100000;

// Why a packet was dropped. Numbered once; the counter `drops` has one cell each.
enum bit<8> drop_reason_t {
    NONE                  = 0,
    // The parser: malformed packets.
    TRUNCATED             = 1,   // ends before its headers do
    VLAN_STACKED          = 2,   // a second VLAN tag
    IPV4_HEADER           = 3,   // version, header length or total length
    IPV4_CHECKSUM         = 4,
    IPV6_HEADER           = 5,   // version
    TCP_HEADER            = 6,   // data offset below 5 or past the packet
    UDP_HEADER            = 7,   // length below 8 or past the packet
    OPTION_FORM           = 8,   // our option with a wrong length or data offset, not on a SYN
    OPTION_VERSION        = 9,   // version or flags unknown
    CLASS_UNKNOWN         = 10,
    CLASS_FLAGS           = 11,  // TCP flags that the class does not allow
    REQUEST_LENGTH        = 12,  // segment ends before the fields that the switch reads
    NUMBER_LOW            = 13,  // the option's number is not the continuation's
    ENTRY_COUNT           = 14,  // more than 16 entries, or entries in SYN or RESTART
    ENTRY_KINDS           = 15,  // kinds of absent entries, or a range behind a mark or an excuse
    HEARTBEAT_FORM        = 16,
    NEIGHBOUR_FORM        = 17,  // neighbour solicitation that RFC 4861 section 7.1.1 says to discard
    // A service address.
    FRAGMENT              = 18,
    EXTENSION_HEADER      = 19,
    NOT_SERVED            = 20,  // protocol or port that no service has
    PLAIN_TCP_REFUSED     = 21,  // the service takes Rivulet only
    RESPONSE_CLASS        = 22,  // a response sent to a service
    SERVICE_UNCONFIGURED  = 23,  // a table that the controller must fill has no entry
    // Checks.
    KEY_UNKNOWN           = 24,
    KEY_NOT_USABLE        = 25,
    STALE                 = 26,
    FUTURE                = 27,  // time ahead of the clock by more than the ToRs' agreement
    RANGE_MISSING         = 28,  // the class needs a proof and there is none
    RANGE_ORDER           = 29,  // first > last, or not above the range before
    RANGE_COVER           = 30,  // the packet answered lies outside the last range
    ENTRY_FORM            = 31,  // a mark or an excuse with fields that must be equal or zero
    SUM                   = 32,
    REPLAY                = 33,
    METER_SYN             = 34,
    METER_TIMEOUT         = 35,
    METER_RESTART         = 36,
    // Checks that the switch could not make, dropped where the service is configured so.
    UNJUDGED_RANGES       = 37,  // more than four ranges
    UNJUDGED_REPLAY       = 38,  // the sketch is full
    UNJUDGED_CLOCK        = 39,  // the clock offset is not set (reported, never dropped)
    // Choice of a replica.
    NO_REPLICA            = 40,  // none alive, or none found in 64 passes
    // Forwarding.
    VLAN_REFUSED          = 41,  // tagged for a VLAN that the port does not carry
    NO_ROUTE              = 42,
    NO_NEXT_HOP           = 43,
    TTL_EXPIRED           = 44,
    NO_BRIDGE             = 45,  // unknown unicast or broadcast in a VLAN without a flood group
    SAME_PORT             = 46,  // the bridge's port is the one it came from
    FRAGMENTATION_NEEDED  = 47,  // too big, DF = 0
    TOO_BIG_SILENT        = 48,  // too big, and no answer is allowed (ICMP error, multicast, fragment) or possible
    TOO_BIG_METER         = 49,
    // Control traffic.
    HEARTBEAT_REFUSED     = 50,  // wrong port, source, pool or replica
    ICMP_QUOTE            = 51,  // ICMP error about a packet that no service sent
    ICMP_ERROR_METER      = 52,
    OWN_ADDRESS           = 53,  // for the ToR itself, of a kind that it neither answers nor punts
    MULTICAST_SERVICE     = 54,  // a service packet in a group-addressed frame
    ATTEMPT               = 55,  // above 3, or any in a SYN or a NORMAL
    // Egress, in the counter `egress_drops`.
    NO_NEIGHBOUR          = 56,  // the next hop has no row in `neighbours`
    NO_ENCAPSULATION      = 57,  // the replica has no row in `encapsulations`
    COPY_EXCLUDED         = 58,  // a multicast copy for a member that is not alive
    COPY_SOURCE           = 59,  // a flooded copy for the port the frame came from
    // Meters.
    METER_UNPROVED        = 60,  // TIMEOUT and CLOSE without a proof
    METER_RANGES          = 61,  // more than four ranges
    // Heartbeats on the right port from the right source.
    HEARTBEAT_KEY         = 62,  // no key of that epoch
    HEARTBEAT_TAG         = 63,  // not made with it
    HEARTBEAT_INCARNATION = 64,  // of an older start of the replica, or under an older key than one before
    HEARTBEAT_REPLAY      = 65,  // a sequence number that is not above all before
    // Packets for the ToR itself or the controller, above the meter of their class (own_class_t).
    METER_PUNT            = 66,
    METER_NEIGHBOUR       = 67,
    METER_ARP             = 68,
    METER_SOLICITATION    = 69,
    METER_ECHO            = 70,
    METER_OWN_ICMP        = 71,
    METER_OWN_UDP         = 72,
    METER_OWN_OTHER       = 73,
    // Plain TCP to a stateless service (docs/plain.md).
    COOKIE                = 74,  // acknowledges no cookie of this rack, or a number out of its reach
    HANDSHAKE             = 75,  // bare acknowledgement of a SYN-ACK, which no replica needs
    METER_PLAIN           = 76,  // the client sends more than its share
    METER_UNCOOKIED       = 77,  // above the rate of segments without a cookie: SYNs of rare layouts, adopted connections
    // Plain TCP of a service with TRODS.
    SOURCE_EXCLUDED       = 78   // from the service's address, by a replica that is excluded
}

// The outcome of a packet: the counter `fates`.
enum bit<4> fate_t {
    DROPPED     = 0,   // in ingress; the reason is in `drops`
    RESUBMITTED = 1,   // the heartbeats of its replica were overdue
    SERVICE     = 2,   // to a replica, or to all; see `service_outcomes`
    HEARTBEAT   = 3,   // noted and consumed
    ANSWERED    = 4,   // ARP, neighbour solicitation, echo, too-big
    PUNTED      = 5,   // to the controller
    ROUTED      = 6,
    BRIDGED     = 7,
    FLOODED     = 8
}

// The outcome of a packet to a service: the counter `service_outcomes`, cell service * 16 +
// outcome.
enum bit<4> outcome_t {
    CHECKED       = 0,   // Rivulet request, sums right, mark set
    UNCHECKED     = 1,   // Rivulet request passed on, mark cleared
    OPENING       = 2,   // SYN with our option
    PLAIN_SYN     = 3,
    PLAIN_SEGMENT = 4,
    ICMP_ERROR    = 5,   // steered to a replica, or to all live members
    ANSWERED      = 6,   // ICMP too-big sent instead of forwarding
    DROPPED       = 7,   // the reason is in `drops`
    HANDED_ON     = 8,   // PLAIN_SEGMENT that a replica had no socket for, to the other candidate
    COOKIE        = 9    // PLAIN_SYN that the ToR answered with a cookie
}

// Kinds of the `event` digest.
enum bit<8> event_kind_t {
    NONE           = 0,
    EXCLUDED       = 1,  // the heartbeats of a replica were overdue
    RETURNED       = 2,  // three ready heartbeats within the bound
    READMITTED     = 3,  // plain TCP again
    CHECK_FAILED   = 4,  // reason says which
    UNKNOWN_SOURCE = 5,  // mac, port, vlan
    UNJUDGED       = 6,  // reason says why
    NO_REPLICA     = 7
}

// The reason why the controller gets a packet.
enum bit<8> punt_reason_t {
    NONE        = 0,
    ETHER_TYPE  = 1,  // table `punts`
    NEIGHBOUR   = 2,  // ARP reply or neighbour advertisement to the ToR
    OWN_ADDRESS = 3   // unicast to an address of the ToR
}

// Classes of packets for the ToR itself or the controller; cell of `own_meter`: ingress port * 8 +
// this.
enum bit<3> own_class_t {
    PUNT         = 0,  // to the controller by table `punts`
    NEIGHBOUR    = 1,  // to the controller: ARP replies and neighbour advertisements
    ARP          = 2,  // answered
    SOLICITATION = 3,  // answered
    ECHO         = 4,  // answered
    OWN_ICMP     = 5,  // to the controller: too-big for a tunnel of ours, and other errors
    OWN_UDP      = 6,  // to the controller
    OWN_OTHER    = 7   // to the controller
}

// How a heartbeat compares with the newest in the register.
enum bit<2> newer_t { NEWER = 0, REPLAY = 1, OLDER = 2 }

// Each check is off, counted only, or enforced.
enum bit<2> check_mode_t { OFF = 0, COUNT = 1, ENFORCE = 2 }

// How a service picks a replica for a Rivulet request.
enum bit<2> policy_t { BLOCK = 0, ROUND_ROBIN = 1, RANDOM = 2, LEAST_LOADED = 3 }

// How a service takes plain TCP: not at all, by the replicas' kernels, without state at any
// replica, or by kernels with TRODS.
enum bit<2> plain_t { NONE = 0, KERNEL = 1, STATELESS = 2, TRODS = 3 }

// What is sent to one replica under spraying by flow: a single connection, or all connections of a
// client's address.
enum bit<1> affinity_t { FLOW = 0, CLIENT = 1 }

// How the options of a plain SYN stand, for those that the ToR can answer. N is a NOP, E the end of
// the list.
enum bit<3> syn_layout_t {
    NONE       = 0,  // any other: a replica answers
    LINUX      = 1,  // MSS, SACK permitted, timestamps, N, window scale
    FREEBSD    = 2,  // MSS, N, window scale, SACK permitted, timestamps; Windows with timestamps too
    MACOS      = 3,  // MSS, N, window scale, N, N, timestamps, SACK permitted, E, E
    WINDOWS    = 4,  // MSS, N, window scale, N, N, SACK permitted
    LINUX_BARE = 5   // MSS, N, N, SACK permitted, N, window scale
}

// Cell of `service_meters`: service * 8 + this. TIMEOUT: with a proof; UNPROVED: other classes
// without one.
enum bit<3> service_meter_t { SYN = 0, TIMEOUT = 1, RESTART = 2, UNPROVED = 3, RANGES = 4 }

enum bit<2> entry_kind_t { ORIGINAL = 0, RETRANSMITTED = 1, MARK = 2, EXCUSE = 3 }

// The packet that an ICMP error quotes.
enum bit<2> quote_t {
    NONE    = 0,
    RIVULET = 1,  // our option was parsed
    PLAIN   = 2,  // its place was parsed, and it is not there
    SHORT   = 3   // ports only: could be either
}

// Kinds of answers that the ToR sends.
enum bit<4> answer_t { NONE = 0, ARP = 1, NEIGHBOUR = 2, ECHO4 = 3, ECHO6 = 4, TOO_BIG4 = 5, TOO_BIG6 = 6,
                      HEARTBEAT = 7, COOKIE = 8 }

// Requirements of the parser, one error for each.
error {
    VlanStacked,
    HeartbeatForm,
    Ipv4Header,
    IpTruncated,
    Ipv6Header,
    NeighbourForm,
    UdpHeader,
    TcpHeader,
    OptionForm,
    OptionVersion,
    ClassUnknown,
    ClassFlags,
    RequestLength,
    EntryCount,
    Attempt,
    NumberLow,
    EntryKinds
}

#endif

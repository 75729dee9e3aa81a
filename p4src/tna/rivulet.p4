// SPDX-License-Identifier: Apache-2.0
// The ToR program of `checks: host` for Tofino (TNA). The core's classification, tables and slots
// serve as for v1model; this folder has the parser, the registers, the choice of a live member and
// the rewriting. docs/hardware.md says what is not here yet.
//
// All work is in ingress; egress is bypassed.
#include <core.p4>
#include <tna.p4>

#define CHECKS_AT_HOST
#include "../core/types.p4"
#include "carried.p4"
#include "../core/headers.p4"
#include "../core/metadata.p4"
#include "state.p4"
#include "parser.p4"
#include "../core/control/tor.p4"
#include "../core/control/ports.p4"
#include "../core/control/addresses.p4"
#include "../core/control/service_path.p4"
#include "../core/control/plain_source.p4"
#include "../core/control/replicas.p4"
#include "../core/control/forward.p4"
#include "liveness.p4"

parser IngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                     out ingress_intrinsic_metadata_t intrinsic) {
    PacketParser() packet_parser;

    state start {
        packet.extract(intrinsic);
        meta.carried = {...};
        meta.parsed = {...};
        meta.decided = {...};
        meta.tor = {...};
        meta.address = {...};
        meta.flow = {...};
        meta.service = {...};
        meta.checks = {...};
        meta.keys = {...};
        meta.cookie = {...};
        meta.hash = {...};
        meta.nonce = {...};
        meta.proof = {...};
        meta.verdict = {...};
        meta.pool = {...};
        meta.choice = {...};
        meta.sums = {...};
        meta.heartbeat = {...};
        meta.event = {...};
        meta.bridged = {...};
        meta.written = {...};
        meta.carried.ingress_port = intrinsic.ingress_port;
        meta.carried.now = intrinsic.ingress_mac_tstamp;
        meta.carried.ticks = intrinsic.ingress_mac_tstamp[41:10];
        transition select(intrinsic.resubmit_flag) {
            0: first_pass;
            1: later_pass;
        }
    }

    state first_pass {
        packet.advance(PORT_METADATA_SIZE);
        transition parse_packet;
    }

    state later_pass {
        resubmit_h resubmitted;
        packet.extract(resubmitted);
        meta.carried.silent_pool = resubmitted.silent_pool;
        meta.carried.silent_replica = resubmitted.silent_replica;
        meta.carried.silent = resubmitted.silent;
        meta.carried.resubmits = resubmitted.resubmits;
        meta.carried.pick = resubmitted.pick;
        transition parse_packet;
    }

    state parse_packet {
        packet_parser.apply(packet, hdr, meta);
        transition accept;
    }
}

// Admits heartbeats from the port and Ethernet address of their replica. Their tags are not checked
// here (docs/hardware.md), so all replicas are in the rack, each behind a port of its own.
control Heartbeats(in headers_t hdr, inout metadata_t meta) {
    action admit_heartbeat() {
        meta.heartbeat.ours = 1;
    }

    action refuse_heartbeat(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // Where each replica's heartbeats come from.
    table heartbeat_sources {
        key = {
            hdr.heartbeat.pool        : exact @name("pool");
            hdr.heartbeat.replica     : exact @name("replica");
            meta.carried.ingress_port : exact @name("ingress_port");
            hdr.ethernet.src          : exact @name("mac");
        }
        actions = { admit_heartbeat; @defaultonly refuse_heartbeat; }
        const default_action = refuse_heartbeat(drop_reason_t.HEARTBEAT_REFUSED);
        size = 8192;
    }

    apply {
        heartbeat_sources.apply();
        if (hdr.heartbeat.version != HEARTBEAT_VERSION || (hdr.heartbeat.flags & ~HEARTBEAT_FLAG_READY) != 0) {
            meta.decided.drop_reason = drop_reason_t.HEARTBEAT_FORM;
        }
        meta.bridged.pool = hdr.heartbeat.pool[9:0];
        meta.bridged.replica = hdr.heartbeat.replica[5:0];
        meta.heartbeat.ready = hdr.heartbeat.flags[0:0];
    }
}

// MAC addresses of the next hop, hop limit, ToR block or answer to a heartbeat.
control Rewrite(inout headers_t hdr, inout metadata_t meta) {
    action set_neighbour(mac_address_t src_mac, mac_address_t dst_mac, vlan_id_t vlan) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        meta.bridged.vlan_out = vlan;
    }

    action no_neighbour(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // Addresses of each next hop.
    table neighbours {
        key = { meta.bridged.next_hop : exact @name("next_hop"); }
        actions = { set_neighbour; @defaultonly no_neighbour; }
        const default_action = no_neighbour(drop_reason_t.NO_NEIGHBOUR);
        size = 16384;
    }

    apply {
        if (meta.heartbeat.ours == 1) {
            hdr.ethernet.dst = hdr.ethernet.src;
            hdr.ethernet.src = meta.bridged.tor_mac;
            hdr.heartbeat.flags = HEARTBEAT_FLAG_ANSWER | HEARTBEAT_FLAG_SETTLED;
            hdr.heartbeat.load = meta.bridged.tor_id;
            hdr.live_sets.setValid();
            hdr.live_sets.alive = meta.bridged.alive;
            hdr.live_sets.plain = meta.bridged.alive;
        } else if (meta.bridged.routed == 1) {
            neighbours.apply();
            if (hdr.ipv4.isValid()) {
                hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
            } else {
                hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
            }
            if (hdr.tor_block.isValid() && meta.decided.is_request == 1) {
                // Neither time nor mark: the replica judges by its own clock.
                hdr.tor_block.time = 0;
                hdr.tor_block.tor_id = meta.bridged.tor_id;
                hdr.tor_block.seal_epoch = meta.bridged.seal_epoch;
                hdr.tor_block.nonce_epoch = meta.bridged.nonce_epoch;
                hdr.tor_block.flags = 0;
                hdr.tor_block.key_epoch = 0;
                hdr.tor_block.tag = 0;
                meta.written.repair_tcp = 1;
            }
        }
    }
}

control Ingress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
                inout ingress_intrinsic_metadata_for_tm_t for_manager) {
    Tor() tor;
    Ports() ports;
    Addresses() addresses;
    Admission() admission;
    PlainSource() plain_source;
    Heartbeats() heartbeats;
    Liveness() liveness;
    Replicas() replicas;
    Forward() forward;
    NextHops() next_hops;
    Rewrite() rewrite;
    DropCounter() drop_counter;
    FateCounter() fate_counter;
    OutcomeCounter() outcome_counter;

    apply {
        meta.bridged.fate = fate_t.BRIDGED;
        meta.decided.egress_port = DROP_PORT;
        if (hdr.ipv4.isValid()) {
            meta.parsed.src = IPV4_MAPPED_PREFIX ++ hdr.ipv4.src;
            meta.parsed.dst = IPV4_MAPPED_PREFIX ++ hdr.ipv4.dst;
            if (hdr.ipv4.more_fragments == 1 || hdr.ipv4.fragment_offset != 0) {
                meta.parsed.is_fragment = 1;
            }
        } else if (hdr.ipv6.isValid()) {
            meta.parsed.src = hdr.ipv6.src;
            meta.parsed.dst = hdr.ipv6.dst;
        }
        meta.flow.client_address = meta.parsed.src;
        meta.flow.service_address = meta.parsed.dst;
        meta.flow.client_port = hdr.tcp.src_port;
        meta.flow.service_port = hdr.tcp.dst_port;
        tor.apply(meta);
        if (meta.parsed.reason != drop_reason_t.NONE) {
            meta.decided.drop_reason = meta.parsed.reason;
        } else if (meta.tor.ready == 0) {
            meta.decided.drop_reason = drop_reason_t.SERVICE_UNCONFIGURED;
        } else {
            ports.apply(hdr, meta);
        }
        if (meta.decided.drop_reason == drop_reason_t.NONE) {
            addresses.apply(hdr, meta);
            if (hdr.heartbeat.isValid()) {
                heartbeats.apply(hdr, meta);
            } else if (meta.bridged.punt == punt_reason_t.NONE && meta.address.service == 1) {
                meta.decided.is_service = 1;
                admission.apply(hdr, meta);
            } else if (meta.bridged.punt == punt_reason_t.NONE) {
                if (meta.address.guarded == 1) {
                    plain_source.apply(hdr, meta);
                }
                forward.apply(hdr, meta);
            }
        }
        if (meta.decided.drop_reason == drop_reason_t.NONE
            && (meta.heartbeat.ours == 1 || meta.decided.is_service == 1 || meta.address.of_member == 1)) {
            liveness.apply(hdr, meta);
        }
        if (meta.decided.drop_reason == drop_reason_t.NONE && meta.decided.resubmit == 0) {
            if (meta.heartbeat.ours == 1) {
                meta.decided.egress_port = meta.carried.ingress_port;
                meta.bridged.fate = fate_t.HEARTBEAT;
            } else if (meta.bridged.to_copies == 1) {
                meta.decided.multicast_group = meta.pool.copies_group;
            } else if (meta.decided.is_service == 1) {
                replicas.apply(meta);
                meta.bridged.fate = fate_t.SERVICE;
            }
            if (meta.bridged.routed == 1) {
                next_hops.apply(hdr, meta);
            }
            rewrite.apply(hdr, meta);
        }

        if (meta.decided.resubmit == 1) {
            meta.bridged.fate = fate_t.RESUBMITTED;
            for_deparser.resubmit_type = 1;
        } else if (meta.decided.drop_reason != drop_reason_t.NONE) {
            meta.bridged.fate = fate_t.DROPPED;
            meta.decided.outcome = outcome_t.DROPPED;
            drop_counter.apply(meta.decided.drop_reason);
            for_deparser.drop_ctl = 1;
        } else if (meta.bridged.punt != punt_reason_t.NONE) {
            meta.bridged.fate = fate_t.PUNTED;
            meta.decided.egress_port = CPU_PORT;
        }
        fate_counter.apply(meta.bridged.fate);
        if (meta.service.hit == 1 && meta.decided.resubmit == 0) {
            outcome_counter.apply(meta.service.id, meta.decided.outcome);
        }
        for_manager.ucast_egress_port = meta.decided.egress_port;
        for_manager.mcast_grp_a = meta.decided.multicast_group;
        for_manager.bypass_egress = 1;
    }
}

control IngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() ipv4_checksum;
    Checksum() tcp_checksum;
    Resubmit(1) resubmit;

    apply {
        if (for_deparser.resubmit_type == 1) {
            resubmit.emit<resubmit_h>({ 0, meta.carried.silent_pool, 0, meta.carried.silent_replica,
                                        meta.carried.silent, meta.carried.resubmits + 1, meta.carried.pick });
        }
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = ipv4_checksum.update({
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification,
                hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
                hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst });
        }
        if (meta.written.repair_tcp == 1) {
            hdr.tcp.checksum = tcp_checksum.update({ hdr.tor_block, meta.written.old_checksum });
        }
        packet.emit(hdr.ethernet);
        packet.emit(hdr.vlan);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv6);
        packet.emit(hdr.tcp);
        packet.emit(hdr.stamps);
        packet.emit(hdr.option);
        packet.emit(hdr.syn_options);
        packet.emit(hdr.tor_block);
        packet.emit(hdr.proof);
        packet.emit(hdr.continuation);
        packet.emit(hdr.heartbeat);
        packet.emit(hdr.live_sets);
        packet.emit(hdr.heartbeat_tag);
    }
}

// Egress is bypassed.
struct no_headers_t { }
struct no_metadata_t { }

parser EgressParser(packet_in packet, out no_headers_t hdr, out no_metadata_t meta,
                    out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        transition accept;
    }
}

control Egress(inout no_headers_t hdr, inout no_metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
               in egress_intrinsic_metadata_from_parser_t from_parser,
               inout egress_intrinsic_metadata_for_deparser_t for_deparser,
               inout egress_intrinsic_metadata_for_output_port_t for_port) {
    apply { }
}

control EgressDeparser(packet_out packet, inout no_headers_t hdr, in no_metadata_t meta,
                       in egress_intrinsic_metadata_for_deparser_t for_deparser) {
    apply { }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;

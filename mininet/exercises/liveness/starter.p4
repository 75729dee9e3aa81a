// SPDX-License-Identifier: Apache-2.0
// A switch that notices by itself that a replica is dead: replicas send heartbeats, and a request whose
// replica has been quiet for longer than a bound goes to the next one.
#include <core.p4>
#include <v1model.p4>

struct metadata_t {
    bit<8>  replicas;
    bit<48> bound;
    bit<8>  replica;
}

#include "../include/base.p4"

control ExerciseIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // For each replica the time of its last heartbeat, microseconds; 0: none yet.
    @noWarn("unused")
    register<bit<48>>(16) last_heartbeat;

    action drop() {
        mark_to_drop(standard);
    }

    action forward(bit<9> port) {
        standard.egress_spec = port;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }

    action service(bit<8> replicas, bit<48> bound) {
        meta.replicas = replicas;
        meta.bound = bound;
    }

    // A destination is behind one port, or a service of several replicas.
    table routes {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward; service; drop; }
        default_action = drop();
        size = 64;
    }

    table replicas {
        key = { meta.replica: exact; }
        actions = { forward; drop; }
        default_action = drop();
        size = 16;
    }

    apply {
        if (hdr.heartbeat.isValid()) {
            // TODO 1: store the time (standard.ingress_global_timestamp) in last_heartbeat.
            drop();
        } else if (hdr.ipv4.isValid() && hdr.ipv4.ttl > 1) {
            switch (routes.apply().action_run) {
                service: {
                    hash(meta.replica, HashAlgorithm.crc16, 8w0,
                         { hdr.ipv4.src, hdr.ipv4.dst, hdr.tcp.src, hdr.tcp.dst }, meta.replicas);
                    // TODO 2: if the last heartbeat of meta.replica is more than meta.bound ago, or there was none,
                    // choose the next replica (after the last one comes 0). If that one is dead too, drop.
                    replicas.apply();
                }
            }
        } else {
            drop();
        }
    }
}

V1Switch(
    BaseParser(), BaseVerify(), ExerciseIngress(), BaseEgress(), BaseChecksum(), BaseDeparser()
) main;

// SPDX-License-Identifier: Apache-2.0
// A switch that balances over several paths: by flow, or packet by packet.
#include <core.p4>
#include <v1model.p4>

struct metadata_t {
    bit<16> paths;
    bit<16> path;
}

#include "../include/base.p4"

control ExerciseIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<16>>(1) next_path;

    action drop() {
        mark_to_drop(standard);
    }

    action forward(bit<9> port) {
        standard.egress_spec = port;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }

    action balance(bit<16> paths) {
        meta.paths = paths;
    }

    // A destination is behind one port, or behind several paths.
    table routes {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward; balance; drop; }
        default_action = drop();
        size = 64;
    }

    // All packets of a flow take one path.
    action by_flow() {
        hash(meta.path, HashAlgorithm.crc32, 16w0,
             { hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol, hdr.tcp.src, hdr.tcp.dst }, meta.paths);
    }

    // The paths take turns, whatever the flow.
    action spray() {
        next_path.read(meta.path, 0);
        meta.path = meta.path < meta.paths ? meta.path : 0;
        next_path.write(0, meta.path + 1);
    }

    table policy {
        actions = { by_flow; spray; }
        default_action = by_flow();
    }

    table paths {
        key = { meta.path: exact; }
        actions = { forward; drop; }
        default_action = drop();
        size = 16;
    }

    apply {
        if (hdr.ipv4.isValid() && hdr.ipv4.ttl > 1) {
            switch (routes.apply().action_run) {
                balance: {
                    policy.apply();
                    paths.apply();
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

// SPDX-License-Identifier: Apache-2.0
// (address, port) to a service, and what the service wants.
#ifndef RIVULET_SERVICES_P4
#define RIVULET_SERVICES_P4

#include "../metadata.p4"

const bit<32> SERVICE_TABLE_SIZE = 8192;
const bit<32> SERVICE_COUNT      = 4096;

control Services(in headers_t hdr, inout metadata_t meta) {
    action set_service(service_id_t service) {
        meta.service = service;
        meta.service_hit = 1;
    }

    action no_service() {
        meta.service_hit = 0;
    }

    table services {
        key = {
            meta.service_address : exact @name("address");
            meta.service_port    : exact @name("port");
        }
        actions = { set_service; no_service; }
        const default_action = no_service;
        size = SERVICE_TABLE_SIZE;
    }

    action configure(pool_id_t pool, policy_t policy, slot_set_t spray_set, slot_t spray_mask, slot_set_t flow_set,
                     slot_t flow_mask, bit<1> plain_tcp) {
        meta.pool = pool;
        meta.policy = policy;
        meta.spray_set = spray_set;
        meta.spray_mask = spray_mask;
        meta.flow_set = flow_set;
        meta.flow_mask = flow_mask;
        meta.plain_tcp = plain_tcp;
    }

    action not_configured() {
        meta.drop_reason = drop_reason_t.SERVICE_UNCONFIGURED;
    }

    // Where its packets go. Masks are the number of slots of a set, a power of two, minus one.
    table service_config {
        key = { meta.service : exact @name("service"); }
        actions = { configure; not_configured; }
        const default_action = not_configured;
        size = SERVICE_COUNT;
    }

    action set_checks(check_mode_t key_mode, check_mode_t time_mode, check_mode_t range_mode, check_mode_t sum_mode,
                      check_mode_t replay_mode, check_mode_t meter_mode, bit<1> drop_unjudged, bit<32> horizon,
                      epoch_t seal_epoch, epoch_t nonce_epoch) {
        meta.key_mode = key_mode;
        meta.time_mode = time_mode;
        meta.range_mode = range_mode;
        meta.sum_mode = sum_mode;
        meta.replay_mode = replay_mode;
        meta.meter_mode = meter_mode;
        meta.drop_unjudged = drop_unjudged;
        meta.horizon = horizon;
        meta.seal_epoch = seal_epoch;
        meta.nonce_epoch = nonce_epoch;
    }

    action no_checks() {
        meta.drop_reason = drop_reason_t.SERVICE_UNCONFIGURED;
    }

    // What its requests must stand, and the newest usable epochs, stamped into them.
    table service_checks {
        key = { meta.service : exact @name("service"); }
        actions = { set_checks; no_checks; }
        const default_action = no_checks;
        size = SERVICE_COUNT;
    }

    apply {
        // An ICMP error is about the connection that it quotes, our response: its source is the service.
        if (meta.quote != quote_t.NONE) {
            meta.service_port = hdr.quote_l4.src_port;
            meta.client_port = hdr.quote_l4.dst_port;
            if (hdr.quoted_ipv4.isValid()) {
                meta.service_address = IPV4_MAPPED_PREFIX ++ hdr.quoted_ipv4.src;
                meta.client_address = IPV4_MAPPED_PREFIX ++ hdr.quoted_ipv4.dst;
            } else {
                meta.service_address = hdr.quoted_ipv6.src;
                meta.client_address = hdr.quoted_ipv6.dst;
            }
        } else {
            meta.service_port = hdr.tcp.dst_port;
            meta.client_port = hdr.tcp.src_port;
            meta.service_address = meta.dst;
            meta.client_address = meta.src;
        }
        services.apply();
        if (meta.service_hit == 1) {
            service_config.apply();
            service_checks.apply();
        }
    }
}

#endif

// SPDX-License-Identifier: Apache-2.0
// Maps (address, port) to a service and its configuration.
#ifndef RIVULET_SERVICES_P4
#define RIVULET_SERVICES_P4

#include "../metadata.p4"

const bit<32> SERVICE_TABLE_SIZE = 8192;
const bit<32> SERVICE_COUNT      = 4096;

control Services(in headers_t hdr, inout metadata_t meta) {
    @id(0x01000010)
    action set_service(@refers_to(service_config, service) service_id_t service) {
        meta.service.id = service;
        meta.service.hit = 1;
    }

    @id(0x01000011)
    action no_service() {
        meta.service.hit = 0;
    }

    // The service of an address and port.
    @id(0x02000008)
    table services {
        key = {
            meta.flow.service_address : exact @name("address");
            meta.flow.service_port    : exact @name("port");
        }
        actions = { set_service; no_service; }
        const default_action = no_service;
        size = SERVICE_TABLE_SIZE;
    }

    @id(0x01000012)
    action configure(@refers_to(pools, pool) pool_id_t pool, policy_t policy,
                     @refers_to(slots, slot_set) slot_set_t spray_set, slot_t spray_mask,
                     @refers_to(slots, slot_set) slot_set_t flow_set, slot_t flow_mask, plain_t plain,
                     @secret bit<32> slot_key0, @secret bit<32> slot_key1, affinity_t affinity) {
        meta.bridged.pool = pool;
        meta.service.policy = policy;
        meta.service.spray_set = spray_set;
        meta.service.spray_mask = spray_mask;
        meta.service.flow_set = flow_set;
        meta.service.flow_mask = flow_mask;
        meta.service.plain = plain;
        meta.service.slot_key0 = slot_key0;
        meta.service.slot_key1 = slot_key1;
        meta.service.affinity = affinity;
    }

    @id(0x01000013)
    action not_configured(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // Pool and slots of each service. Masks are the number of slots of a set, a power of two, minus
    // one.
    @id(0x02000009)
    table service_config {
        key = { meta.service.id : exact @name("service"); }
        actions = { configure; @defaultonly not_configured; }
        const default_action = not_configured(drop_reason_t.SERVICE_UNCONFIGURED);
        size = SERVICE_COUNT;
    }

    @id(0x01000014)
    action set_checks(check_mode_t key_mode, check_mode_t time_mode, check_mode_t range_mode, check_mode_t sum_mode,
                      check_mode_t replay_mode, check_mode_t meter_mode, bit<1> drop_unjudged, bit<32> horizon,
                      epoch_t seal_epoch, epoch_t nonce_epoch) {
        meta.checks.key_mode = key_mode;
        meta.checks.time_mode = time_mode;
        meta.checks.range_mode = range_mode;
        meta.checks.sum_mode = sum_mode;
        meta.checks.replay_mode = replay_mode;
        meta.checks.meter_mode = meter_mode;
        meta.checks.drop_unjudged = drop_unjudged;
        meta.checks.horizon = horizon;
        meta.bridged.seal_epoch = seal_epoch;
        meta.bridged.nonce_epoch = nonce_epoch;
    }

    @id(0x01000015)
    action no_checks(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // The checks of its requests, and the newest usable epochs, which are stamped into them.
    @id(0x0200000a)
    table service_checks {
        key = { meta.service.id : exact @name("service") @refers_to(service_config, service); }
        actions = { set_checks; @defaultonly no_checks; }
        const default_action = no_checks(drop_reason_t.SERVICE_UNCONFIGURED);
        size = SERVICE_COUNT;
    }

    apply {
        // An ICMP error is about the connection that it quotes, our response: its source is the
        // service.
        if (meta.parsed.quote != quote_t.NONE) {
            meta.flow.service_port = hdr.quote_l4.src_port;
            meta.flow.client_port = hdr.quote_l4.dst_port;
            if (hdr.quoted_ipv4.isValid()) {
                meta.flow.service_address = IPV4_MAPPED_PREFIX ++ hdr.quoted_ipv4.src;
                meta.flow.client_address = IPV4_MAPPED_PREFIX ++ hdr.quoted_ipv4.dst;
            } else {
                meta.flow.service_address = hdr.quoted_ipv6.src;
                meta.flow.client_address = hdr.quoted_ipv6.dst;
            }
        } else {
            meta.flow.service_port = hdr.tcp.dst_port;
            meta.flow.client_port = hdr.tcp.src_port;
            meta.flow.service_address = meta.parsed.dst;
            meta.flow.client_address = meta.parsed.src;
        }
        services.apply();
        if (meta.service.hit == 1) {
            service_config.apply();
            service_checks.apply();
        }
    }
}

#endif

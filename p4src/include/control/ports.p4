// SPDX-License-Identifier: Apache-2.0
// The VLAN a frame came in, what the controller wants to see, and sources that the bridge does not know.
#ifndef RIVULET_PORTS_P4
#define RIVULET_PORTS_P4

#include "../metadata.p4"

const bit<32> PORT_TABLE_SIZE   = 512;
const bit<32> PUNT_TABLE_SIZE   = 64;
const bit<32> SOURCE_TABLE_SIZE = 16384;

control Ports(in headers_t hdr, inout metadata_t meta) {
    action set_port(vlan_id_t pvid) {
        meta.vlan = pvid;
    }

    // VLAN of untagged and priority-tagged frames.
    table ports {
        key = { meta.ingress_port : exact @name("ingress_port"); }
        actions = { set_port; }
        const default_action = set_port(0);
        size = PORT_TABLE_SIZE;
    }

    action punt(punt_reason_t reason) {
        meta.punt = reason;
    }

    action pass() { }

    // Frames that are for the controller alone, such as LLDP.
    table punts {
        key = { hdr.ethernet.ether_type : exact @name("ether_type"); }
        actions = { punt; pass; }
        const default_action = pass;
        size = PUNT_TABLE_SIZE;
    }

    action source_known() { }

    action source_unknown() {
        meta.event_kind = event_kind_t.UNKNOWN_SOURCE;
        meta.event.mac = hdr.ethernet.src;
        meta.event.port = (bit<16>)meta.ingress_port;
        meta.event.vlan = (bit<16>)meta.vlan;
    }

    // Sources that the bridge has an entry for; another one is told to the controller.
    table known_sources {
        key = {
            meta.vlan         : exact @name("vlan");
            hdr.ethernet.src  : exact @name("mac");
            meta.ingress_port : exact @name("ingress_port");
        }
        actions = { source_known; source_unknown; }
        const default_action = source_unknown;
        size = SOURCE_TABLE_SIZE;
    }

    apply {
        ports.apply();
        if (hdr.vlan.isValid() && hdr.vlan.vid != 0) {
            meta.vlan = hdr.vlan.vid;
        }
        known_sources.apply();
        punts.apply();
    }
}

#endif

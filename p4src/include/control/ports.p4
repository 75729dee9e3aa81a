// SPDX-License-Identifier: Apache-2.0
// The VLAN a frame came in and whether its port carries it, what the controller wants to see, and sources that the bridge does not know.
#ifndef RIVULET_PORTS_P4
#define RIVULET_PORTS_P4

#include "../metadata.p4"

const bit<32> PORT_TABLE_SIZE   = 512;
const bit<32> MEMBER_TABLE_SIZE = 4096;
const bit<32> PUNT_TABLE_SIZE   = 64;
const bit<32> SOURCE_TABLE_SIZE = 16384;

control Ports(in headers_t hdr, inout metadata_t meta) {
    bit<1> filter;

    action set_port(vlan_id_t pvid) {
        meta.vlan = pvid;
    }

    action set_filtered_port(vlan_id_t pvid) {
        meta.vlan = pvid;
        filter = 1;
    }

    // VLAN of untagged and priority-tagged frames. A filtered port takes no frame tagged for another VLAN than those in
    // vlan_members (IEEE 802.1Q-2018 section 8.6.2).
    table ports {
        key = { meta.ingress_port : exact @name("ingress_port"); }
        actions = { set_port; set_filtered_port; }
        const default_action = set_port(0);
        size = PORT_TABLE_SIZE;
    }

    action member() { }

    action not_member() {
        meta.drop_reason = drop_reason_t.VLAN_REFUSED;
    }

    // VLANs that a filtered port takes tagged.
    table vlan_members {
        key = {
            meta.ingress_port : exact @name("ingress_port");
            hdr.vlan.vid      : exact @name("vlan");
        }
        actions = { member; not_member; }
        const default_action = not_member;
        size = MEMBER_TABLE_SIZE;
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
        filter = 0;
        ports.apply();
        if (hdr.vlan.isValid() && hdr.vlan.vid != 0) {
            if (filter == 1 && hdr.vlan.vid != meta.vlan) {
                vlan_members.apply();
            }
            meta.vlan = hdr.vlan.vid;
        }
        if (meta.drop_reason == drop_reason_t.NONE) {
            known_sources.apply();
            punts.apply();
        }
    }
}

#endif

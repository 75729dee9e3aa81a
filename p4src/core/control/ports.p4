// SPDX-License-Identifier: Apache-2.0
// The VLAN of a frame and whether its port carries it, the frames that go to the controller, and
// sources that the bridge has no entry for.
#ifndef RIVULET_PORTS_P4
#define RIVULET_PORTS_P4

#include "../metadata.p4"

const bit<32> PORT_TABLE_SIZE   = 512;
const bit<32> MEMBER_TABLE_SIZE = 4096;
const bit<32> PUNT_TABLE_SIZE   = 64;
const bit<32> SOURCE_TABLE_SIZE = 16384;

control Ports(in headers_t hdr, inout metadata_t meta) {
    bit<1> filter;

    // guarded: plain TCP that comes in here is looked up in plain_sources.
    @id(0x01000003)
    action set_port(vlan_id_t pvid, bit<1> guarded) {
        meta.bridged.vlan = pvid;
        meta.address.guarded = guarded;
    }

    @id(0x01000004)
    action set_filtered_port(vlan_id_t pvid, bit<1> guarded) {
        meta.bridged.vlan = pvid;
        meta.address.guarded = guarded;
        filter = 1;
    }

    // VLAN of untagged and priority-tagged frames. A filtered port takes no frame tagged for
    // another VLAN than those in vlan_members (IEEE 802.1Q-2018 section 8.6.2).
    @id(0x02000002)
    table ports {
        key = { meta.carried.ingress_port : exact @name("ingress_port"); }
        actions = { set_port; set_filtered_port; }
        const default_action = set_port(0, 0);
        size = PORT_TABLE_SIZE;
    }

    @id(0x01000005)
    action member() { }

    @id(0x01000006)
    action not_member(drop_reason_t reason) {
        meta.decided.drop_reason = reason;
    }

    // VLANs that a filtered port takes tagged.
    @id(0x02000003)
    table vlan_members {
        key = {
            meta.carried.ingress_port : exact @name("ingress_port");
            hdr.vlan.vid      : exact @name("vlan");
        }
        actions = { member; @defaultonly not_member; }
        const default_action = not_member(drop_reason_t.VLAN_REFUSED);
        size = MEMBER_TABLE_SIZE;
    }

    @id(0x01000007)
    action punt(punt_reason_t reason) {
        meta.bridged.punt = reason;
    }

    @id(0x01000008)
    action pass() { }

    // Frames that are for the controller alone, such as LLDP.
    @id(0x02000004)
    table punts {
        key = { hdr.ethernet.ether_type : exact @name("ether_type"); }
        actions = { punt; pass; }
        const default_action = pass;
        size = PUNT_TABLE_SIZE;
    }

    @id(0x01000009)
    action source_known() { }

    @id(0x0100000a)
    action source_unknown(event_kind_t kind) {
        meta.decided.event_kind = kind;
        meta.event.mac = hdr.ethernet.src;
        meta.event.port = (bit<16>)meta.carried.ingress_port;
        meta.event.vlan = (bit<16>)meta.bridged.vlan;
    }

    // Sources that the bridge has an entry for; the controller gets an event for any other.
    @id(0x02000005)
    table known_sources {
        key = {
            meta.bridged.vlan         : exact @name("vlan");
            hdr.ethernet.src  : exact @name("mac");
            meta.carried.ingress_port : exact @name("ingress_port");
        }
        actions = { source_known; @defaultonly source_unknown; }
        const default_action = source_unknown(event_kind_t.UNKNOWN_SOURCE);
        size = SOURCE_TABLE_SIZE;
    }

    apply {
        filter = 0;
        ports.apply();
        if (hdr.vlan.isValid() && hdr.vlan.vid != 0) {
            if (filter == 1 && hdr.vlan.vid != meta.bridged.vlan) {
                vlan_members.apply();
            }
            meta.bridged.vlan = hdr.vlan.vid;
        }
        if (meta.decided.drop_reason == drop_reason_t.NONE) {
            known_sources.apply();
            punts.apply();
        }
    }
}

#endif

// SPDX-License-Identifier: Apache-2.0
// Meters packets for the ToR itself or the controller by port and class, so that a flood of one
// class does not displace another: answers of neighbours arrive during a flood of UDP.
#ifndef RIVULET_OWN_METERS_P4
#define RIVULET_OWN_METERS_P4

#include "../metadata.p4"
#include <state.p4>
#include "answers.p4"

// Numbers of punt_reason_t and answer_t, as keys take plain bits.
const bit<8> PUNT_ETHER_TYPE   = 1;
const bit<8> PUNT_NEIGHBOUR    = 2;
const bit<8> PUNT_OWN_ADDRESS  = 3;
const bit<8> ANSWER_ARP        = 1;
const bit<8> ANSWER_NEIGHBOUR  = 2;
const bit<8> ANSWER_ECHO4      = 3;
const bit<8> ANSWER_ECHO6      = 4;

// Sets decided.drop_reason for packets above the rate.
control OwnMetering(in headers_t hdr, inout metadata_t meta) {
    OwnMeter() own_meter;
    own_class_t   cell;
    drop_reason_t above_rate;
    bit<8>        punt;
    bit<8>        answer;
    bit<1>        advertisement;
    bit<1>        icmp;
    bit<1>        udp;
    bit<1>        above;

    @id(0x01000037)
    action own_as(own_class_t kind, drop_reason_t reason) {
        cell = kind;
        above_rate = reason;
    }

    // The meter of each class.
    @id(0x0200001a)
    table own_classes {
        key = {
            punt          : ternary @name("punt");
            answer        : ternary @name("answer");
            advertisement : ternary @name("advertisement");
            icmp          : ternary @name("icmp");
            udp           : ternary @name("udp");
        }
        actions = { own_as; }
        const default_action = own_as(own_class_t.OWN_OTHER, drop_reason_t.METER_OWN_OTHER);
        const entries = {
            (PUNT_ETHER_TYPE, _, _, _, _) : own_as(own_class_t.PUNT, drop_reason_t.METER_PUNT);
            (PUNT_NEIGHBOUR, _, _, _, _)  : own_as(own_class_t.NEIGHBOUR, drop_reason_t.METER_NEIGHBOUR);
            (PUNT_OWN_ADDRESS, _, 1, _, _): own_as(own_class_t.NEIGHBOUR, drop_reason_t.METER_NEIGHBOUR);
            (_, ANSWER_ARP, _, _, _)             : own_as(own_class_t.ARP, drop_reason_t.METER_ARP);
            (_, ANSWER_NEIGHBOUR, _, _, _)       : own_as(own_class_t.SOLICITATION, drop_reason_t.METER_SOLICITATION);
            (_, ANSWER_ECHO4, _, _, _)           : own_as(own_class_t.ECHO, drop_reason_t.METER_ECHO);
            (_, ANSWER_ECHO6, _, _, _)           : own_as(own_class_t.ECHO, drop_reason_t.METER_ECHO);
            (_, _, _, 1, _)                                : own_as(own_class_t.OWN_ICMP, drop_reason_t.METER_OWN_ICMP);
            (_, _, _, _, 1)                                : own_as(own_class_t.OWN_UDP, drop_reason_t.METER_OWN_UDP);
        }
    }

    apply {
        punt = (bit<8>)meta.bridged.punt;
        answer = 4w0 ++ (bit<4>)meta.bridged.answer;
        advertisement = 0;
        icmp = 0;
        udp = 0;
        if (hdr.icmp.isValid()) {
            icmp = 1;
            if (hdr.ipv6.isValid() && hdr.icmp.type == ICMPV6_NEIGHBOUR_ADVERT) {
                advertisement = 1;
            }
        }
        if (hdr.udp.isValid()) {
            udp = 1;
        }
        own_classes.apply();
        own_meter.apply(meta.carried.ingress_port, cell, above);
        if (above == 1) {
            meta.decided.drop_reason = above_rate;
        }
    }
}

#endif

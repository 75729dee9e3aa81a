// SPDX-License-Identifier: Apache-2.0
// Which slot a packet falls in, and which of the members that may take it.
#ifndef RIVULET_PICK_P4
#define RIVULET_PICK_P4

#include "../metadata.p4"
#include "../v1model/state.p4"

const bit<32> SLOT_TABLE_SIZE = 65536;

// The policy's number and the two candidates of its slot, in one lookup.
control Slots(in headers_t hdr, inout metadata_t meta) {
    FlowHash() flow_hash;
    BlockHash() block_hash;
    RandomNumber() random_number;
    Turn() turn;

    action set_slot(replica_id_t first, replica_id_t second) {
        meta.first = first;
        meta.second = second;
    }

    action no_slot() {
        meta.drop_reason = drop_reason_t.SERVICE_UNCONFIGURED;
    }

    table slots {
        key = {
            meta.slot_set : exact @name("slot_set");
            meta.slot     : exact @name("slot");
        }
        actions = { set_slot; no_slot; }
        const default_action = no_slot;
        size = SLOT_TABLE_SIZE;
    }

    apply {
        // A resubmitted packet keeps its number.
        if (meta.resubmits == 0) {
            if (meta.by_flow == 1) {
                flow_hash.apply(meta.client_address, meta.service_address, meta.client_port, meta.service_port,
                                meta.pick);
            } else if (meta.policy == policy_t.BLOCK) {
                block_hash.apply(hdr.continuation.tag, hdr.continuation.number, hdr.proof.attempt, meta.pick);
            } else if (meta.policy == policy_t.ROUND_ROBIN) {
                turn.apply(meta.service, meta.pick);
            } else {
                random_number.apply(meta.pick);
            }
        }
        if (meta.by_flow == 1) {
            meta.slot_set = meta.flow_set;
            meta.slot = meta.pick[15:0] & meta.flow_mask;
        } else {
            meta.slot_set = meta.spray_set;
            meta.slot = meta.pick[15:0] & meta.spray_mask;
        }
        slots.apply();
    }
}

// First, else second, else the lowest candidate in an order rotated by the policy's number. Tables apply once, so
// there is no probing of slot after slot; it would give one neighbour the whole share of a dead replica anyway.
// Hardware without shifts by a variable takes a table of 64 entries for each of the five.
control PickMember(inout metadata_t meta) {
    bit<6> rotation;

    action set_lowest(replica_id_t index) {
        meta.lowest = index;
    }

    // Lowest set bit.
    table lowest_member {
        key = { meta.rotated : ternary @name("rotated"); }
        actions = { set_lowest; }
        const default_action = set_lowest(0);
        const entries = {
            64w0x0000000000000001 &&& 64w0x0000000000000001 : set_lowest(0);
            64w0x0000000000000002 &&& 64w0x0000000000000002 : set_lowest(1);
            64w0x0000000000000004 &&& 64w0x0000000000000004 : set_lowest(2);
            64w0x0000000000000008 &&& 64w0x0000000000000008 : set_lowest(3);
            64w0x0000000000000010 &&& 64w0x0000000000000010 : set_lowest(4);
            64w0x0000000000000020 &&& 64w0x0000000000000020 : set_lowest(5);
            64w0x0000000000000040 &&& 64w0x0000000000000040 : set_lowest(6);
            64w0x0000000000000080 &&& 64w0x0000000000000080 : set_lowest(7);
            64w0x0000000000000100 &&& 64w0x0000000000000100 : set_lowest(8);
            64w0x0000000000000200 &&& 64w0x0000000000000200 : set_lowest(9);
            64w0x0000000000000400 &&& 64w0x0000000000000400 : set_lowest(10);
            64w0x0000000000000800 &&& 64w0x0000000000000800 : set_lowest(11);
            64w0x0000000000001000 &&& 64w0x0000000000001000 : set_lowest(12);
            64w0x0000000000002000 &&& 64w0x0000000000002000 : set_lowest(13);
            64w0x0000000000004000 &&& 64w0x0000000000004000 : set_lowest(14);
            64w0x0000000000008000 &&& 64w0x0000000000008000 : set_lowest(15);
            64w0x0000000000010000 &&& 64w0x0000000000010000 : set_lowest(16);
            64w0x0000000000020000 &&& 64w0x0000000000020000 : set_lowest(17);
            64w0x0000000000040000 &&& 64w0x0000000000040000 : set_lowest(18);
            64w0x0000000000080000 &&& 64w0x0000000000080000 : set_lowest(19);
            64w0x0000000000100000 &&& 64w0x0000000000100000 : set_lowest(20);
            64w0x0000000000200000 &&& 64w0x0000000000200000 : set_lowest(21);
            64w0x0000000000400000 &&& 64w0x0000000000400000 : set_lowest(22);
            64w0x0000000000800000 &&& 64w0x0000000000800000 : set_lowest(23);
            64w0x0000000001000000 &&& 64w0x0000000001000000 : set_lowest(24);
            64w0x0000000002000000 &&& 64w0x0000000002000000 : set_lowest(25);
            64w0x0000000004000000 &&& 64w0x0000000004000000 : set_lowest(26);
            64w0x0000000008000000 &&& 64w0x0000000008000000 : set_lowest(27);
            64w0x0000000010000000 &&& 64w0x0000000010000000 : set_lowest(28);
            64w0x0000000020000000 &&& 64w0x0000000020000000 : set_lowest(29);
            64w0x0000000040000000 &&& 64w0x0000000040000000 : set_lowest(30);
            64w0x0000000080000000 &&& 64w0x0000000080000000 : set_lowest(31);
            64w0x0000000100000000 &&& 64w0x0000000100000000 : set_lowest(32);
            64w0x0000000200000000 &&& 64w0x0000000200000000 : set_lowest(33);
            64w0x0000000400000000 &&& 64w0x0000000400000000 : set_lowest(34);
            64w0x0000000800000000 &&& 64w0x0000000800000000 : set_lowest(35);
            64w0x0000001000000000 &&& 64w0x0000001000000000 : set_lowest(36);
            64w0x0000002000000000 &&& 64w0x0000002000000000 : set_lowest(37);
            64w0x0000004000000000 &&& 64w0x0000004000000000 : set_lowest(38);
            64w0x0000008000000000 &&& 64w0x0000008000000000 : set_lowest(39);
            64w0x0000010000000000 &&& 64w0x0000010000000000 : set_lowest(40);
            64w0x0000020000000000 &&& 64w0x0000020000000000 : set_lowest(41);
            64w0x0000040000000000 &&& 64w0x0000040000000000 : set_lowest(42);
            64w0x0000080000000000 &&& 64w0x0000080000000000 : set_lowest(43);
            64w0x0000100000000000 &&& 64w0x0000100000000000 : set_lowest(44);
            64w0x0000200000000000 &&& 64w0x0000200000000000 : set_lowest(45);
            64w0x0000400000000000 &&& 64w0x0000400000000000 : set_lowest(46);
            64w0x0000800000000000 &&& 64w0x0000800000000000 : set_lowest(47);
            64w0x0001000000000000 &&& 64w0x0001000000000000 : set_lowest(48);
            64w0x0002000000000000 &&& 64w0x0002000000000000 : set_lowest(49);
            64w0x0004000000000000 &&& 64w0x0004000000000000 : set_lowest(50);
            64w0x0008000000000000 &&& 64w0x0008000000000000 : set_lowest(51);
            64w0x0010000000000000 &&& 64w0x0010000000000000 : set_lowest(52);
            64w0x0020000000000000 &&& 64w0x0020000000000000 : set_lowest(53);
            64w0x0040000000000000 &&& 64w0x0040000000000000 : set_lowest(54);
            64w0x0080000000000000 &&& 64w0x0080000000000000 : set_lowest(55);
            64w0x0100000000000000 &&& 64w0x0100000000000000 : set_lowest(56);
            64w0x0200000000000000 &&& 64w0x0200000000000000 : set_lowest(57);
            64w0x0400000000000000 &&& 64w0x0400000000000000 : set_lowest(58);
            64w0x0800000000000000 &&& 64w0x0800000000000000 : set_lowest(59);
            64w0x1000000000000000 &&& 64w0x1000000000000000 : set_lowest(60);
            64w0x2000000000000000 &&& 64w0x2000000000000000 : set_lowest(61);
            64w0x4000000000000000 &&& 64w0x4000000000000000 : set_lowest(62);
            64w0x8000000000000000 &&& 64w0x8000000000000000 : set_lowest(63);
        }
    }

    apply {
        meta.chosen = 1;
        if (((meta.candidates >> (bit<8>)meta.first) & 1) == 1) {
            meta.replica = meta.first;
        } else if (((meta.candidates >> (bit<8>)meta.second) & 1) == 1) {
            meta.replica = meta.second;
        } else if (meta.candidates != 0) {
            // Round robin's high bits stand still, a hash's low bits chose the slot.
            rotation = meta.pick[5:0] ^ meta.pick[31:26];
            meta.rotated = (meta.candidates >> (bit<8>)rotation) | (meta.candidates << (8w64 - (bit<8>)rotation));
            lowest_member.apply();
            meta.replica = meta.lowest + rotation;
        } else {
            meta.chosen = 0;
        }
    }
}

#endif

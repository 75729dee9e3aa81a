// SPDX-License-Identifier: Apache-2.0
// Extracts the options of a plain SYN in one step, in the layouts of common stacks (syn_layout_t).
// Options in any other layout are not extracted.
#ifndef RIVULET_V1MODEL_SYN_PARSER_P4
#define RIVULET_V1MODEL_SYN_PARSER_P4

#include "../core/metadata.p4"

parser SynParser(packet_in packet, in bit<4> data_offset, out syn12_h syn12, out syn20_h syn20, out syn24_h syn24,
                 inout syn_layout_t layout) {
    state start {
        transition select(data_offset) {
            8:       look_syn12;
            10:      look_syn20;
            11:      look_syn24;
            default: accept;
        }
    }

    state look_syn12 {
        transition select(packet.lookahead<bit<96>>()) {
            0x02040000_01030300_01010402 &&& 0xffff0000_ffffff00_ffffffff: syn_windows;
            0x02040000_01010402_01030300 &&& 0xffff0000_ffffffff_ffffff00: syn_linux_bare;
            default: accept;
        }
    }

    state syn_windows {
        layout = syn_layout_t.WINDOWS;
        transition parse_syn12;
    }

    state syn_linux_bare {
        layout = syn_layout_t.LINUX_BARE;
        transition parse_syn12;
    }

    state parse_syn12 {
        packet.extract(syn12);
        transition accept;
    }

    state look_syn20 {
        transition select(packet.lookahead<bit<160>>()) {
            0x02040000_0402080a_00000000_00000000_01030300 &&& 0xffff0000_ffffffff_00000000_00000000_ffffff00: syn_linux;
            0x02040000_01030300_0402080a_00000000_00000000 &&& 0xffff0000_ffffff00_ffffffff_00000000_00000000: syn_freebsd;
            default: accept;
        }
    }

    state syn_linux {
        layout = syn_layout_t.LINUX;
        transition parse_syn20;
    }

    state syn_freebsd {
        layout = syn_layout_t.FREEBSD;
        transition parse_syn20;
    }

    state parse_syn20 {
        packet.extract(syn20);
        transition accept;
    }

    state look_syn24 {
        transition select(packet.lookahead<bit<192>>()) {
            0x02040000_01030300_0101080a_00000000_00000000_04020000
                &&& 0xffff0000_ffffff00_ffffffff_00000000_00000000_ffffffff: syn_macos;
            default: accept;
        }
    }

    state syn_macos {
        layout = syn_layout_t.MACOS;
        packet.extract(syn24);
        transition accept;
    }
}

#endif

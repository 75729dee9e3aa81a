// SPDX-License-Identifier: Apache-2.0
// State, counters and meters that the core uses, for Tofino: as v1model/state.p4, with registers of
// 32 bits or pairs of them, each reached once a pass.
#ifndef RIVULET_TNA_STATE_P4
#define RIVULET_TNA_STATE_P4

#include "../core/metadata.p4"

const bit<32> POOL_COUNT    = 1024;
const bit<32> MEMBER_COUNT  = 65536;
const bit<32> REASON_COUNT  = 256;
const bit<8>  RED           = 3;

// Half of a set of members of each pool. Returns the half before.
control HalfSet(in pool_id_t pool, in bit<32> add, in bit<32> remove, out bit<32> before) {
    Register<bit<32>, pool_id_t>(POOL_COUNT, 0) sets;
    RegisterAction<bit<32>, pool_id_t, bit<32>>(sets) include_members = {
        void apply(inout bit<32> value, out bit<32> result) {
            result = value;
            value = value | add;
        }
    };
    RegisterAction<bit<32>, pool_id_t, bit<32>>(sets) exclude_members = {
        void apply(inout bit<32> value, out bit<32> result) {
            result = value;
            value = value & ~remove;
        }
    };
    apply {
        if (remove != 0) {
            before = exclude_members.execute(pool);
        } else {
            before = include_members.execute(pool);
        }
    }
}

// Times of the last two ready heartbeats of each member.
struct last_two_t {
    ticks_t last;
    ticks_t before;
}

// A heartbeat writes and learns whether the last but one is within the bound. A packet learns
// whether the last one is overdue.
control Heard(in member_id_t member, in ticks_t now, in ticks_t earliest, in bit<1> heartbeat, out bit<1> in_time) {
    Register<last_two_t, member_id_t>(MEMBER_COUNT, {0, 0}) last_heard;
    RegisterAction<last_two_t, member_id_t, bit<1>>(last_heard) note = {
        void apply(inout last_two_t value, out bit<1> result) {
            result = 0;
            if ((int<32>)(value.before - earliest) >= 0) {
                result = 1;
            }
            value.before = value.last;
            value.last = now;
        }
    };
    RegisterAction<last_two_t, member_id_t, bit<1>>(last_heard) read = {
        void apply(inout last_two_t value, out bit<1> result) {
            result = 0;
            if ((int<32>)(value.last - earliest) >= 0) {
                result = 1;
            }
        }
    };
    apply {
        if (heartbeat == 1) {
            in_time = note.execute(member);
        } else {
            in_time = read.execute(member);
        }
    }
}

// Round robin: the number of the packet within its service.
control Turn(in service_id_t service, out bit<32> turn) {
    Register<bit<32>, service_id_t>(4096, 0) turns;
    RegisterAction<bit<32>, service_id_t, bit<32>>(turns) next = {
        void apply(inout bit<32> value, out bit<32> result) {
            result = value;
            value = value + 1;
        }
    };
    apply {
        turn = next.execute(service);
    }
}

control RandomNumber(out bit<32> number) {
    Random<bit<32>>() source;
    apply {
        number = source.get();
    }
}

control DropCounter(in drop_reason_t reason) {
    Counter<bit<32>, bit<8>>(REASON_COUNT, CounterType_t.PACKETS_AND_BYTES) drops;
    apply {
        drops.count((bit<8>)reason);
    }
}

control FateCounter(in fate_t fate) {
    Counter<bit<32>, bit<4>>(16, CounterType_t.PACKETS_AND_BYTES) fates;
    apply {
        fates.count((bit<4>)fate);
    }
}

control OutcomeCounter(in service_id_t service, in outcome_t outcome) {
    Counter<bit<32>, bit<16>>(65536, CounterType_t.PACKETS_AND_BYTES) service_outcomes;
    apply {
        service_outcomes.count(service ++ (bit<4>)outcome);
    }
}

control ReplicaCounter(in member_id_t member) {
    Counter<bit<32>, member_id_t>(MEMBER_COUNT, CounterType_t.PACKETS_AND_BYTES) replica_packets;
    apply {
        replica_packets.count(member);
    }
}

control RequestCounter(in member_id_t member) {
    Counter<bit<32>, member_id_t>(MEMBER_COUNT, CounterType_t.PACKETS) replica_requests;
    apply {
        replica_requests.count(member);
    }
}

control ReplicaExclusionCounter(in member_id_t member) {
    Counter<bit<32>, member_id_t>(MEMBER_COUNT, CounterType_t.PACKETS) replica_exclusions;
    apply {
        replica_exclusions.count(member);
    }
}

control AnswerCounter(in port_id_t port) {
    Counter<bit<32>, port_id_t>(512, CounterType_t.PACKETS) port_answers;
    apply {
        port_answers.count(port);
    }
}

control PlainMeter(in bit<12> cell, out bit<1> above) {
    Meter<bit<12>>(4096, MeterType_t.PACKETS) plain_meter;
    bit<8> color;
    apply {
        color = plain_meter.execute(cell);
        above = 0;
        if (color == RED) {
            above = 1;
        }
    }
}

control IcmpErrorMeter(in service_id_t service, out bit<1> above) {
    Meter<service_id_t>(4096, MeterType_t.PACKETS) icmp_error_meter;
    bit<8> color;
    apply {
        color = icmp_error_meter.execute(service);
        above = 0;
        if (color == RED) {
            above = 1;
        }
    }
}

#endif

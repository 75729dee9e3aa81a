// SPDX-License-Identifier: Apache-2.0
// All state that v1model keeps between packets. Each register is behind a control that does one
// access a pass; another architecture provides the same controls. Every index is as wide as its
// array. BMv2 runs one ingress thread, so @atomic costs nothing there; the embedded switch honours
// it with several workers.
#ifndef RIVULET_V1MODEL_STATE_P4
#define RIVULET_V1MODEL_STATE_P4

#include "../core/metadata.p4"

const bit<32> POOL_COUNT    = 1024;
const bit<32> MEMBER_COUNT  = 65536;
const bit<32> REASON_COUNT  = 256;

// A set of members of each pool. Returns the set before and after.
control PoolSet(in pool_id_t pool, in member_set_t add, in member_set_t remove,
                out member_set_t before, out member_set_t after) {
    register<member_set_t, pool_id_t>(POOL_COUNT) sets;
    apply {
        @atomic {
            sets.read(before, pool);
            after = (before | add) & ~remove;
            sets.write(pool, after);
        }
    }
}

// Times of the last two ready heartbeats of each member, newest in the low half. A heartbeat
// writes, a packet reads.
register<bit<96>, member_id_t>(MEMBER_COUNT) last_heard;

control Hear(in member_id_t member, in microseconds_t now, in bit<1> ready,
             out microseconds_t last, out microseconds_t before_last) {
    bit<96> cell;
    apply {
        @atomic {
            last_heard.read(cell, member);
            last = cell[47:0];
            before_last = cell[95:48];
            if (ready == 1) {
                last_heard.write(member, last ++ now);
            }
        }
    }
}

control LastHeard(in member_id_t member, out microseconds_t last) {
    bit<96> cell;
    apply {
        last_heard.read(cell, member);
        last = cell[47:0];
    }
}

// The newest heartbeat of each member: epoch of its key, incarnation, sequence. A heartbeat that is
// not above it is refused and changes nothing. The first heartbeat under the newest key is
// admitted, whatever the numbers under a key before.
control Newest(in member_id_t member, in key_epoch_t epoch, in bit<1> newest_key, in bit<32> incarnation, in bit<32> sequence,
               out newer_t verdict) {
    register<bit<72>, member_id_t>(MEMBER_COUNT) newest_heartbeats;
    bit<72> cell;
    apply {
        @atomic {
            newest_heartbeats.read(cell, member);
            verdict = newer_t.NEWER;
            if (cell[71:64] != epoch) {
                // 0: none yet.
                if (newest_key == 0 && cell != 0) {
                    verdict = newer_t.OLDER;
                }
            } else if (incarnation < cell[63:32]) {
                verdict = newer_t.OLDER;
            } else if (incarnation == cell[63:32] && sequence <= cell[31:0]) {
                verdict = newer_t.REPLAY;
            }
            if (verdict == newer_t.NEWER) {
                newest_heartbeats.write(member, epoch ++ incarnation ++ sequence);
            }
        }
    }
}

// When this ToR first saw a pool: the first heartbeat or packet after the program was loaded.
control KnownSince(in pool_id_t pool, in microseconds_t now, out microseconds_t since) {
    register<microseconds_t, pool_id_t>(POOL_COUNT) known_since;
    apply {
        @atomic {
            known_since.read(since, pool);
            if (since == 0) {
                since = now;
                known_since.write(pool, now);
            }
        }
    }
}

// How often each member was excluded, modulo 2^16.
control ExclusionCount(in member_id_t member, in bit<1> increment, out bit<16> count) {
    register<bit<16>, member_id_t>(MEMBER_COUNT) exclusion_count;
    apply {
        @atomic {
            exclusion_count.read(count, member);
            if (increment == 1) {
                count = count + 1;
                exclusion_count.write(member, count);
            }
        }
    }
}

// Requests waiting at each member. Two copies, because a packet asks for two members.
register<bit<16>, member_id_t>(MEMBER_COUNT) load_first;
register<bit<16>, member_id_t>(MEMBER_COUNT) load_second;

control SetLoad(in member_id_t member, in bit<16> load) {
    apply {
        load_first.write(member, load);
        load_second.write(member, load);
    }
}

control Loads(in member_id_t first, in member_id_t second, out bit<16> of_first, out bit<16> of_second) {
    apply {
        load_first.read(of_first, first);
        load_second.read(of_second, second);
    }
}

// Round robin: the number of the packet within its service; the caller masks it.
control Turn(in service_id_t service, out bit<32> turn) {
    register<bit<32>, service_id_t>(4096) turns;
    apply {
        @atomic {
            turns.read(turn, service);
            turns.write(service, turn + 1);
        }
    }
}

// One row of a replay sketch. A word is (16-bit slot, eight 3-bit counts of that slot, eight of the
// slot before), so one access serves both; a word of an older slot counts as empty and nothing is
// ever cleared. Counts stop at 7. `put` 0 only reads. The caller masks the index by `words`, a
// power of two.
control SketchRow(in bit<18> index, in bit<3> cell, in bit<16> slot, in bit<1> put,
                  out bit<8> current, out bit<8> previous)(bit<32> words) {
    register<bit<64>, bit<18>>(words) row;
    bit<64> word;
    bit<64> shifted;
    bit<16> age;
    bit<8>  shift;
    apply {
        @atomic {
            row.read(word, index);
            age = slot - word[63:48];
            // One slot ahead: another worker handled the change of slot first, and its counts are
            // kept.
            if (age == 1) {
                word = slot ++ 24w0 ++ word[47:24];
            } else if (age != 0 && age != 0xffff) {
                word = slot ++ 48w0;
            }
            shift = (4w0 ++ cell ++ 1w0) + (5w0 ++ cell);
            shifted = word >> shift;
            previous = 5w0 ++ shifted[2:0];
            current = 5w0 ++ shifted[26:24];
            if (put == 1) {
                if (current != 7) {
                    word = word + (64w0x1000000 << shift);
                }
                row.write(index, word);
            }
        }
    }
}

// Numbers of keys that one sketch holds for the current and the previous slot, at most `limit`
// each. `full`: the current slot is at the limit; `full_before`: the previous slot was, so some of
// its keys were not inserted.
control SketchLoad(in bit<24> slot, in bit<1> add, in bit<32> limit, out bit<1> full, out bit<1> full_before) {
    register<bit<64>, bit<1>>(2) keys_put;
    bit<64> current;
    bit<64> previous;
    bit<40> count;
    apply {
        @atomic {
            keys_put.read(current, slot[0:0]);
            keys_put.read(previous, ~slot[0:0]);
            count = 0;
            if (current[63:40] == slot) {
                count = current[39:0];
            }
            full = 0;
            if (count >= (bit<40>)limit) {
                full = 1;
            }
            full_before = 0;
            if (previous[63:40] == slot - 1 && previous[39:0] >= (bit<40>)limit) {
                full_before = 1;
            }
            if (add == 1) {
                keys_put.write(slot[0:0], slot ++ (count + 1));
            }
        }
    }
}

control EventSequence(out bit<32> sequence) {
    register<bit<32>, bit<1>>(2) event_sequence;
    apply {
        @atomic {
            event_sequence.read(sequence, 0);
            sequence = sequence + 1;
            event_sequence.write(0, sequence);
        }
    }
}

// ---- A number that is not state ----

control RandomNumber(out bit<32> number) {
    apply {
        random(number, 0, 0xffffffff);
    }
}

// ---- Counters and meters ----

control DropCounter(in drop_reason_t reason) {
    counter<drop_reason_t>(REASON_COUNT, CounterType.packets_and_bytes) drops;
    apply {
        drops.count(reason);
    }
}

control EgressDropCounter(in drop_reason_t reason) {
    counter<drop_reason_t>(REASON_COUNT, CounterType.packets_and_bytes) egress_drops;
    apply {
        egress_drops.count(reason);
    }
}

control FateCounter(in fate_t fate) {
    counter<fate_t>(16, CounterType.packets_and_bytes) fates;
    apply {
        fates.count(fate);
    }
}

control SuspectCounter(in drop_reason_t reason) {
    counter<drop_reason_t>(REASON_COUNT, CounterType.packets) suspects;
    apply {
        suspects.count(reason);
    }
}

control OutcomeCounter(in service_id_t service, in outcome_t outcome) {
    counter<bit<16>>(65536, CounterType.packets_and_bytes) service_outcomes;
    apply {
        service_outcomes.count(service ++ (bit<4>)outcome);
    }
}

control ReplicaCounter(in member_id_t member) {
    counter<member_id_t>(MEMBER_COUNT, CounterType.packets_and_bytes) replica_packets;
    apply {
        replica_packets.count(member);
    }
}

control RequestCounter(in member_id_t member) {
    counter<member_id_t>(MEMBER_COUNT, CounterType.packets) replica_requests;
    apply {
        replica_requests.count(member);
    }
}

control AnswerCounter(in port_id_t port) {
    counter<port_id_t>(512, CounterType.packets) port_answers;
    apply {
        port_answers.count(port);
    }
}

control ReplicaExclusionCounter(in member_id_t member) {
    counter<member_id_t>(MEMBER_COUNT, CounterType.packets) replica_exclusions;
    apply {
        replica_exclusions.count(member);
    }
}

control ReplicaReturnCounter(in member_id_t member) {
    counter<member_id_t>(MEMBER_COUNT, CounterType.packets) replica_returns;
    apply {
        replica_returns.count(member);
    }
}

control HeartbeatCounter(in member_id_t member, in bit<1> ready) {
    counter<member_id_t>(MEMBER_COUNT, CounterType.packets) heartbeats;
    counter<member_id_t>(MEMBER_COUNT, CounterType.packets) heartbeats_unready;
    apply {
        if (ready == 1) {
            heartbeats.count(member);
        } else {
            heartbeats_unready.count(member);
        }
    }
}

// 1: above the rate.
control ServiceMeter(in service_id_t service, in service_meter_t kind, out bit<1> above) {
    meter<bit<15>>(32768, MeterType.packets) service_meters;
    bit<2> color;
    apply {
        service_meters.execute_meter(service ++ (bit<3>)kind, color);
        above = 0;
        if (color == 2) {
            above = 1;
        }
    }
}

// By client: addresses that hash to one cell share it.
control PlainMeter(in bit<12> cell, out bit<1> above) {
    meter<bit<12>>(4096, MeterType.packets) plain_meter;
    bit<2> color;
    apply {
        plain_meter.execute_meter(cell, color);
        above = 0;
        if (color == 2) {
            above = 1;
        }
    }
}

// Of a stateless service: segments without a cookie.
control UncookiedMeter(in service_id_t service, out bit<1> above) {
    meter<service_id_t>(4096, MeterType.packets) uncookied_meter;
    bit<2> color;
    apply {
        uncookied_meter.execute_meter(service, color);
        above = 0;
        if (color == 2) {
            above = 1;
        }
    }
}

control IcmpErrorMeter(in service_id_t service, out bit<1> above) {
    meter<service_id_t>(4096, MeterType.packets) icmp_error_meter;
    bit<2> color;
    apply {
        icmp_error_meter.execute_meter(service, color);
        above = 0;
        if (color == 2) {
            above = 1;
        }
    }
}

control OwnMeter(in port_id_t port, in own_class_t kind, out bit<1> above) {
    meter<bit<12>>(4096, MeterType.packets) own_meter;
    bit<2> color;
    apply {
        own_meter.execute_meter(port ++ (bit<3>)kind, color);
        above = 0;
        if (color == 2) {
            above = 1;
        }
    }
}

control TooBigMeter(in port_id_t port, out bit<1> above) {
    meter<port_id_t>(512, MeterType.packets) too_big_meter;
    bit<2> color;
    apply {
        too_big_meter.execute_meter(port, color);
        above = 0;
        if (color == 2) {
            above = 1;
        }
    }
}

control EventMeter(in event_kind_t kind, out bit<1> above) {
    meter<event_kind_t>(256, MeterType.packets) event_meter;
    bit<2> color;
    apply {
        event_meter.execute_meter(kind, color);
        above = 0;
        if (color == 2) {
            above = 1;
        }
    }
}

// BMv2's P4Runtime server takes digests of plain bits only.
control SendEvent(in event_t event) {
    apply {
        digest<event_t>(1, event);
    }
}

#endif

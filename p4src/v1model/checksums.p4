// SPDX-License-Identifier: Apache-2.0
// Checksums. The IPv4 header's is verified and recomputed. TCP's is updated incrementally (RFC
// 1624), so that a wrong one stays wrong. The checksums of packets that the ToR builds are computed
// over all bytes that are sent.
#ifndef RIVULET_V1MODEL_CHECKSUMS_P4
#define RIVULET_V1MODEL_CHECKSUMS_P4

#include "../core/metadata.p4"

#define IPV4_FIELDS(h) h.version, h.ihl, h.tos, h.total_length, h.identification, h.reserved, h.dont_fragment, \
    h.more_fragments, h.fragment_offset, h.ttl, h.protocol, h.src, h.dst

control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && !hdr.ipv4_options.isValid(),
            { IPV4_FIELDS(hdr.ipv4) }, hdr.ipv4.checksum, HashAlgorithm.csum16);
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4_options.isValid(),
            { IPV4_FIELDS(hdr.ipv4), hdr.ipv4_options.options }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control ComputeChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        // A quoted header stays as it came.
        update_checksum(hdr.ipv4.isValid() && !hdr.ipv4_options.isValid() && !hdr.outer_icmp.isValid(),
            { IPV4_FIELDS(hdr.ipv4) }, hdr.ipv4.checksum, HashAlgorithm.csum16);
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4_options.isValid() && !hdr.outer_icmp.isValid(),
            { IPV4_FIELDS(hdr.ipv4), hdr.ipv4_options.options }, hdr.ipv4.checksum, HashAlgorithm.csum16);
        update_checksum(hdr.outer_ipv4.isValid(),
            { IPV4_FIELDS(hdr.outer_ipv4) }, hdr.outer_ipv4.checksum, HashAlgorithm.csum16);

        update_checksum(meta.written.repair_tcp == 1,
            { meta.written.old_checksum, meta.written.old_block.time, meta.written.old_block.tor_id,
              meta.written.old_block.seal_epoch, meta.written.old_block.nonce_epoch, meta.written.old_block.flags,
              meta.written.old_block.tag,
              hdr.tor_block.time, hdr.tor_block.tor_id, hdr.tor_block.seal_epoch, hdr.tor_block.nonce_epoch,
              hdr.tor_block.flags, hdr.tor_block.key_epoch, hdr.tor_block.tag },
            hdr.tcp.checksum, HashAlgorithm.csum16);

        update_checksum(meta.written.fresh_neighbour == 1,
            { hdr.ipv6.src, hdr.ipv6.dst, meta.written.icmp6_length, 24w0, PROTOCOL_ICMPV6, hdr.icmp.type,
              hdr.icmp.code, hdr.icmp.rest, hdr.neighbour.target, hdr.link_option.type, hdr.link_option.length,
              hdr.link_option.mac },
            hdr.icmp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.written.fresh_heartbeat6 == 1,
            { hdr.ipv6.src, hdr.ipv6.dst, meta.written.icmp6_length, 24w0, PROTOCOL_UDP, hdr.udp.src_port,
              hdr.udp.dst_port, hdr.udp.length, hdr.heartbeat.version, hdr.heartbeat.flags, hdr.heartbeat.pool,
              hdr.heartbeat.replica, hdr.heartbeat.key_epoch, hdr.heartbeat.load, hdr.heartbeat.incarnation,
              hdr.heartbeat.sequence, hdr.live_sets.alive, hdr.live_sets.plain, hdr.heartbeat_tag.tag },
            hdr.udp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.written.fresh_syn_ack == 1,
            { meta.written.pseudo_src, meta.written.pseudo_dst, meta.written.tcp_length, 8w0, PROTOCOL_TCP,
              hdr.tcp.src_port, hdr.tcp.dst_port, hdr.tcp.sequence, hdr.tcp.acknowledgement, hdr.tcp.data_offset,
              hdr.tcp.reserved, hdr.tcp.flags, hdr.tcp.window, hdr.tcp.urgent, meta.written.syn_options },
            hdr.tcp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.written.fresh_too_big4 == 1 && !hdr.ipv4_options.isValid(),
            { hdr.outer_icmp.type, hdr.outer_icmp.code, hdr.outer_icmp.rest, IPV4_FIELDS(hdr.ipv4), hdr.ipv4.checksum,
              hdr.quote_l4.src_port, hdr.quote_l4.dst_port, hdr.quote_l4.sequence },
            hdr.outer_icmp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.written.fresh_too_big4 == 1 && hdr.ipv4_options.isValid(),
            { hdr.outer_icmp.type, hdr.outer_icmp.code, hdr.outer_icmp.rest, IPV4_FIELDS(hdr.ipv4), hdr.ipv4.checksum,
              hdr.ipv4_options.options, hdr.quote_l4.src_port, hdr.quote_l4.dst_port, hdr.quote_l4.sequence },
            hdr.outer_icmp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.written.fresh_too_big6_tcp == 1,
            { hdr.outer_ipv6.src, hdr.outer_ipv6.dst, meta.written.icmp6_length, 24w0, PROTOCOL_ICMPV6,
              hdr.outer_icmp.type, hdr.outer_icmp.code, hdr.outer_icmp.rest,
              hdr.ipv6.version, hdr.ipv6.traffic_class, hdr.ipv6.flow_label, hdr.ipv6.payload_length,
              hdr.ipv6.next_header, hdr.ipv6.hop_limit, hdr.ipv6.src, hdr.ipv6.dst,
              hdr.tcp.src_port, hdr.tcp.dst_port, hdr.tcp.sequence, hdr.tcp.acknowledgement, hdr.tcp.data_offset,
              hdr.tcp.reserved, hdr.tcp.flags, hdr.tcp.window, hdr.tcp.checksum, hdr.tcp.urgent },
            hdr.outer_icmp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.written.fresh_too_big6_udp == 1,
            { hdr.outer_ipv6.src, hdr.outer_ipv6.dst, meta.written.icmp6_length, 24w0, PROTOCOL_ICMPV6,
              hdr.outer_icmp.type, hdr.outer_icmp.code, hdr.outer_icmp.rest,
              hdr.ipv6.version, hdr.ipv6.traffic_class, hdr.ipv6.flow_label, hdr.ipv6.payload_length,
              hdr.ipv6.next_header, hdr.ipv6.hop_limit, hdr.ipv6.src, hdr.ipv6.dst,
              hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.length, hdr.udp.checksum },
            hdr.outer_icmp.checksum, HashAlgorithm.csum16);
    }
}

#endif

//! A steady-state request with one range, one want and one response; built by hand so that every
//! run is equal.

use std::net::SocketAddr;

use rivulet_packet::{
    Class, Ecn, EntryKind, ProofEntry, RequestBuilder, RequestClass, RivuletOption, SealedContinuation,
    SegmentHeader, TcpFlags, TransportContinuation, Want,
};
use rivulet_transport::KeyRing;
use rivulet_transport::seal_continuation;
use rivulet_transport::{MAX_UCONT, UserContinuation, seal_user};

use super::{CLIENT, SERVICE};

pub const NOW: u64 = 50_000_000;
pub const CONNECTION: u64 = 0x0102_0304_0506_0708;

/// The continuation of a connection with a window of 40 in congestion avoidance.
pub fn fields() -> TransportContinuation {
    TransportContinuation {
        tag: 0x0102_0304,
        number: 1000,
        base: 961,
        time: NOW - 20_000,
        nonce_epoch: 1,
        seal_epoch: 1,
        tcp_base: 950,
        start_cwnd: 40,
        ssthresh: 40,
        wire_base: 77,
        mss: 1452,
        srtt: 20_000,
        connection: CONNECTION,
        ..TransportContinuation::default()
    }
}

/// The sum of the original nonces between two offsets from the base.
pub fn original(keys: &KeyRing, c: &TransportContinuation, first: u16, last: u16) -> ProofEntry {
    let nonces = keys.nonce(c.nonce_epoch).unwrap().original.tag(c.tag);
    let at = |offset: u16| c.base.wrapping_add(u32::from(offset));
    ProofEntry::range(EntryKind::Original, first, last, nonces.range_sum(at(first), at(last)))
}

pub fn output_continuation(keys: &KeyRing) -> Vec<u8> {
    output_continuation_of(keys, 1)
}

/// The same, sealed under this epoch.
pub fn output_continuation_of(keys: &KeyRing, epoch: u16) -> Vec<u8> {
    let mut out = vec![0; MAX_UCONT];
    let what = UserContinuation {
        input: false,
        stream: 0,
        valid_start: 0,
        valid_end: 1 << 30,
        identity: [9; 16],
        opaque: b"0123456789abcdef",
    };
    let n = seal_user(keys, epoch, CONNECTION, 0, &what, &mut out).unwrap();
    out.truncate(n);
    out
}

/// A request packet of this class, with this continuation and proof.
pub fn packet(
    class: RequestClass,
    sealed: &SealedContinuation,
    proof: &[ProofEntry],
    ucont: &[u8],
) -> Vec<u8> {
    packet_with(
        &RequestBuilder {
            class,
            continuation: Some(sealed),
            proof,
            wants: &[Want { offset: 5000, length: 1402, ucont: Some(0), retransmit: false }],
            uconts: &[ucont],
            ..RequestBuilder::default()
        },
        CLIENT,
    )
}

/// A request from any address.
pub fn packet_with(builder: &RequestBuilder<'_>, from: &str) -> Vec<u8> {
    packet_acknowledging(builder, from, if builder.class == RequestClass::Syn { 0 } else { 2 })
}

/// The same with an explicit acknowledgement number. A SYN has sequence number 0, other segments 1.
pub fn packet_acknowledging(builder: &RequestBuilder<'_>, from: &str, ack: u32) -> Vec<u8> {
    let src: SocketAddr = from.parse().unwrap();
    let dst: SocketAddr = SERVICE.parse().unwrap();
    let class = Class::Request(builder.class);
    let syn_options = (builder.class == RequestClass::Syn).then_some(rivulet_packet::SynOptions {
        mss: 1460,
        ts_value: 0,
        ts_echo: 0,
        window_scale: 14,
    });
    let header = SegmentHeader {
        src,
        dst,
        ecn: Ecn::NotEct,
        seq: u32::from(builder.class != RequestClass::Syn),
        ack,
        flags: TcpFlags::of(class),
        option: RivuletOption { class, number_low: builder.number_low() },
        syn_options,
    };
    let mut out = vec![0; 4096];
    let payload = builder.write(&mut out[header.payload_offset()..]).unwrap();
    let n = header.finish_packet(&mut out, payload).unwrap();
    out.truncate(n);
    out
}

/// The steady continuation, in a connection with this tag.
pub fn sealed_as(keys: &KeyRing, tag: u32) -> SealedContinuation {
    seal_continuation(
        keys.seal(1).unwrap(),
        &TransportContinuation { tag, ..fields() },
        CLIENT.parse().unwrap(),
    )
}

/// The steady continuation.
pub fn sealed(keys: &KeyRing) -> SealedContinuation {
    sealed_as(keys, fields().tag)
}

/// The steady request for such a continuation.
pub fn request_with(keys: &KeyRing, sealed: &SealedContinuation) -> Vec<u8> {
    let proof = [original(keys, &sealed.fields, 0, 39)];
    packet(RequestClass::Normal, sealed, &proof, &output_continuation(keys))
}

/// The whole steady request.
pub fn request(keys: &KeyRing) -> Vec<u8> {
    request_with(keys, &sealed(keys))
}

//! For fuzz targets and random tests: runs the HTTP of a connection on arbitrary bytes from both
//! sides.

use rivulet_tls::{CipherSuite, Receiver, TrafficSecret};

use crate::buffer::{Input, Output};
use crate::channel::{Channel, Records};
use crate::exchange::{Exchange, Progress};
use crate::head::Forwarded;
use crate::state::Direction;

/// Splits `input` into pieces of the client's data and of the server's bytes: each begins with a
/// byte whose lowest bit is the side and whose other bits are the length. A piece of length 0 ends
/// its side.
///
/// # Panics
/// A limit on buffered bytes is exceeded.
pub fn relay(mut input: &[u8]) {
    let secret = TrafficSecret::new(CipherSuite::Aes128GcmSha256, &[7; 32]).expect("32 bytes");
    let sent = Direction { secret: secret.clone(), generation: 0, next_record: 1, offset: 0 };
    let mut channel = Channel::Records(Box::new(Records::new(Receiver::new(secret, 0), 0, sent)));
    let peer = ([192, 0, 2, 7], 1).into();
    let mut exchange = Exchange::new(peer, Forwarded::Fields);
    let (mut data, mut to_server, mut from_server) = (Vec::new(), Output::default(), Input::new(64 << 10));
    let (mut client, mut sent_bytes) = (Output::default(), 0);
    while let Some((&first, rest)) = input.split_first() {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(first >> 1)));
        input = rest;
        let mut progress = Progress::Open;
        if first & 1 == 0 {
            data.extend_from_slice(piece);
        } else if piece.is_empty() {
            progress = exchange.end_of_server(true, &from_server, &mut channel, &mut client);
        } else if !from_server.is_full() {
            from_server.push(piece);
        }
        if let Err(status) = exchange.take_request(&mut data, &mut to_server) {
            assert!((400..600).contains(&status));
            progress = exchange.replace_reply(status, &mut channel, &mut client);
        }
        if progress == Progress::Open {
            progress = exchange.take_reply(&mut from_server, &mut channel, &mut client);
        }
        match progress {
            Progress::Open => {}
            Progress::Repeat => exchange.repeat_request(&mut to_server),
            Progress::Close | Progress::Abort => return,
        }
        sent_bytes += client.len() as u64;
        client.bytes().clear();
        assert!(channel.state().is_some_and(|state| state.sent.offset == sent_bytes));
    }
}

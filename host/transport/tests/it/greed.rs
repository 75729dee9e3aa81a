//! How much a client can draw from one window, and learn about it, by requests of every class.
//!
//! A client holds a window. For each of its continuations it sends every class and attempt twice,
//! in every order of the classes; then the same for everything received, in any generation. It must
//! draw no more data than a client that answers each number once, except for the single packet of a
//! TIMEOUT. The nonce of a number under K must never be revealed twice, so a loss cannot be hidden.
//! These clients send correct proofs; `attacks.rs` tests false ones.

use std::collections::BTreeMap;

use rivulet_packet::RequestClass::{Close, Normal, Probe, Rekey, Restart, Timeout};
use rivulet_packet::{
    EntryKind, MAX_ATTEMPT, ProofEntry, RequestBuilder, RequestClass, SealedContinuation, Segment,
    TransportContinuation,
};
use rivulet_transport::seal_continuation;
use rivulet_transport::server::{Policy, ReplayMemory, Reply, Server, Verdict};
use rivulet_transport::{KeyRing, Time};

use crate::support::{self, CLIENT, steady};

const BASE: u32 = 1000;
const ROUNDS: usize = 3;

/// A client's knowledge of one number: its nonces under K and K'.
type Nonces = [Option<u32>; 2];

struct Greedy<'k> {
    keys: &'k KeyRing,
    server: Server,
    /// By tag and number.
    held: BTreeMap<(u32, u32), SealedContinuation>,
    known: BTreeMap<(u32, u32), Nonces>,
    /// How often the nonce under K was revealed.
    shown: BTreeMap<(u32, u32), u32>,
    /// Packets with data.
    drawn: usize,
    /// Responses under K so far, and which of them are lost.
    answers: u32,
    lost: u32,
    now: u64,
}

impl<'k> Greedy<'k> {
    /// A client that received a whole window of `window` numbers and has not answered any.
    fn new(keys: &'k KeyRing, window: u16, ssthresh: u16, lost: u32) -> Self {
        let mut server = Server::new(Policy::default());
        server.replay = Some(ReplayMemory::new(100_000, 4_000_000, 99));
        let mut greedy = Self {
            keys,
            server,
            held: BTreeMap::new(),
            known: BTreeMap::new(),
            shown: BTreeMap::new(),
            drawn: 0,
            answers: 0,
            lost,
            now: steady::NOW,
        };
        for number in BASE..BASE + u32::from(window) {
            let c = TransportContinuation {
                number,
                base: BASE,
                tcp_base: BASE - 1,
                start_cwnd: window,
                ssthresh,
                ..steady::fields()
            };
            let place = (c.tag, number);
            greedy.held.insert(place, seal_continuation(keys.seal(1).unwrap(), &c, CLIENT.parse().unwrap()));
            greedy.known.insert(place, [Some(greedy.nonce(&c, number)), None]);
            greedy.shown.insert(place, 1);
        }
        greedy
    }

    /// The nonce under K, which the client does not know.
    fn nonce(&self, c: &TransportContinuation, number: u32) -> u32 {
        self.keys.nonce(c.nonce_epoch).unwrap().original.tag(c.tag).nonce(number)
    }

    /// The proof of everything received from the base on.
    fn proof(&self, c: &TransportContinuation) -> Vec<ProofEntry> {
        let mut out: Vec<ProofEntry> = vec![];
        for offset in 0..=c.number.wrapping_sub(c.base) as u16 {
            let number = c.base.wrapping_add(u32::from(offset));
            let (kind, nonce) = match self.known.get(&(c.tag, number)) {
                Some([Some(nonce), _]) => (EntryKind::Original, *nonce),
                Some([None, Some(nonce)]) => (EntryKind::Retransmitted, *nonce),
                _ => continue,
            };
            match out.last_mut() {
                Some(e) if e.kind == kind && e.last + 1 == offset => {
                    (e.last, e.sum) = (offset, e.sum ^ nonce)
                }
                _ => out.push(ProofEntry::range(kind, offset, offset, nonce)),
            }
        }
        out
    }

    fn ask(&mut self, class: RequestClass, sealed: &SealedContinuation, attempt: u8) {
        let c = &sealed.fields;
        let proof = if class == Restart { vec![] } else { self.proof(c) };
        let builder = RequestBuilder {
            class,
            attempt,
            continuation: Some(sealed),
            proof: &proof,
            pad_to: 200,
            ..RequestBuilder::default()
        };
        let packet = steady::packet_with(&builder, CLIENT);
        let segment = Segment::parse_packet(&packet).unwrap();
        self.now += 1;
        let Ok(Verdict::Respond(plan)) = self.server.accept(&segment, self.keys, Time(self.now)) else {
            return;
        };
        for (i, head) in plan.heads().iter().enumerate() {
            let mut out = [0u8; 4096];
            let sent = plan.respond(i, &Reply::default(), self.keys, &mut out).unwrap();
            let answer = Segment::parse_packet(&out[..sent.length]).unwrap();
            let answer = answer.response().unwrap();
            self.drawn += usize::from(head.is_for_application());
            let of = sent.sealed.map_or(*c, |s| s.fields);
            let place = (of.tag, answer.number);
            let original = answer.nonce == self.nonce(&of, answer.number);
            if original {
                *self.shown.entry(place).or_default() += 1;
                self.answers += 1;
                if self.lost >> self.answers.min(31) & 1 == 1 {
                    continue;
                }
            }
            if answer.nonce != 0 {
                self.known.entry(place).or_default()[usize::from(!original)] = Some(answer.nonce);
            }
            if let Some(sealed) = sent.sealed {
                self.held.entry(place).or_insert(sealed);
            }
        }
    }

    /// One round trip: sends every class for every held continuation, class by class in this order.
    fn round(&mut self, order: &[RequestClass]) {
        self.now += 20_000;
        let held: Vec<_> = self.held.values().copied().collect();
        for class in order {
            let most = if *class == Normal { 0 } else { MAX_ATTEMPT };
            for (sealed, attempt) in held.iter().flat_map(|s| (0..=most).map(move |a| (s, a))) {
                self.ask(*class, sealed, attempt);
                self.ask(*class, sealed, attempt);
            }
        }
    }
}

/// Every order of these classes.
fn orders(classes: &[RequestClass]) -> Vec<Vec<RequestClass>> {
    let Some((first, rest)) = classes.split_first() else { return vec![vec![]] };
    let with = |order: Vec<RequestClass>| {
        (0..=order.len()).map(move |at| {
            let mut order = order.clone();
            order.insert(at, *first);
            order
        })
    };
    orders(rest).into_iter().flat_map(with).collect()
}

/// Packets of data that a correct client draws after each round trip, without loss.
fn honest(keys: &KeyRing, window: u16, ssthresh: u16) -> Vec<usize> {
    let mut client = Greedy::new(keys, window, ssthresh, 0);
    let mut draw = || {
        let held: Vec<_> = std::mem::take(&mut client.held).into_values().collect();
        held.iter().for_each(|sealed| client.ask(Normal, sealed, 0));
        client.drawn
    };
    (0..ROUNDS).map(|_| draw()).collect()
}

/// Defence: one use of each number, attempt and generation; none of a generation that was left;
/// data and nonces under K only for the first attempt; a REKEY only for an unused window; no nonce
/// in the answer to a CLOSE.
#[test]
fn no_combination_of_requests_exceeds_one_window() {
    let keys = support::keys();
    let all = orders(&[Normal, Probe, Timeout, Restart, Rekey, Close]);
    assert_eq!(all.len(), 720);
    for (window, ssthresh) in [(3, 3), (3, 64)] {
        let fair = honest(&keys, window, ssthresh);
        // No loss, loss of the second response, or loss of every second one.
        for lost in [0, 4, 0xaaaa_aaaa] {
            for order in &all {
                let mut client = Greedy::new(&keys, window, ssthresh, lost);
                for (round, fair) in fair.iter().enumerate() {
                    client.round(order);
                    assert!(
                        client.drawn <= fair + 1,
                        "{} packets for {fair} by {order:?}, round {round}, window {window} of {ssthresh}, lost {lost:x}",
                        client.drawn
                    );
                }
                let twice: Vec<_> = client.shown.iter().filter(|(_, times)| **times > 1).collect();
                assert!(twice.is_empty(), "{order:?}, lost {lost:x} shows under K again: {twice:?}");
            }
        }
    }
}

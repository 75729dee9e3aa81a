//! Processes the BPF programs' events and the held frames.

use rivulet_bpf::trods::{Event, FlowKey, What};

use super::{BATCH, Ended, HoldError, Keeper, MOST_BATCHES, Watch, now_ms};
use crate::flow::{Action, Flow};
use crate::hold::Frame;
use crate::hold::connection::Connection;
use crate::record::Tuple;
use crate::ts;

/// Limit on the parked packets that wait for the next turn.
const MAX_WAITING: usize = 4096;

impl<K: Keeper> Watch<K> {
    /// Connections with timestamps of the BPF programs, since the last call: those with a request
    /// for a long object, and those that ended here too early.
    pub fn stamped(&mut self) -> (Vec<FlowKey>, Vec<Ended>) {
        (std::mem::take(&mut self.asked), std::mem::take(&mut self.ended))
    }

    /// Processes all events that are in the ring now.
    pub(super) fn hear_all(&mut self, parked: &mut impl FnMut(&FlowKey, &[u8])) -> Result<(), HoldError> {
        // Bounded: enough batches for a full ring of the shortest events.
        for _ in 0..MOST_BATCHES {
            if self.hear(parked)? < BATCH {
                break;
            }
        }
        Ok(())
    }

    /// Processes one batch of events and returns their number.
    fn hear(&mut self, parked: &mut impl FnMut(&FlowKey, &[u8])) -> Result<usize, HoldError> {
        let now = now_ms();
        let Watch {
            hold,
            leases,
            keeper,
            services,
            connections,
            due,
            actions,
            said,
            stale,
            over,
            early,
            refused,
            closing,
            issuers,
            terminators,
            asked,
            ended: ends,
            ..
        } = self;
        let count = hold.events(BATCH, |event| {
            let Event { key, ack, what } = event;
            let mut end =
                |mut connection: Connection, actions: &mut Vec<(FlowKey, Action)>, said: &mut Vec<Action>| {
                    connection.flow.closed(said);
                    if said.drain(..).any(|action| action == Action::Forget) {
                        keeper.forget(&key);
                    }
                    actions.retain(|(other, _)| *other != key);
                    stale.append(&mut connection.held.into());
                };
            match what {
                // A replica that may not send adopts nothing: another replica does.
                What::Parked { packet } => {
                    if let Some(closing) = closing.get_mut(&key) {
                        closing.acked = ack;
                    }
                    let service = services.get(&key.service());
                    if service.is_some_and(|service| service.may_send(leases)) {
                        parked(&key, packet);
                    }
                    return;
                }
                What::Opened { syn, syn_ack } => {
                    let tuple = Tuple { client: key.client(), service: key.service() };
                    // If the service was removed meanwhile, its connection is not held and ends
                    // like any other.
                    let settings = services.get(&tuple.service).map(|s| s.settings).unwrap_or_default();
                    // A former connection between the same addresses and ports: its end was not
                    // seen.
                    if let Some(before) = connections.remove(&key) {
                        end(before, actions, said);
                    }
                    let flow = match terminators.ports.contains(&tuple.service.port()) {
                        true => Flow::of_terminator(tuple, &settings),
                        false => Flow::new(tuple, &settings),
                    };
                    let mut connection = Connection::new(flow, syn, syn_ack, now, said);
                    connection.ask_later(&key, now, due);
                    connections.insert(key, connection);
                }
                What::Unnamed { seq, end: next, isn, base, adopted } => {
                    let tuple = Tuple { client: key.client(), service: key.service() };
                    let settings = services.get(&tuple.service).map(|s| s.settings).unwrap_or_default();
                    if let Some(before) = connections.remove(&key) {
                        end(before, actions, said);
                    }
                    // Malformed timestamps belong to no connection, so the data stays held.
                    let Some(handshake) = ts::handshake(base, isn, seq, now) else { return };
                    let mut connection = Connection::unnamed(tuple, &settings, handshake, seq, next, said);
                    connection.adopted = adopted;
                    connection.ask_later(&key, now, due);
                    connections.insert(key, connection);
                }
                What::Refused { seq } => {
                    refused.push((key, seq));
                    return;
                }
                What::Replaced => {
                    if let Some(before) = connections.remove(&key) {
                        end(before, actions, said);
                    }
                    return;
                }
                _ => {
                    let Some(connection) = connections.get_mut(&key) else {
                        match what {
                            // The BPF programs of another process made this handshake.
                            _ if !issuers.contains_key(&key.service()) => {}
                            What::Stamped { .. } => asked.push(key),
                            What::Fin { of_dead, .. } => ends.push(Ended { key, of_dead, is_reset: false }),
                            What::Aborted { of_dead } => ends.push(Ended { key, of_dead, is_reset: true }),
                            _ => {}
                        }
                        return;
                    };
                    if connection.ends(&what) {
                        if let Some(connection) = connections.remove(&key) {
                            end(connection, actions, said);
                        }
                        over.push((key, matches!(what, What::Reset { .. })));
                        return;
                    }
                    connection.flow.tick(now, said);
                    connection.hear(ack, &what, said);
                    let (ended, died) = match what {
                        // Resets of relayed connections come from this process, which announces
                        // them.
                        What::Aborted { of_dead } => (!connection.is_relayed(), of_dead),
                        What::Fin { of_dead, .. } => (connection.is_relayed(), of_dead),
                        _ => (false, false),
                    };
                    connection.died |= died;
                    if ended || died || connection.flow.ends_early() {
                        connection.note_early(&key, early);
                    }
                    connection.ask_later(&key, now, due);
                }
            }
            actions.extend(said.drain(..).map(|action| (key, action)));
        })?;
        for (key, is_reset) in over.drain(..) {
            // A new connection between the same addresses and ports may have begun since.
            let stamps = hold.programs.stamps();
            let is_named = issuers.contains_key(&key.service()) && stamps.named(&key)?.is_some();
            if connections.contains_key(&key) || is_named {
                continue;
            }
            hold.programs.free(&key)?;
            // Without a RST the kernel still has a FIN or an ACK to send.
            if is_reset {
                stamps.forget(&key)?;
            }
        }
        for frame in stale.drain(..) {
            hold.forget(frame);
        }
        Ok(count)
    }

    /// Processes the events since the last turn, for an action that depends on them. Parked packets
    /// wait for [`Watch::turn`].
    pub(super) fn catch_up(&mut self) -> Result<(), HoldError> {
        let mut waiting = std::mem::take(&mut self.waiting);
        let heard = self.hear_all(&mut |key, packet| {
            // A packet that is dropped here is retransmitted by its client.
            if waiting.len() < MAX_WAITING {
                waiting.push((*key, packet.to_vec()));
            }
        });
        self.waiting = waiting;
        heard?;
        self.act()
    }

    /// Processes a frame that is held.
    pub(super) fn answer(&mut self, frame: Frame) -> Result<(), HoldError> {
        let (key, now) = (*frame.key(), now_ms());
        let Some(connection) = self.connections.get_mut(&key) else {
            self.hold.send(frame);
            return Ok(());
        };
        if let Ok(Some(limits)) = self.hold.programs.limits(&key) {
            connection.flow.acknowledged(limits.acked);
        }
        connection.flow.tick(now, &mut self.said);
        connection.answer(&frame, &mut self.said);
        if connection.flow.ends_early() {
            connection.note_early(&key, &mut self.early);
        }
        connection.ask_later(&key, now, &mut self.due);
        self.actions.extend(self.said.drain(..).map(|action| (key, action)));
        connection.keep(frame, &mut self.hold);
        connection.release(&mut self.hold);
        self.act()
    }
}

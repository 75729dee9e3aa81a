//! A socket with its flow, and the result of a run.

use anyhow::anyhow;
use libcm::{Client, FlowId, Status, path};

use super::patience::Patience;
use crate::cm_udp::args::SendArgs;
use crate::cm_udp::failure::Failure;
use crate::cm_udp::flight::Flight;
use crate::cm_udp::outcome::{Calls, Outcome};
use crate::cm_udp::socket::{Clock, Socket, TURN};

/// A socket with its flow.
pub(super) struct Lane {
    pub(super) socket: Socket,
    pub(super) flow: FlowId,
    pub(super) flight: Flight,
}

impl Lane {
    pub(super) fn open(args: &SendArgs, client: &mut Client, connected: bool) -> Result<Lane, Failure> {
        let socket = Socket::new(args.to, connected, args.echo, args.size)?;
        let (key, mtu) = path::describe(&socket.udp, args.to)
            .map_err(|e| Failure::of(e, format!("there is no way to {}", args.to)))?;
        fits(args.size, mtu)?;
        let flow = client.open(&key, mtu)?;
        Ok(Lane { socket, flow, flight: Flight::new(args.size) })
    }

    /// Records that the next datagram is sent.
    pub(super) fn send(&mut self, clock: Clock) -> Result<(), Failure> {
        let number = self.flight.sent();
        self.flight.send(clock.now());
        self.socket.send(number)
    }

    /// Reports answers to the manager; returns whether there were any.
    pub(super) fn hear(
        &mut self,
        client: &mut Client,
        clock: Clock,
        patience: &mut Patience,
        calls: &mut Calls,
    ) -> Result<bool, Failure> {
        let mut heard = false;
        for _ in 0..TURN {
            let Some(number) = self.socket.answer()? else { break };
            heard = true;
            patience.reset();
            if let Some(update) = self.flight.answered(number, clock.now()) {
                client.update(self.flow, &update)?;
                calls.update += 1;
            }
        }
        Ok(heard)
    }

    /// Reports that all outstanding packets are lost.
    pub(super) fn expire(&mut self, client: &mut Client, calls: &mut Calls) -> Result<(), Failure> {
        if let Some(update) = self.flight.expired() {
            client.update(self.flow, &update)?;
            calls.update += 1;
        }
        Ok(())
    }
}

pub(super) fn fits(size: u32, mtu: u32) -> Result<(), Failure> {
    if size > mtu {
        return Err(Failure::Local(anyhow!(
            "--size {size}: packets to there have up to {mtu} bytes of payload"
        )));
    }
    Ok(())
}

/// The result of a run over these flows.
pub(super) fn outcome<'a>(
    client: &mut Client,
    flow: FlowId,
    flights: impl Iterator<Item = &'a Flight>,
    calls: Calls,
) -> Result<Outcome, Failure> {
    let status: Option<Status> = client.query(flow)?;
    let (mut arrived, mut lost, mut packets) = (0, 0, 0);
    for flight in flights {
        arrived += flight.arrived;
        lost += flight.lost;
        packets += flight.sent();
    }
    let (rate, rtt) = (status.map(|s| s.rate), status.map(|s| s.rtt));
    Ok(Outcome { arrived, lost, packets, answers: arrived, calls, rate, rtt, proxied: client.proxied() })
}

//! The style CM-UDP: datagrams wait in the library's queue.

use libcm::{Client, CmUdp, Event};

use super::lane::{Lane, fits, outcome};
use super::patience::Patience;
use crate::cm_udp::args::SendArgs;
use crate::cm_udp::failure::Failure;
use crate::cm_udp::flight::Flight;
use crate::cm_udp::outcome::{Calls, Outcome};
use crate::cm_udp::socket::{Clock, Socket, TURN};

/// Limit on the datagrams in the queue.
const QUEUE: usize = 64;

pub(super) fn run(args: &SendArgs, client: &mut Client) -> Result<Outcome, Failure> {
    let socket = Socket::new(args.to, true, args.echo, args.size)?;
    let copy = socket.udp.try_clone().map_err(|e| Failure::of(e, "cannot make a socket"))?;
    let mut udp = CmUdp::new(client, copy, args.to, QUEUE)?;
    fits(args.size, udp.mtu())?;
    let mut lane = Lane { socket, flow: udp.flow(), flight: Flight::new(args.size) };
    let mut patience = Patience::new(client, std::iter::once(&lane.socket));
    // The socket reports an absent receiver at the next send.
    let of = |e| match e {
        libcm::Error::Os { operation: "sending", error } => {
            Failure::of(error, format!("cannot send to {}", args.to))
        }
        e => Failure::from(e),
    };
    let (clock, mut calls) = (Clock::start(), Calls::default());
    let mut queued = 0;
    while !lane.flight.done(args.count) {
        let mut idle = true;
        while queued < args.count && udp.waiting() < QUEUE {
            udp.send(client, lane.socket.datagram(queued)).map_err(of)?;
            queued += 1;
        }
        for _ in 0..TURN {
            let Some(event) = client.poll()? else { break };
            idle = false;
            if !matches!(event, Event::Send(_)) {
                continue;
            }
            // The datagram is sent before this call returns, and its answer may already be there.
            let now = clock.now();
            if udp.granted(client).map_err(of)? {
                lane.flight.send(now);
            }
        }
        idle &= !lane.hear(client, clock, &mut patience, &mut calls)?;
        if idle && !patience.wait(&mut calls, args)? {
            lane.expire(client, &mut calls)?;
        }
    }
    outcome(client, lane.flow, std::iter::once(&lane.flight), calls)
}

//! Request and callback: a datagram is made when it may be sent (application level framing).

use libcm::{Client, Event};

use super::lane::{Lane, outcome};
use super::patience::Patience;
use crate::cm_udp::args::{SendArgs, Style};
use crate::cm_udp::failure::Failure;
use crate::cm_udp::outcome::{Calls, Outcome};
use crate::cm_udp::socket::{Clock, TURN};

pub(super) fn run(args: &SendArgs, client: &mut Client) -> Result<Outcome, Failure> {
    let connected = args.style == Style::Alf;
    let mut lane = Lane::open(args, client, connected)?;
    let mut patience = Patience::new(client, std::iter::once(&lane.socket));
    let (clock, mut calls) = (Clock::start(), Calls::default());
    client.request(lane.flow, 1)?;
    calls.request += 1;
    while !lane.flight.done(args.count) {
        let mut idle = true;
        for _ in 0..TURN {
            let Some(event) = client.poll()? else { break };
            idle = false;
            if !matches!(event, Event::Send(_)) {
                continue;
            }
            lane.send(clock)?;
            if !connected {
                client.notify(lane.flow, args.size)?;
                calls.notify += 1;
            }
            if lane.flight.sent() < args.count {
                client.request(lane.flow, 1)?;
                calls.request += 1;
            }
        }
        idle &= !lane.hear(client, clock, &mut patience, &mut calls)?;
        if idle && !patience.wait(&mut calls, args)? {
            lane.expire(client, &mut calls)?;
        }
    }
    outcome(client, lane.flow, std::iter::once(&lane.flight), calls)
}

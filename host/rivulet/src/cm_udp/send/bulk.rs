//! Bulk calls: many sockets with one call for their requests, and one for their feedback.

use libcm::{Client, Event, FlowId, Update};

use super::lane::{Lane, outcome};
use super::patience::Patience;
use crate::cm_udp::args::SendArgs;
use crate::cm_udp::failure::Failure;
use crate::cm_udp::flight::both;
use crate::cm_udp::outcome::{Calls, Outcome};
use crate::cm_udp::socket::{Clock, TURN};

/// Default number of sockets.
const FLOWS: u16 = 8;

pub(super) fn run(args: &SendArgs, client: &mut Client) -> Result<Outcome, Failure> {
    let count = args.flows.unwrap_or(FLOWS);
    let mut lanes = (0..count).map(|_| Lane::open(args, client, true)).collect::<Result<Vec<_>, _>>()?;
    let mut patience = Patience::new(client, lanes.iter().map(|lane| &lane.socket));
    let (clock, mut calls) = (Clock::start(), Calls::default());
    let (mut requests, mut feedback): (Vec<FlowId>, Vec<(FlowId, Update)>) = (vec![], vec![]);
    // A bulk call has a fixed number of entries, which all sockets share evenly.
    let each = TURN / lanes.len();
    requests.extend(lanes.iter().flat_map(|lane| std::iter::repeat_n(lane.flow, each)));
    let (mut asked, mut sent) = (0, 0);
    loop {
        // Requests are limited to the packets left to send.
        requests.truncate((args.count - sent - asked) as usize);
        if !requests.is_empty() {
            asked += requests.len() as u64;
            calls.request += 1;
            for result in client.bulk_request(&requests)? {
                result?;
            }
            requests.clear();
        }
        let mut idle = true;
        for _ in 0..TURN {
            let Some(event) = client.poll()? else { break };
            idle = false;
            let Event::Send(flow) = event else { continue };
            let Some(lane) = lanes.iter_mut().find(|lane| lane.flow == flow) else { continue };
            lane.send(clock)?;
            sent += 1;
            asked -= 1;
            requests.push(flow);
        }
        for lane in &mut lanes {
            let mut all = None;
            for _ in 0..TURN {
                if lane.flight.outstanding() == 0 {
                    break;
                }
                let Some(number) = lane.socket.answer()? else { break };
                idle = false;
                patience.reset();
                if let Some(update) = lane.flight.answered(number, clock.now()) {
                    all = Some(both(all, update));
                }
            }
            feedback.extend(all.map(|update| (lane.flow, update)));
        }
        if idle && !patience.wait(&mut calls, args)? {
            feedback.extend(lanes.iter_mut().filter_map(|l| Some((l.flow, l.flight.expired()?))));
        }
        if !feedback.is_empty() {
            calls.update += 1;
            for result in client.bulk_update(&feedback)? {
                result?;
            }
            feedback.clear();
        }
        if lanes.iter().map(|lane| lane.flight.arrived + lane.flight.lost).sum::<u64>() >= args.count {
            break;
        }
    }
    outcome(client, lanes[0].flow, lanes.iter().map(|lane| &lane.flight), calls)
}

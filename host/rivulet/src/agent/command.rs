//! The main loop of `rivulet agent`.

use std::time::{Duration, Instant};

use anyhow::Context;
use rivulet_agent::{Relay, RelayConfig};
use rivulet_pktio::Interface;

use super::args::{AgentArgs, user};
use super::beside;
use super::incarnation;
use super::plain::PlainTcp;
use super::predecessor::Predecessor;
use super::stand_in;
use super::tls_door;
use crate::process::{
    STARTING, before_other_threads, hide_memory, prefer_this_thread, raise_descriptors, stop_on_signals,
    stopped, tell_ready,
};
use crate::second_chance::SecondChance;
use crate::serve::ServiceAddresses;

/// Longest sleep, so that signals and updates are noticed in time.
const CHORES: Duration = Duration::from_millis(20);
/// Interval of checks of the interface, which may be replaced or get another Ethernet address.
const LOOK: Duration = Duration::from_millis(200);
/// Interval of reports on services that the kernel's TCP serves.
const REPORT: Duration = Duration::from_millis(100);

/// Runs until SIGTERM or SIGINT.
pub fn run(args: &AgentArgs) -> anyhow::Result<()> {
    stop_on_signals();
    let controllers = args.controller.controllers()?.context("--controller is missing")?;
    let interface = Interface::new(None, &args.interface)?;
    let link = rivulet_pktio::LinkInfo::of(&interface)?;
    let incarnation = incarnation::next(&args.socket, rivulet_server::incarnation());
    let mut plain = match args.plain_tcp {
        true => {
            let (path, wake) = (args.health_path.clone(), args.wake.into());
            let (programs, predecessor) =
                (beside(&args.socket, ".programs"), Predecessor::find(&args.socket));
            let door = (tls_door(&args.socket), args.user.as_deref().map(user).transpose()?);
            Some(PlainTcp::open(&interface, programs, incarnation.clone(), path, wake, predecessor, door)?)
        }
        false => None,
    };
    let relay = Relay::open(RelayConfig {
        name: args.name.clone(),
        controllers,
        mac: link.mac,
        incarnation: incarnation.own,
        socket: args.socket.clone(),
        owner: args.user.as_deref().map(user).transpose()?,
        keep: args.keep.clone(),
    })?;
    tracing::info!(name = args.name, socket = %args.socket.display(), "serving processes attach here");
    if plain.is_some() {
        hide_memory();
        raise_descriptors();
        prefer_this_thread();
        before_other_threads();
    }
    let mut second_chance = SecondChance::new(&interface);
    let mut addresses = ServiceAddresses::default();
    let mut reported = Instant::now();
    let (mut link, mut anew, mut looked) = (link, 0, Instant::now());
    let mut held = Vec::new();
    let (started, mut starting) = (Instant::now(), true);
    while !stopped() {
        // While the interface is gone, its last known state is kept.
        if looked.elapsed() > LOOK
            && let Ok(now) = rivulet_pktio::LinkInfo::of(&interface)
        {
            looked = Instant::now();
            if (now.index, now.mac) != (link.index, link.mac) {
                anew += u64::from(now.index != link.index);
                relay.set_mac(now.mac);
                if plain.is_some() {
                    second_chance.ensure(held.iter(), now.mac, anew);
                }
            }
            link = now;
        }
        while let Ok((version, services)) = relay.updates.try_recv() {
            for service in &services {
                let sockets: Vec<String> = service.sockets().map(|s| s.to_string()).collect();
                tracing::info!(version, service = service.name, addresses = sockets.join(" "), "holding");
            }
            for service in services.iter().filter(|_| args.setup_address) {
                // The service's health check fails then; the other services continue.
                if let Err(e) = addresses.ensure(&service.addresses) {
                    let error = format!("{e:#}");
                    tracing::error!(service = service.name, error, "its addresses are not on this host");
                }
            }
            if let Some(plain) = &mut plain {
                plain.replace(&services);
                second_chance.ensure(services.iter(), link.mac, anew);
            }
            held = services;
        }
        let is_ready = || plain.as_ref().is_none_or(|plain| relay.attached() > 0 || plain.status().ready);
        if starting && (is_ready() || started.elapsed() > STARTING) {
            starting = false;
            tell_ready();
        }
        match &mut plain {
            // An attached serving process sends heartbeats itself, from its packet path.
            Some(plain) if relay.attached() == 0 => {
                let pause = plain.turn(CHORES);
                if reported.elapsed() > REPORT {
                    reported = Instant::now();
                    relay.set_status(plain.status());
                }
                plain.wait(pause);
            }
            _ => std::thread::sleep(CHORES),
        }
    }
    tracing::info!("stopping");
    let Some(mut plain) = plain else { return Ok(()) };
    if plain.is_left_alone() {
        match stand_in::leave_behind(&mut plain, &args.interface, &args.socket, second_chance.body()) {
            Ok(()) => {
                tracing::info!(
                    "a stand-in sends heartbeats until the next agent starts: connections that cannot move stay here"
                );
                // The addresses stay, as after a kill; the next process takes them over.
                std::mem::forget(addresses);
                return Ok(());
            }
            Err(e) => tracing::warn!("no process sends heartbeats until the next agent starts: {e:#}"),
        }
    }
    plain.leave();
    Ok(())
}

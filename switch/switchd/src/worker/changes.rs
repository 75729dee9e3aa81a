//! Handles changes: commands of other threads, ports added and removed, links going up and down.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rivulet_p4rt::TraceReport;
use rivulet_pktio::monitor::{LinkEvent, LinkMonitor};

use super::{Captured, MONITORS, PORTS, Worker};
use crate::port::Port;
use crate::ports::Command;
use crate::processor::Processor;

impl<P: Processor> Worker<P> {
    pub(super) fn commands(&mut self) -> io::Result<()> {
        while let Ok(command) = self.inbox.commands.try_recv() {
            // The sender may not wait for the answer any more.
            match command {
                Command::Add(new, reply) => {
                    self.add(Port::new(*new))?;
                    let _ = reply.try_send(());
                }
                Command::Remove(number, reply) => {
                    let _ = reply.try_send(self.remove(number));
                }
                Command::Link(number, settings, reply) => {
                    let now = self.out.now;
                    let slot = self.out.slot(number);
                    let port = slot.and_then(|s| self.out.port(s));
                    let found = port.map(|p| p.set_link(now, settings)).is_some();
                    let _ = reply.try_send(found);
                }
                Command::Refresh(reply) => {
                    self.out.slots.iter_mut().flatten().for_each(Port::publish);
                    let _ = reply.try_send(());
                }
                Command::Trace(port, frame, dry_run, reply) => {
                    let clock = self.clock();
                    let mut captured = Captured(Vec::new());
                    let trace = if dry_run {
                        self.processor.dry_run(clock, port, &frame, &mut captured)
                    } else {
                        self.processor.process_traced(clock, port, &frame, &mut captured)
                    };
                    let json = serde_json::to_string(&trace).unwrap_or_default();
                    let report = TraceReport { text: trace.to_string(), json, outputs: captured.0 };
                    let _ = reply.try_send(report);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, port: Port) -> io::Result<()> {
        let slot = self.out.slots.iter().position(Option::is_none).unwrap_or(self.out.slots.len());
        if let Some(io) = &port.io {
            self.poller.add(io.as_fd(), PORTS + slot as u64, false)?;
            let netns = io.interface().netns().map(str::to_string);
            if !self.monitors.iter().any(|(ns, _)| *ns == netns) {
                match LinkMonitor::open(netns.as_deref()) {
                    Ok(monitor) => {
                        self.poller.add(monitor.as_fd(), MONITORS + self.monitors.len() as u64, false)?;
                        self.monitors.push((netns, monitor));
                    }
                    // Without a monitor, link state comes only from the ports' own sockets.
                    Err(e) => tracing::warn!("link state: {e}"),
                }
            }
        }
        if !self.quiet {
            tracing::info!("port {} added", port.number);
        }
        self.out.set_slot(port.number, Some(slot));
        if slot == self.out.slots.len() {
            self.out.slots.push(None);
        }
        self.out.slots[slot] = Some(port);
        // Query once more: the state may have changed before the monitor started.
        self.ask(slot);
        Ok(())
    }

    fn remove(&mut self, number: u32) -> Option<Box<dyn rivulet_pktio::PacketIo>> {
        let slot = self.out.slot(number)?;
        let mut port = self.out.slots[slot].take()?;
        self.out.set_slot(number, None);
        self.out.dirty.retain(|s| *s as usize != slot);
        if let Some(pcap) = &mut port.pcap {
            pcap.flush();
        }
        let io = port.io.take()?;
        if !port.gone {
            let _ = self.poller.remove(io.as_fd());
        }
        if !self.quiet {
            tracing::info!("port {number} removed");
        }
        Some(io)
    }

    /// Handles link events of the kernel.
    pub(super) fn link_events(&mut self) {
        for at in 0..self.monitors.len() {
            loop {
                let (netns, monitor) = &mut self.monitors[at];
                let netns = netns.clone();
                match monitor.next_event() {
                    Ok(Some(LinkEvent::Changed { name, .. } | LinkEvent::Removed { name, .. })) => {
                        for slot in 0..self.out.slots.len() {
                            if self.is_interface(slot, netns.as_deref(), &name) {
                                self.ask(slot);
                            }
                        }
                    }
                    Ok(Some(LinkEvent::Missed)) => (0..self.out.slots.len()).for_each(|slot| self.ask(slot)),
                    Ok(None) => break,
                    Err(e) => {
                        tracing::warn!("link state: {e}");
                        break;
                    }
                }
            }
        }
    }

    fn is_interface(&mut self, slot: usize, netns: Option<&str>, name: &str) -> bool {
        let io = self.out.port(slot).and_then(|p| p.io.as_ref());
        io.is_some_and(|io| io.interface().netns() == netns && io.interface().name() == name)
    }

    fn set_up(&mut self, slot: usize, up: bool) {
        let quiet = self.quiet;
        let Some(port) = self.out.port(slot).filter(|p| !p.gone) else { return };
        if port.shared.up.swap(up, Ordering::Relaxed) != up && !quiet {
            tracing::info!("port {}: link {}", port.number, if up { "up" } else { "down" });
        }
    }

    fn reopen_if_lost(&mut self, slot: usize) {
        let Some(port) = self.out.port(slot).filter(|p| p.gone) else { return };
        let number = port.number;
        let Some(io) = &mut port.io else { return };
        if io.reopen().is_err() {
            return;
        }
        let up = io.link().is_ok_and(|l| l.up);
        port.gone = false;
        if let Err(e) = self.poller.add(io.as_fd(), PORTS + slot as u64, false) {
            tracing::error!("port {number}: {e}");
        }
        if !self.quiet {
            tracing::info!("port {number}: interface is back");
        }
        self.set_up(slot, up);
    }

    /// Queries the state of a port's interface, and reopens it if it was recreated. (The
    /// interface's own socket may only report a deleted interface as down.)
    pub(super) fn ask(&mut self, slot: usize) {
        self.reopen_if_lost(slot);
        let link = self.out.port(slot).and_then(|p| p.io.as_ref()).map(|io| io.link());
        match link {
            Some(Ok(link)) => self.set_up(slot, link.up),
            Some(Err(e)) => {
                self.sending_failed(slot, &e);
                self.reopen_if_lost(slot);
            }
            None => {}
        }
    }
}

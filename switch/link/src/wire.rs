//! Joins two interfaces by a link in each direction.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rivulet_pktio::{IoError, PacketIo};

use crate::control::{ControlServer, TOKEN_BASE};
use crate::poll::{Poller, now, precise_timers, sleep_until};
use crate::{Link, LinkCounters, Settings};

/// Direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the first interface to the second.
    AToB,
    /// From the second to the first.
    BToA,
}

/// Both directions, in the order of their index.
pub const DIRECTIONS: [Direction; 2] = [Direction::AToB, Direction::BToA];

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Direction::AToB => "a-to-b",
            Direction::BToA => "b-to-a",
        })
    }
}

/// Settings of the process.
#[derive(Clone, Debug)]
pub struct WireOptions {
    /// Seed of all random choices; each direction derives its own.
    pub seed: u64,
    /// Shortest interval in ns between two wake-ups under load, so that many frames share one; it
    /// delays frames by at most this. The first frame after a pause is handled at once.
    pub quantum: u64,
    /// Nanoseconds between attempts to reopen an interface.
    pub retry: u64,
}

impl Default for WireOptions {
    fn default() -> Self {
        WireOptions { seed: 0, quantum: 50_000, retry: 200_000_000 }
    }
}

/// Why a wire stopped.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Waiting failed.
    #[error("epoll: {0}")]
    Poll(#[from] io::Error),
    /// An interface failed permanently.
    #[error(transparent)]
    Interface(#[from] IoError),
}

/// Batches received from one interface before the other one has its turn.
const TURNS: usize = 8;
const STOP: u64 = 2;
const CONTROL: u64 = 3;
/// Longest wait, so that counters and retries are checked.
const LONGEST_WAIT: u64 = 1_000_000_000;

/// Frames in the present and the previous millisecond, to decide whether to gather frames.
struct Load {
    /// Frames in a window from which gathering pays: one and a half per quantum; with fewer, a
    /// wake-up would find no more frames than without gathering.
    high: usize,
    since: u64,
    current: usize,
    last: usize,
}

impl Load {
    const WINDOW: u64 = 1_000_000;

    /// Gathers frames for this many nanoseconds; 0: never.
    fn new(quantum: u64) -> Load {
        let high = usize::try_from(3 * Self::WINDOW / (2 * quantum.max(1))).unwrap_or(usize::MAX);
        Load { high: high.max(2), since: 0, current: 0, last: 0 }
    }

    fn add(&mut self, time: u64, frames: usize) {
        if time >= self.since + Self::WINDOW {
            self.last = if time < self.since + 2 * Self::WINDOW { self.current } else { 0 };
            (self.since, self.current) = (time, 0);
        }
        self.current += frames;
    }

    fn is_high(&self) -> bool {
        self.current.max(self.last) >= self.high
    }
}

struct Port {
    io: Box<dyn PacketIo>,
    /// Time of the next attempt to reopen the interface.
    retry_at: Option<u64>,
}

/// Two ports and the links between them.
pub struct Wire {
    ports: [Port; 2],
    links: [Link; 2],
    options: WireOptions,
    poller: Poller,
}

impl Wire {
    /// Joins two interfaces; the settings are for a→b and b→a.
    pub fn new(
        ports: [Box<dyn PacketIo>; 2],
        settings: [Settings; 2],
        options: WireOptions,
    ) -> Result<Self, WireError> {
        let poller = Poller::new()?;
        for (token, port) in ports.iter().enumerate() {
            poller.add(port.as_fd(), token as u64, false)?;
        }
        let [ab, ba] = settings;
        let links = [Link::new(ab, options.seed), Link::new(ba, options.seed.wrapping_add(1))];
        let ports = ports.map(|io| Port { io, retry_at: None });
        Ok(Wire { ports, links, options, poller })
    }

    /// Settings of a direction.
    #[must_use]
    pub fn settings(&self, direction: Direction) -> &Settings {
        self.links[direction as usize].settings()
    }

    /// Changes the settings of a direction.
    pub fn set(&mut self, direction: Direction, settings: Settings) {
        self.links[direction as usize].set(now(), settings);
    }

    /// Counters of a direction.
    #[must_use]
    pub fn counters(&self, direction: Direction) -> LinkCounters {
        self.links[direction as usize].counters()
    }

    /// Frames that the kernel dropped before reception, by interface.
    pub fn receive_drops(&mut self) -> [u64; 2] {
        [0, 1].map(|i| self.ports[i].io.stats().rx_dropped)
    }

    /// Forwards frames until `stop` becomes readable. Calls `each_second` about once a second.
    pub fn run(
        &mut self,
        stop: BorrowedFd<'_>,
        mut control: Option<&mut ControlServer>,
        mut each_second: impl FnMut(&mut Wire),
    ) -> Result<(), WireError> {
        precise_timers();
        self.poller.add(stop, STOP, false)?;
        if let Some(server) = &control {
            self.poller.add(server.as_fd(), CONTROL, false)?;
        }
        let mut second = now() + LONGEST_WAIT;
        let mut woken = 0;
        let mut load = Load::new(self.options.quantum);
        loop {
            let mut time = now();
            if load.is_high() && time < woken + self.options.quantum {
                sleep_until(woken + self.options.quantum);
                time = now();
            }
            let deadline = self.next_time().min(second);
            let wait = deadline.saturating_sub(time);
            self.poller.wait(Some(Duration::from_nanos(wait)))?;
            woken = now();
            let mut commands = [None; 8];
            let mut n_commands = 0;
            for event in self.poller.events() {
                match event.token {
                    STOP => return Ok(()),
                    token if token >= CONTROL && n_commands < commands.len() => {
                        commands[n_commands] = Some(token);
                        n_commands += 1;
                    }
                    _ => {}
                }
            }
            let mut frames = self.deliver()?;
            for from in 0..2 {
                frames += self.receive(from, woken)?;
            }
            frames += self.deliver()?;
            load.add(woken, frames);
            if let Some(server) = control.as_deref_mut() {
                for token in commands.into_iter().flatten() {
                    self.serve(server, token)?;
                }
            }
            if woken >= second {
                second = woken + LONGEST_WAIT;
                each_second(self);
            }
        }
    }

    fn next_time(&self) -> u64 {
        let links = self.links.iter().filter_map(Link::next_time);
        let retries = self.ports.iter().filter_map(|p| p.retry_at);
        links.chain(retries).min().unwrap_or(u64::MAX)
    }

    /// Moves waiting frames from a port to its link; returns their number.
    fn receive(&mut self, from: usize, time: u64) -> Result<usize, WireError> {
        self.retry(from, time)?;
        let port = &mut self.ports[from];
        let mut total = 0;
        if port.retry_at.is_some() {
            return Ok(0);
        }
        for _ in 0..TURNS {
            match port.io.recv() {
                Ok(0) | Err(IoError::Down(_)) => break,
                Ok(n) => {
                    total += n;
                    // Not the wake-up time: a frame that arrived since, while this process waited
                    // for the processor, would leave too early.
                    let time = now();
                    for i in 0..n {
                        let frame = port.io.frame(i);
                        self.links[from].offer(time, frame.data, frame.checksum);
                    }
                }
                Err(IoError::Gone(_)) => {
                    self.lost(from, time)?;
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(total)
    }

    /// Sends frames at the links' ends; returns their number.
    fn deliver(&mut self) -> Result<usize, WireError> {
        let mut total = 0;
        for from in 0..2 {
            let time = now();
            if self.links[from].next_time().is_none_or(|t| t > time) {
                continue;
            }
            let to = 1 - from;
            match self.links[from].deliver(time, &mut *self.ports[to].io) {
                Ok(n) => total += n,
                Err(IoError::Down(_)) => {}
                Err(IoError::Gone(_)) => self.lost(to, time)?,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(total)
    }

    /// Handles the loss of an interface: removes it from the poll set (its socket reports errors
    /// permanently) and schedules a retry.
    fn lost(&mut self, index: usize, time: u64) -> Result<(), WireError> {
        let port = &mut self.ports[index];
        // Only once: frames sent to the lost interface fail again and again, and must not postpone
        // the retry.
        if port.retry_at.is_none() {
            self.poller.remove(port.io.as_fd())?;
            port.retry_at = Some(time + self.options.retry);
        }
        Ok(())
    }

    fn retry(&mut self, index: usize, time: u64) -> Result<(), WireError> {
        let port = &mut self.ports[index];
        if port.retry_at.is_none_or(|at| at > time) {
            return Ok(());
        }
        if port.io.reopen().is_ok() {
            port.retry_at = None;
            self.poller.add(port.io.as_fd(), index as u64, false)?;
        } else {
            port.retry_at = Some(time + self.options.retry);
        }
        Ok(())
    }

    /// Serves the control socket.
    fn serve(&mut self, server: &mut ControlServer, token: u64) -> Result<(), WireError> {
        if token == CONTROL {
            for (token, fd) in server.accept() {
                self.poller.add(fd, token, false)?;
            }
        } else if token >= TOKEN_BASE {
            server.serve(token, self);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fds = [0, 1].map(|i: usize| self.ports[i].io.as_fd().as_raw_fd());
        f.debug_struct("Wire").field("fds", &fds).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_gathered_if_a_quantum_has_several() {
        for (quantum, high) in [(50_000, 30), (250_000, 6), (1_000_000, 2), (0, usize::MAX)] {
            let mut load = Load::new(quantum);
            load.add(0, high.min(1 << 20) - 1);
            assert!(!load.is_high(), "{quantum}");
            load.add(500_000, 1);
            assert_eq!(load.is_high(), high < usize::MAX, "{quantum}");
            // Frames of the previous millisecond count in this one, but not longer.
            load.add(1_000_000, 0);
            assert_eq!(load.is_high(), high < usize::MAX, "{quantum}");
            load.add(2_000_000, 0);
            assert!(!load.is_high(), "{quantum}");
        }
    }
}

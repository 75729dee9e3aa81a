//! Heartbeats while there is no agent for a moment (`docs/moves.md`): the connections of a drained replica that cannot move go on
//! in its kernel, and need no agent; but a replica that is not heard is excluded, and nothing is handed to it any more.
//!
//! So the agent that ends leaves a process behind that sends what it would have sent, for a short time, until the next agent
//! tells it that it speaks itself. It is given the heartbeats, ready as they are, and no key: it can say nothing else, nor longer.
//! With it goes the second chance of plain TCP: the replica may be taken back as soon as the next agent is known, and its kernel
//! would reset clients of others.

use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use rivulet_pktio::guard::Table;
use rivulet_pktio::{Interface, PacketIo, TxFrame};
use rivulet_server::heartbeat::FRAME;

use super::beside;
use super::plain::PlainTcp;

/// For so long: an agent is upgraded and restarted in this time.
const STANDS: Duration = Duration::from_secs(20);
/// What the process behind says when it is there, and what it is told when it is not needed any more.
const THERE: u8 = b'+';
const OVER: u8 = b'.';
/// Before each frame, when it is due: microseconds.
const AT: usize = 4;

/// Sends heartbeats that it reads from standard input, for an agent that is being restarted.
#[derive(Args, Debug)]
pub struct StandInArgs {
    /// Interface towards the ToR
    #[arg(long)]
    interface: String,
    /// Where the next agent finds it
    #[arg(long)]
    socket: PathBuf,
}

/// Where the next agent finds who stands in for the one before.
fn door(socket: &Path) -> PathBuf {
    beside(socket, ".stand-in")
}

/// Leaves a process behind that sends heartbeats; none leaves this one after that. It sends them until the other is there, and
/// has these rules of nftables.
pub(super) fn leave_behind(
    plain: &mut PlainTcp,
    interface: &str,
    socket: &Path,
    rules: Option<&str>,
) -> anyhow::Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .args(["stand-in", "--interface", interface, "--socket"])
        .arg(door(socket))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the program")?;
    let (Some(mut frames), Some(mut said)) = (child.stdin.take(), child.stdout.take()) else {
        anyhow::bail!("no pipes");
    };
    let (tell, told) = channel();
    let (pid, rules) = (child.id(), rules.map(str::to_owned));
    std::thread::spawn(move || {
        let there = said.read_exact(&mut [0]);
        if let Some(Err(e)) = rules.map(|rules| Table::leave(pid, None, &rules)) {
            tracing::debug!(error = %e, "no second chance for plain TCP until the next agent is there");
        }
        tell.send(there)
    });
    let there = loop {
        let pause = plain.turn(Duration::from_millis(1));
        match told.recv_timeout(pause) {
            Ok(there) => break there,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(e) => anyhow::bail!(e),
        }
    };
    there.context("it did not begin")?;
    plain.ahead(STANDS, |at, frame| {
        let at = u32::try_from(at.as_micros()).unwrap_or(u32::MAX);
        frames.write_all(&at.to_ne_bytes())?;
        frames.write_all(frame)
    })?;
    Ok(())
}

/// Sends the heartbeats that come on standard input, each when it is due.
///
/// # Errors
/// There is no such interface, or the place of its socket cannot be had.
pub fn run(args: &StandInArgs) -> anyhow::Result<()> {
    // The agent before fills it.
    let _second_chance = Table::new(None);
    let mut io = rivulet_server::heartbeat::open(&Interface::new(None, &args.interface)?)?;
    // That of one before, which is over by now; nothing else.
    if std::fs::symlink_metadata(&args.socket).is_ok_and(|found| found.file_type().is_socket()) {
        let _ = std::fs::remove_file(&args.socket);
    }
    let listener = UnixListener::bind(&args.socket).context("the socket")?;
    listener.set_nonblocking(true)?;
    let frames = frames();
    let mut out = io::stdout();
    out.write_all(&[THERE]).and_then(|()| out.flush())?;
    let (mut began, mut next) = (None, None);
    while let Ok((at, frame)) = frames.recv() {
        let began = *began.get_or_insert_with(Instant::now);
        std::thread::sleep((began + at).saturating_duration_since(Instant::now()));
        if is_over(&listener, &mut next) {
            break;
        }
        // One that finds no room is one that did not come; the next one follows soon.
        let _ = io.send(&[TxFrame::new(&frame)]);
    }
    let _ = std::fs::remove_file(&args.socket);
    Ok(())
}

/// All frames as they come: whoever writes them does not wait until they are sent.
fn frames() -> Receiver<(Duration, [u8; FRAME])> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let (mut input, mut at, mut frame) = (io::stdin().lock(), [0; AT], [0; FRAME]);
        while input.read_exact(&mut at).and_then(|()| input.read_exact(&mut frame)).is_ok() {
            let due = Duration::from_micros(u32::from_ne_bytes(at).into());
            if send.send((due, frame)).is_err() {
                return;
            }
        }
    });
    receive
}

/// Whether the next agent said that it speaks itself. One that ends before is followed by another.
fn is_over(listener: &UnixListener, next: &mut Option<UnixStream>) -> bool {
    if let Ok((stream, _)) = listener.accept()
        && stream.set_nonblocking(true).is_ok()
    {
        *next = Some(stream);
    }
    let mut said = [0];
    match next.as_mut().map(|stream| stream.read(&mut said)) {
        Some(Ok(1)) => said == [OVER],
        Some(Ok(_)) => {
            *next = None;
            false
        }
        _ => false,
    }
}

/// Who stands in for the agent before this one.
#[derive(Debug)]
pub(super) struct Predecessor(UnixStream);

impl Predecessor {
    /// Whoever is there now.
    pub fn find(socket: &Path) -> Option<Predecessor> {
        UnixStream::connect(door(socket)).ok().map(Predecessor)
    }

    /// It is not needed any more.
    pub fn release(mut self) {
        // One that has ended meanwhile is not needed either.
        let _ = self.0.write_all(&[OVER]);
    }
}

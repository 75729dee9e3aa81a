//! Heartbeats while there is no agent for a moment (`docs/moves.md`): the connections of a drained replica that cannot move go on
//! in its kernel, and need no agent; but a replica that is not heard is excluded, and nothing is handed to it any more.
//!
//! So an agent that ends leaves a process behind that sends its heartbeats for a short time, until
//! the next agent reports that it sends its own. The process gets finished heartbeats and no key,
//! so it can send nothing different, and not for longer. The second chance of plain TCP ends with
//! it: the replica may be readmitted as soon as the next agent is known, and its kernel would reset
//! clients of others.

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

use super::plain::PlainTcp;
use super::predecessor::{OVER, door};

/// Lifetime of the process: an agent is upgraded and restarted in this time.
const STANDS: Duration = Duration::from_secs(20);
/// Byte on standard output: the process is there.
const THERE: u8 = b'+';
/// Bytes of the field before each frame: when the frame is due, microseconds.
const AT: usize = 4;

/// Sends heartbeats that it reads from standard input, for an agent that is being restarted.
#[derive(Args, Debug)]
pub struct StandInArgs {
    /// Interface towards the ToR
    #[arg(long)]
    interface: String,
    /// Path of the socket on which the next agent finds this process
    #[arg(long)]
    socket: PathBuf,
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
    // The socket of an earlier one, which has ended; only a socket is removed.
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
        // A heartbeat that finds no room in the send queue is dropped; the next one follows soon.
        let _ = io.send(&[TxFrame::new(&frame)]);
    }
    let _ = std::fs::remove_file(&args.socket);
    Ok(())
}

/// Reads all frames as they arrive, so that the writer need not wait until they are sent.
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

/// Whether the next agent reported that it sends heartbeats. If it ends before that, another one
/// follows.
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

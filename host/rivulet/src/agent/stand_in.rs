//! The stand-in process, which sends heartbeats while an agent is replaced (`docs/moves.md`). The
//! connections of a drained replica that cannot move continue in its kernel and need no agent; but
//! without heartbeats the ToR would exclude the replica and send it no segments.
//!
//! So an agent that ends leaves a stand-in behind, which sends heartbeats for a short time, until
//! the next agent reports that it sends its own. The stand-in gets finished heartbeats and no key,
//! so it cannot send others, or for longer. It also holds the nftables rules of the second chance
//! for plain TCP and removes them at its end: the replica may be readmitted as soon as the next
//! agent is known, and its kernel would reset clients of other replicas.

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
use rivulet_private_file::{SocketType, listen_at};
use rivulet_server::heartbeat::FRAME;

use super::plain::PlainTcp;
use super::predecessor::{OVER, door};

/// Lifetime of the stand-in: long enough to upgrade and restart an agent.
const STANDS: Duration = Duration::from_secs(20);
/// Byte on standard output which shows that the stand-in is ready.
const THERE: u8 = b'+';
/// Length of the field before each frame: when the frame is due, microseconds.
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

/// Starts a stand-in that sends these heartbeats and holds these nftables rules. It sends until the
/// next agent connects; this agent sends none after the call.
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
            tracing::debug!(error = %e, "no second chance for plain TCP until the next agent starts");
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
    there.context("the stand-in did not start")?;
    plain.ahead(STANDS, |at, frame| {
        let at = u32::try_from(at.as_micros()).unwrap_or(u32::MAX);
        frames.write_all(&at.to_ne_bytes())?;
        frames.write_all(frame)
    })?;
    Ok(())
}

/// Sends the heartbeats that arrive on standard input, each when it is due.
///
/// # Errors
/// The interface does not exist, or the socket's path cannot be used.
pub fn run(args: &StandInArgs) -> anyhow::Result<()> {
    // The former agent has filled this nftables table; it is removed at the end.
    let _second_chance = Table::new(None);
    let mut io = rivulet_server::heartbeat::open(&Interface::new(None, &args.interface)?)?;
    // Removes the socket of an earlier stand-in, which has ended; anything but a socket stays.
    if std::fs::symlink_metadata(&args.socket).is_ok_and(|found| found.file_type().is_socket()) {
        let _ = std::fs::remove_file(&args.socket);
    }
    let listener = listen_at(&args.socket, SocketType::STREAM).context("the socket")?;
    let listener = UnixListener::from(listener);
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

/// Whether the next agent reported that it sends heartbeats. If its connection ends before that, a
/// later agent may connect.
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

//! `rivulet run -- COMMAND`: runs an unmodified program with its TCP connections over Rivulet.
//!
//! The command runs with the shim preloaded; this process is its transport stack. It outlives the
//! command as long as some process still has a connection through it.

mod account;
mod call;
mod door;
mod filter;
mod opening;
mod pump;
mod shim;
mod watch;

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use opening::Opener;
use rivulet_client::{Config, IoChoice, Stack};

/// Limit on the received bytes of a connection that the program has not read: the window of a long,
/// fast path.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Runs a command with its TCP connections over Rivulet: `rivulet run -- curl http://...`
///
/// Programs that use the C library get a preloaded library; of those that do not, as static programs and those of Go, the
/// system calls are answered (seccomp), whatever starts them. A program that cannot be caught is named on standard error.
/// Connections to this machine's own addresses stay plain TCP.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// connect waits for the server's answer and returns its errors, as with TCP; this costs the
    /// round trip that is saved by sending the first data with the SYN
    #[arg(long)]
    pub wait: bool,

    /// Give each connection a separate window, as over TCP; by default those to one service share
    /// one connection, as its streams
    #[arg(long)]
    pub separate: bool,

    /// How connections are caught
    #[arg(long, value_enum, default_value_t = By::Auto)]
    pub by: By,

    /// How packets are sent and received: af_packet, af_xdp, or auto (AF_XDP where the interface
    /// allows it)
    #[arg(long, value_name = "MECHANISM", default_value_t)]
    pub io: IoChoice,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// How a program's connections are caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// By a preloaded library, and by their system calls for programs that do not use it
    Auto,
    /// By the preloaded library alone; programs that do not use it stay on plain TCP and are
    /// reported
    Shim,
}

/// Runs a command with its TCP connections over Rivulet; returns the exit code that a shell would
/// show.
pub fn run(args: &RunArgs) -> anyhow::Result<u8> {
    let (program, arguments) = args.command.split_first().context("no command given")?;
    let shim = shim::find_shim()?;
    let config = Config { receive_buffer: RECEIVE_BUFFER, ..Config::default() };
    let stack = Stack::with_io(config, args.io).context("the stack thread")?;
    stack.remember_for_user();
    let stack = if args.separate { stack.separate() } else { stack };
    let folder = door::folder().context("a folder for the stack's socket")?;
    let path = folder.path().join("stack");
    let opener = Arc::new(Opener::new(stack, args.wait));
    door::open(&path, opener.clone()).with_context(|| format!("{}", path.display()))?;

    let mut child = Command::new(program);
    child.args(arguments).env("LD_PRELOAD", preload(&shim)).env(rivulet_handoff::STACK_ENV, &path);
    // The child sends the descriptor through which this process receives its calls.
    let (from_child, to_parent) = UnixStream::pair().context("a socket pair")?;
    let mut filter = filter::program();
    let parent = std::process::id();
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe {
        child.pre_exec(move || {
            // Without its stack the command cannot continue: it gets SIGTERM when this process
            // dies.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            if libc::getppid() as u32 != parent {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            filter::install(&mut filter, &to_parent)
        });
    }
    ignore_terminal_signals();
    let spawned = child.spawn();
    // Closes this process's copy of the child's end, so that a child that sent nothing is not
    // waited for.
    drop(child);
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) => {
            eprintln!("rivulet run: {}: {e}", Path::new(program).display());
            return Ok(if e.kind() == io::ErrorKind::NotFound { 127 } else { 126 });
        }
    };
    let opens = args.by == By::Auto;
    let watch = match filter::receive(&from_child) {
        Ok(listener) => {
            Some(watch::start(listener, opener.clone(), opens).context("a thread for system calls")?)
        }
        Err(e) => {
            eprintln!(
                "rivulet run: system calls cannot be watched ({e}): programs that do not use the C library stay on \
                 plain TCP, and are not named"
            );
            None
        }
    };
    let status = child.wait().context("waiting for the command")?;
    // A child of the command may still have a connection.
    while opener.activity().open() > 0 && !opener.activity().idle_since(Duration::from_secs(30)) {
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some(watch) = watch {
        watch.end();
    }
    opener.end();
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128 + signal as u8,
        (None, None) => 1,
    })
}

/// Ctrl-C goes to the command; this process ends when the command does.
fn ignore_terminal_signals() {
    // SAFETY: sets the disposition of two signals. exec would keep "ignore" for the command, so a
    // handler that does nothing is set instead.
    unsafe {
        let nothing = nothing as extern "C" fn(libc::c_int) as usize;
        libc::signal(libc::SIGINT, nothing);
        libc::signal(libc::SIGQUIT, nothing);
    }
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// The value of LD_PRELOAD: the shim, then the libraries that are already in it.
fn preload(shim: &Path) -> OsString {
    let mut value = shim.as_os_str().to_owned();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}

//! The sender's TCP style, for comparison: one write for each packet, without Nagle's delay.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::anyhow;

use super::args::{SendArgs, Style};
use super::failure::Failure;
use super::outcome::{Calls, Outcome};
use super::wire::{HEAD, Head, Kind};

/// Time without progress after which the receiver counts as absent.
const PATIENCE: Duration = Duration::from_secs(10);
const BLOCK: usize = 1 << 16;

pub(super) fn send(args: &SendArgs) -> Result<Outcome, Failure> {
    let fail = |what: &str| {
        let what = format!("{what} {}", args.to);
        move |e| Failure::of(e, what)
    };
    let mut stream = connect(args)?;
    let total = args.count * u64::from(args.size);
    let kind = if args.echo { Kind::Echo } else { Kind::Bulk };
    stream.write_all(&Head { kind, number: total }.octets()).map_err(fail("cannot send to"))?;
    let copy = stream.try_clone().map_err(fail("cannot make a socket to"))?;
    let returned = std::thread::scope(|s| {
        // Returned data must be read meanwhile, or the receiver would stop reading.
        let reader = s.spawn(|| read(copy, if args.echo { total } else { 0 }));
        let packet = vec![0; args.size as usize];
        let written = (0..args.count).try_for_each(|_| stream.write_all(&packet));
        let written = written.and_then(|()| stream.shutdown(Shutdown::Write));
        let returned = reader.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        written.map_err(fail("cannot send to"))?;
        returned.map_err(fail("nothing more comes from"))
    })?;
    if returned != total {
        return Err(Failure::Receiver(anyhow!("{} received {returned} of {total} bytes", args.to)));
    }
    let info = info(&stream).map_err(fail("cannot look at the connection to"))?;
    Ok(Outcome {
        arrived: args.count,
        packets: u64::from(info.data_segs_out),
        answers: u64::from(info.segs_in),
        calls: Calls::default(),
        rtt: Some(u64::from(info.rtt) * 1000),
        ..Outcome::default()
    })
}

fn connect(args: &SendArgs) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect_timeout(&args.to, PATIENCE)
        .map_err(|e| Failure::of(e, format!("cannot connect to {}", args.to)))?;
    let local = |e| Failure::of(e, "cannot make a socket");
    stream.set_nodelay(true).map_err(local)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(local)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(local)?;
    if args.style == Style::TcpCm {
        rustix::net::sockopt::set_tcp_congestion(&stream, &args.congestion).map_err(|e| {
            let name = &args.congestion;
            Failure::Local(anyhow!(
                "no congestion control is called {name:?}: {e} (`rivulet cm load` adds ours, --congestion names it)"
            ))
        })?;
    }
    Ok(stream)
}

/// Reads `returned` bytes, then the number of bytes that the receiver reports.
fn read(mut stream: TcpStream, mut returned: u64) -> std::io::Result<u64> {
    let mut block = vec![0; BLOCK];
    while returned > 0 {
        let most = returned.min(BLOCK as u64) as usize;
        let got = match stream.read(&mut block[..most]) {
            // A socket with a timeout also returns this when the process was frozen or stopped; it
            // is no error of the connection.
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if got == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        returned -= got as u64;
    }
    let mut head = [0; HEAD];
    stream.read_exact(&mut head)?;
    match Head::parse(&head) {
        Some(Head { kind: Kind::Answer, number }) => Ok(number),
        _ => Err(std::io::ErrorKind::InvalidData.into()),
    }
}

/// The first fields of `struct tcp_info` (linux/tcp.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Info {
    flags: [u8; 8],
    words: [u32; 15],
    rtt: u32,
    more: [u32; 8],
    rates: [u64; 4],
    segs_out: u32,
    segs_in: u32,
    notsent: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
}

fn info(stream: &TcpStream) -> std::io::Result<Info> {
    let mut info = Info::default();
    let mut length = size_of::<Info>() as libc::socklen_t;
    // SAFETY: the value has the given size.
    let rc = unsafe {
        let value = (&raw mut info).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, value, &raw mut length)
    };
    if rc < 0 { Err(std::io::Error::last_os_error()) } else { Ok(info) }
}

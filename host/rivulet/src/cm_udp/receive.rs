//! The receiver: acknowledges or returns datagrams, and reads TCP connections for comparison.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::args::ReceiveArgs;
use super::failure::Failure;
use super::wire::{HEAD, Head, Kind, LARGEST};
use crate::process::{stop_on_signals, stopped, tell_ready};

/// Interval between checks for a stop signal.
const TICK: Duration = Duration::from_millis(200);
/// A TCP connection without progress for this time is closed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Limit on simultaneous TCP connections.
const CONNECTIONS: usize = 64;
/// Receive buffer requested for the UDP socket, bytes. The kernel may grant less.
const ROOM: usize = 8 << 20;
const BLOCK: usize = 1 << 16;

#[derive(Debug, Default)]
struct Counts {
    datagrams: AtomicU64,
    ignored: AtomicU64,
    connections: AtomicU64,
}

/// Serves until a signal ends it.
pub(super) fn run(args: &ReceiveArgs) -> Result<(), Failure> {
    let fail = |e| Failure::of(e, format!("cannot receive at {}", args.at));
    stop_on_signals();
    let udp = UdpSocket::bind(args.at).map_err(fail)?;
    // With port 0 the kernel chooses the UDP port; TCP listens at the same number.
    let at = SocketAddr::new(args.at.ip(), udp.local_addr().map_err(fail)?.port());
    let tcp = TcpListener::bind(at).map_err(fail)?;
    let counts = Arc::new(Counts::default());
    udp.set_read_timeout(Some(TICK)).map_err(fail)?;
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&udp, ROOM)
        .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(&udp, ROOM));
    let of = Arc::clone(&counts);
    // The thread is not joined: it ends with the process.
    thread::Builder::new().name("accept".into()).spawn(move || accept(&tcp, &of)).map_err(fail)?;
    eprintln!("receiving at {at}");
    tell_ready();
    datagrams(&udp, &counts).map_err(fail)?;
    let [datagrams, ignored, connections] =
        [&counts.datagrams, &counts.ignored, &counts.connections].map(|n| n.load(Ordering::Relaxed));
    println!("{datagrams} datagrams and {connections} connections; {ignored} datagrams were none of ours");
    Ok(())
}

fn datagrams(udp: &UdpSocket, counts: &Counts) -> io::Result<()> {
    let mut octets = vec![0; LARGEST];
    while !stopped() {
        let (length, from) = match udp.recv_from(&mut octets) {
            Ok(got) => got,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => continue,
            Err(e) => return Err(e),
        };
        let Some(answer) = answer(&mut octets[..length]) else {
            counts.ignored.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        counts.datagrams.fetch_add(1, Ordering::Relaxed);
        // A sender that the answer cannot reach treats the datagram as lost.
        let _ = udp.send_to(answer, from);
    }
    Ok(())
}

/// The answer to a datagram, never longer than the datagram. `None`: the datagram has no head of this
/// format, or is an answer itself.
fn answer(datagram: &mut [u8]) -> Option<&[u8]> {
    let Head { kind, number } = Head::parse(datagram)?;
    let length = match kind {
        Kind::Bulk => HEAD,
        Kind::Echo => datagram.len(),
        Kind::Answer => return None,
    };
    datagram[..HEAD].copy_from_slice(&Head { kind: Kind::Answer, number }.octets());
    Some(&datagram[..length])
}

fn accept(tcp: &TcpListener, counts: &Arc<Counts>) {
    // Counts the open connections: each connection's thread holds a clone.
    let places = Arc::new(());
    loop {
        let stream = match tcp.accept() {
            Ok((stream, _)) => stream,
            Err(e) => {
                eprintln!("cm-udp: connections cannot be accepted: {e}");
                thread::sleep(TICK);
                continue;
            }
        };
        if Arc::strong_count(&places) > CONNECTIONS {
            eprintln!("cm-udp: {CONNECTIONS} connections are open: another one was refused");
            continue;
        }
        counts.connections.fetch_add(1, Ordering::Relaxed);
        let place = Arc::clone(&places);
        let serve = move || {
            let _place = place;
            if let Err(e) = connection(stream) {
                eprintln!("cm-udp: a connection ended: {e}");
            }
        };
        if let Err(e) = thread::Builder::new().name("connection".into()).spawn(serve) {
            eprintln!("cm-udp: no thread for a connection: {e}");
        }
    }
}

/// Reads the number of bytes in the head, sends them back if the kind is `Echo`, and last sends the
/// number of bytes read.
fn connection(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut head = [0; HEAD];
    stream.read_exact(&mut head)?;
    let (echo, total) = match Head::parse(&head) {
        Some(Head { kind: Kind::Bulk, number }) => (false, number),
        Some(Head { kind: Kind::Echo, number }) => (true, number),
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "it did not begin as one of ours does")),
    };
    let mut block = vec![0; BLOCK];
    let mut got = 0;
    while got < total {
        let most = (total - got).min(BLOCK as u64) as usize;
        let length = match stream.read(&mut block[..most]) {
            Ok(0) => break,
            Ok(length) => length,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        got += length as u64;
        if echo {
            stream.write_all(&block[..length])?;
        }
    }
    stream.write_all(&Head { kind: Kind::Answer, number: got }.octets())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_not_longer_than_its_request() {
        let ask = |kind| [&Head { kind, number: 77 }.octets()[..], &[9; 84]].concat();
        let answer_head = Head { kind: Kind::Answer, number: 77 }.octets();
        assert_eq!(answer(&mut ask(Kind::Bulk)), Some(&answer_head[..]));
        assert_eq!(answer(&mut ask(Kind::Echo)), Some(&[&answer_head[..], &[9; 84]].concat()[..]));
        assert_eq!(answer(&mut ask(Kind::Answer)), None);
        assert_eq!(answer(&mut [7; 100]), None);
        assert_eq!(answer(&mut []), None);
    }
}

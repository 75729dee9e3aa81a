//! TCP queries for answers that do not fit a datagram, outside of the packet path: a few threads,
//! each with one connection to the back end, and a bounded queue.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

/// Number of threads, each with a connection to the back end.
const THREADS: usize = 4;
/// Maximum number of queued queries.
const WAITING: usize = 64;
/// Timeout of an exchange.
const LIMIT: Duration = Duration::from_secs(2);

/// A query of a request.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) lane: u16,
    pub(super) ticket: u64,
    /// Its index in the request.
    pub(super) number: usize,
    /// The message as sent by the client.
    pub(super) query: Vec<u8>,
}

/// A query, and the received message if there is one.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) job: Job,
    pub(super) answer: Option<Vec<u8>>,
}

/// The threads. They end when this is dropped, after the current exchange.
#[derive(Debug)]
pub(super) struct ByTcp {
    jobs: SyncSender<Job>,
    done: Receiver<Done>,
    wake: Arc<OwnedFd>,
}

impl ByTcp {
    pub(super) fn start(address: SocketAddr) -> io::Result<ByTcp> {
        let (jobs, waiting) = sync_channel(WAITING);
        let (results, done) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..THREADS {
            let (waiting, results, wake) = (waiting.clone(), results.clone(), wake.clone());
            std::thread::Builder::new()
                .name("dns-by-tcp".into())
                .stack_size(256 << 10)
                .spawn(move || work(address, &waiting, &results, &wake))?;
        }
        Ok(ByTcp { jobs, done, wake })
    }

    /// Queues a query; false if the queue is full.
    pub(super) fn ask(&self, job: Job) -> bool {
        self.jobs.try_send(job).is_ok()
    }

    /// Takes a finished query.
    pub(super) fn next(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    /// Readable when a query is finished, until this call.
    pub(super) fn clear_event(&self) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
    }
}

impl AsFd for ByTcp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

fn work(address: SocketAddr, waiting: &Mutex<Receiver<Job>>, results: &Sender<Done>, wake: &OwnedFd) {
    let mut stream = None;
    loop {
        // One thread waits on the channel, the others on the lock.
        let Ok(job) = waiting.lock().recv() else { return };
        let answer = exchange(address, &mut stream, &job.query);
        if let Err(e) = &answer {
            tracing::debug!(back_end = %address, error = %e, "DNS query by TCP failed");
        }
        if results.send(Done { job, answer: answer.ok() }).is_err() {
            return;
        }
        let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    }
}

/// Sends a query on the open connection, or on a new one if that was closed.
fn exchange(address: SocketAddr, open: &mut Option<TcpStream>, query: &[u8]) -> io::Result<Vec<u8>> {
    let until = Instant::now() + LIMIT;
    if let Some(mut stream) = open.take()
        && let Ok(answer) = talk(&mut stream, query, until)
    {
        *open = Some(stream);
        return Ok(answer);
    }
    let mut stream = TcpStream::connect_timeout(&address, left(until)?)?;
    stream.set_nodelay(true)?;
    let answer = talk(&mut stream, query, until)?;
    *open = Some(stream);
    Ok(answer)
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn talk(stream: &mut TcpStream, query: &[u8], until: Instant) -> io::Result<Vec<u8>> {
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.set_write_timeout(Some(left(until)?))?;
    // In one segment (RFC 7766 section 8).
    stream.write_all(&[&length.to_be_bytes(), query].concat())?;
    let mut length = [0; 2];
    fill(stream, &mut length, until)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    fill(stream, &mut answer, until)?;
    // After a mismatch all later answers would be off by one, so the connection is not reused.
    match rivulet_plain::dns::is_answer(query, &answer) {
        true => Ok(answer),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Reads until the buffer is full or the deadline passes, however slowly the bytes arrive.
fn fill(stream: &mut TcpStream, mut to: &mut [u8], until: Instant) -> io::Result<()> {
    while !to.is_empty() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(to) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => to = &mut to[n..],
            // Not an error of the connection: a socket with a timeout also returns EINTR when the
            // process was frozen or stopped.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rivulet_pktio::testing::under_signals;

    use super::*;

    #[test]
    fn exchange_survives_interrupted_calls() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // example.org. A IN
        let query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut asked = vec![0; 2 + query.len()];
            stream.read_exact(&mut asked).unwrap();
            asked[4] |= 0x80;
            for byte in asked {
                std::thread::sleep(Duration::from_millis(5));
                stream.write_all(&[byte]).unwrap();
            }
        });
        let answer = under_signals(|| exchange(address, &mut None, query)).unwrap();
        assert_eq!(answer[3..], query[3..]);
        server.join().unwrap();
    }
}

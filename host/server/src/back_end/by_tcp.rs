//! Queries that no datagram holds the answer to, asked by TCP, beside the packet path: a few threads, each with one connection
//! to the back end, and a bounded number of queries that wait for them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

/// Threads, and connections to the back end.
const THREADS: usize = 4;
/// Queries that wait.
const WAITING: usize = 64;
/// How long an exchange may take.
const LIMIT: Duration = Duration::from_secs(2);

/// A query of a request.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) lane: u16,
    pub(super) ticket: u64,
    /// Its number in the request.
    pub(super) number: usize,
    /// The message as the client sent it.
    pub(super) query: Vec<u8>,
}

/// A query, and the message that came back, if one did.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) job: Job,
    pub(super) answer: Option<Vec<u8>>,
}

/// The threads. They end when this is dropped, and what they are at is done.
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

    /// False if too many wait.
    pub(super) fn ask(&self, job: Job) -> bool {
        self.jobs.try_send(job).is_ok()
    }

    /// What is done.
    pub(super) fn next(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    /// Readable when something is done, until this.
    pub(super) fn heard(&self) {
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
        // One waits at the channel, the others at the lock.
        let Ok(job) = waiting.lock().recv() else { return };
        let answer = exchange(address, &mut stream, &job.query);
        if let Err(e) = &answer {
            tracing::debug!(back_end = %address, error = %e, "DNS by TCP");
        }
        if results.send(Done { job, answer: answer.ok() }).is_err() {
            return;
        }
        let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    }
}

/// Asks on the connection that is open, or if it has ended since, on another one.
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
    // An answer to something else would be one behind for ever after: the connection is not used again.
    match rivulet_plain::dns::is_answer(query, &answer) {
        true => Ok(answer),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Reads until the buffer is full or the time has come, however slowly the octets come.
fn fill(stream: &mut TcpStream, mut to: &mut [u8], until: Instant) -> io::Result<()> {
    while !to.is_empty() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(to) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => to = &mut to[n..],
            // Not an error of the connection: a socket with a timeout reports it also when the process was frozen or stopped.
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

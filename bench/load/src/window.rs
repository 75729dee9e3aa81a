//! Goodput within a time window: bytes count when they arrive, also those of requests that do not end in the
//! window.
//!
//! With a thousand clients on a slow link a request takes longer than a run, so complete answers would
//! measure the begin and the end of the run.

use std::io::{self, Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rivulet_load::report::Outcome;

/// Bytes and failures of each client, as they happen.
pub struct Window {
    clients: Vec<Client>,
    /// Set at the end of the window, which cuts off the requests that then fail.
    pub over: AtomicBool,
}

#[derive(Default)]
struct Client {
    bytes: AtomicU64,
    errors: AtomicU64,
    first_error: Mutex<Option<String>>,
}

impl Window {
    /// Counts for this many clients.
    pub fn new(clients: u32) -> Window {
        Window { clients: (0..clients).map(|_| Client::default()).collect(), over: AtomicBool::new(false) }
    }

    /// A client's request failed.
    pub fn fail(&self, client: usize, error: &anyhow::Error) {
        if self.over.load(Relaxed) {
            return;
        }
        if let Some(client) = self.clients.get(client) {
            client.errors.fetch_add(1, Relaxed);
            if let Ok(mut first) = client.first_error.lock() {
                first.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }

    /// A connection that counts its bytes for a client.
    pub fn count<C: Read + Write>(&self, client: usize, connection: C) -> Counted<'_, C> {
        Counted { connection, bytes: self.clients.get(client).map(|c| &c.bytes) }
    }

    /// Waits until the window has passed, `warm` to `seconds` from now; returns each client's bytes in it,
    /// and its length.
    pub fn watch(&self, warm: f64, seconds: f64) -> (Vec<Outcome>, Duration) {
        std::thread::sleep(Duration::from_secs_f64(warm.max(0.0)));
        let before: Vec<u64> = self.clients.iter().map(|c| c.bytes.load(Relaxed)).collect();
        let began = Instant::now();
        std::thread::sleep(Duration::from_secs_f64((seconds - warm).max(0.0)));
        let after: Vec<u64> = self.clients.iter().map(|c| c.bytes.load(Relaxed)).collect();
        let took = began.elapsed();
        self.over.store(true, Relaxed);
        let outcome = |(client, (before, after)): (&Client, (u64, u64))| Outcome {
            bytes: after - before,
            errors: client.errors.load(Relaxed),
            first_error: client.first_error.lock().ok().and_then(|first| first.clone()),
            ..Outcome::default()
        };
        (self.clients.iter().zip(before.into_iter().zip(after)).map(outcome).collect(), took)
    }
}

/// Counts the bytes that are read.
pub struct Counted<'a, C> {
    connection: C,
    bytes: Option<&'a AtomicU64>,
}

impl<C: Read> Read for Counted<'_, C> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.connection.read(buffer)?;
        if let Some(bytes) = self.bytes {
            bytes.fetch_add(count as u64, Relaxed);
        }
        Ok(count)
    }
}

impl<C: Write> Write for Counted<'_, C> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.connection.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.connection.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_before_window_do_not_count() {
        let window = Window::new(2);
        let mut buffer = [0; 64];
        let mut early = window.count(0, io::Cursor::new(vec![0u8; 40]));
        assert_eq!(early.read(&mut buffer).unwrap(), 40);
        let (outcomes, took) = std::thread::scope(|scope| {
            scope.spawn(|| {
                // The window is open by then, even on a busy machine, and remains open for much longer.
                std::thread::sleep(Duration::from_millis(600));
                let mut late = window.count(1, io::Cursor::new(vec![0u8; 30]));
                assert_eq!(late.read(&mut [0; 64]).unwrap(), 30);
                window.fail(1, &anyhow::anyhow!("first"));
                window.fail(1, &anyhow::anyhow!("second"));
            });
            window.watch(0.0, 3.0)
        });
        assert_eq!(outcomes.iter().map(|o| (o.bytes, o.errors)).collect::<Vec<_>>(), [(0, 0), (30, 2)]);
        assert_eq!(outcomes[1].first_error.as_deref(), Some("first"));
        assert!(took >= Duration::from_secs(3));
        // Requests cut off by the end have not failed.
        window.fail(0, &anyhow::anyhow!("cut off"));
        assert_eq!(window.watch(0.0, 0.0).0[0].errors, 0);
    }
}

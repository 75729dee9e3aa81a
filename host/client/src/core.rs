//! State shared by all handles and streams of a stack. The stack thread ends when the last of them
//! is dropped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rivulet_pktio::IoChoice;
use rivulet_transport::client::Config;

use crate::connection::Permit;
use crate::destinations::Destinations;
use crate::driver::{Driver, NewConnection};
use crate::error::{ConnectError, MAX_CONNECTIONS};
use crate::interfaces::Interfaces;
use crate::mailbox::Mailbox;
use crate::services::Services;

/// A stack thread and what is needed to open connections on it.
pub(crate) struct Core {
    pub mailbox: Arc<Mailbox>,
    pub interfaces: Interfaces,
    pub destinations: Destinations,
    pub config: Config,
    pub services: Services,
    opened: Sender<NewConnection>,
    /// Each connection holds a clone, and so does each stream beyond a connection's first one.
    permits: Permit,
    last_id: AtomicU32,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Core {
    /// Starts the thread.
    pub fn start(config: Config, io: IoChoice) -> io::Result<Core> {
        let mailbox = Arc::new(Mailbox::new()?);
        let interfaces = Interfaces::new(io);
        let destinations = Destinations::default();
        let (opened, receiver) = channel();
        let driver = Driver::new(mailbox.clone(), interfaces.clone(), destinations.clone(), receiver);
        let thread = std::thread::Builder::new().name("rivulet-stack".into()).spawn(move || driver.run())?;
        let (permits, last_id, thread) = (Arc::default(), AtomicU32::new(0), Mutex::new(Some(thread)));
        let services = Services::default();
        Ok(Core { mailbox, interfaces, destinations, config, services, opened, permits, last_id, thread })
    }

    /// Takes a permit for one more connection or stream; fails at [`MAX_CONNECTIONS`].
    pub fn permit(&self) -> Result<Permit, ConnectError> {
        let permit = self.permits.clone();
        // `self.permits` is one of the references counted.
        if Arc::strong_count(&permit) > MAX_CONNECTIONS + 1 { Err(ConnectError::TooMany) } else { Ok(permit) }
    }

    /// The number of the next connection.
    pub fn next_id(&self) -> u32 {
        self.last_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Hands a connection to the stack thread.
    pub fn open(&self, opened: NewConnection) -> Result<(), ConnectError> {
        self.opened.send(opened).map_err(|_| ConnectError::Ended)?;
        self.mailbox.bell.ring();
        Ok(())
    }
}

impl Core {
    /// Ends the thread after it has closed the connections without streams. In a `hurry` it waits
    /// only for those that return their window, which takes one round trip.
    pub fn end(&self, hurry: bool) {
        self.mailbox.hurry.store(hurry, Ordering::Relaxed);
        self.mailbox.stop.store(true, Ordering::Release);
        self.mailbox.bell.ring();
        if let Some(thread) = self.thread.lock().take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
            self.destinations.save();
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.end(false);
    }
}

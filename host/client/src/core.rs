//! What a stack's handles and its streams hold in common. The stack thread ends with the last of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rivulet_pktio::IoChoice;
use rivulet_transport::client::Config;

use crate::connection::Place;
use crate::destinations::Destinations;
use crate::driver::{Driver, Opened};
use crate::error::{ConnectError, MAX_CONNECTIONS};
use crate::interfaces::Interfaces;
use crate::mailbox::Mailbox;
use crate::services::Services;

/// A stack thread, and what connections are made with.
pub(crate) struct Core {
    pub mailbox: Arc<Mailbox>,
    pub interfaces: Interfaces,
    pub destinations: Destinations,
    pub config: Config,
    pub services: Services,
    opened: Sender<Opened>,
    /// Every connection that the stack carries has one, and every stream that one did not begin with.
    places: Place,
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
        let (places, last_id, thread) = (Arc::default(), AtomicU32::new(0), Mutex::new(Some(thread)));
        let services = Services::default();
        Ok(Core { mailbox, interfaces, destinations, config, services, opened, places, last_id, thread })
    }

    /// A place for one more connection or stream, if the stack has one.
    pub fn place(&self) -> Result<Place, ConnectError> {
        let place = self.places.clone();
        // Our own is one of them.
        if Arc::strong_count(&place) > MAX_CONNECTIONS + 1 { Err(ConnectError::TooMany) } else { Ok(place) }
    }

    /// The number of the next connection.
    pub fn next_id(&self) -> u32 {
        self.last_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Hands a connection to the stack thread.
    pub fn open(&self, opened: Opened) -> Result<(), ConnectError> {
        self.opened.send(opened).map_err(|_| ConnectError::Ended)?;
        self.mailbox.bell.ring();
        Ok(())
    }
}

impl Core {
    /// Ends the thread, once connections that nobody uses have said so; in a `hurry` only those
    /// are waited for that give a window back, which takes a round trip.
    pub fn end(&self, hurry: bool) {
        self.mailbox.hurry.store(hurry, Ordering::Relaxed);
        self.mailbox.stop.store(true, Ordering::Release);
        self.mailbox.bell.ring();
        if let Some(thread) = self.thread.lock().take() {
            // A panic there was reported when it happened.
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

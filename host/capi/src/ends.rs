//! Maps descriptors to servers and clients, and keeps each thread's last error.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use rivulet_agent::{Agent, PendingUpdate, Status};
use rivulet_server::Server;

use crate::client::Client;
use crate::event::Event;
use crate::readiness::Readiness;

/// A server and its event queue.
pub struct Serving {
    /// The server.
    pub server: Server,
    /// Events not yet returned to C; boxed, because C gets them as pointers.
    #[expect(clippy::vec_box, reason = "handed to C as pointers")]
    pub waiting: Vec<Box<Event>>,
    /// Events that C holds.
    pub out: Vec<*mut Event>,
    /// Source of services and keys; `None` if they come from a file.
    agent: Option<Agent>,
    due: PendingUpdate,
    status: Status,
    readiness: Readiness,
}

impl Serving {
    pub fn new(server: Server, agent: Option<Agent>) -> io::Result<Serving> {
        let readiness = Readiness::new()?;
        let mut serving = Serving {
            server,
            waiting: Vec::new(),
            out: Vec::new(),
            agent,
            due: PendingUpdate::default(),
            status: Status::default(),
            readiness,
        };
        serving.update_readiness()?;
        Ok(serving)
    }

    /// The descriptor that the program polls.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.readiness.descriptor()
    }

    /// Updates the descriptor's readiness. Call it after every change of the queue or the socket.
    pub fn update_readiness(&mut self) -> io::Result<()> {
        let (fd, events) = self.server.awaited();
        self.readiness.update(fd, events, !self.waiting.is_empty())
    }

    /// Applies updates of the agent and reports this server's status to it.
    pub fn apply_updates(&mut self) {
        let Some(agent) = &self.agent else { return };
        if let Some((version, services)) = self.due.take(&agent.updates) {
            match self.server.replace(services.clone()) {
                Ok(()) => (self.status.version, self.status.error) = (version, String::new()),
                Err(e) => {
                    self.status.error = e.to_string();
                    self.due.again(version, services);
                }
            }
        }
        let counters = self.server.counters();
        self.status.ready = self.server.is_ready();
        let reason = if self.status.ready { "" } else { "nothing to serve, or the interface is down" };
        self.status.reason = reason.into();
        self.status.load = self.server.load() as u32;
        (self.status.requests, self.status.refused) = (counters.requests, counters.refused_total());
        agent.set_mac(self.server.mac());
        agent.set_status(&self.status);
    }
}

// SAFETY: the pointers are boxes held by the C side; the header allows one thread at a time.
unsafe impl Send for Serving {}

/// What a descriptor refers to.
#[derive(Clone)]
pub enum End {
    /// Made by `msk_listen`.
    Server(Arc<Mutex<Serving>>),
    /// Made by `msk_connect`.
    Client(Arc<Client>),
}

static ENDS: LazyLock<Mutex<HashMap<i32, (OwnedFd, End)>>> = LazyLock::new(Mutex::default);

thread_local! {
    static ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// Stores an error and returns -1.
pub fn fail(errno: i32, text: &dyn std::fmt::Display) -> i32 {
    let text = text.to_string().replace('\0', " ");
    ERROR.with(|error| *error.borrow_mut() = CString::new(text).unwrap_or_default());
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The last error of this thread.
pub fn error() -> *const libc::c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}

/// Registers a server or client under its descriptor.
pub fn add(fd: OwnedFd, end: End) -> i32 {
    use std::os::fd::AsRawFd;
    let number = fd.as_raw_fd();
    ENDS.lock().insert(number, (fd, end));
    number
}

/// Looks up a descriptor.
pub fn get(fd: i32) -> Option<End> {
    ENDS.lock().get(&fd).map(|(_, end)| end.clone())
}

/// Removes a descriptor; its last user drops the server or client.
pub fn remove(fd: i32) -> Option<End> {
    ENDS.lock().remove(&fd).map(|(_, end)| end)
}

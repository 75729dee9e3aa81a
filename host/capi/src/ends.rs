//! Descriptors and what stands behind them; errors in words.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use rivulet_agent::{Agent, Due, Status};
use rivulet_server::Server;

use crate::client::Client;
use crate::event::Event;
use crate::readiness::Readiness;

/// A server and its queue.
pub struct Serving {
    /// The server.
    pub server: Server,
    /// Events not handed out yet; boxes, because C gets them as they are.
    #[expect(clippy::vec_box, reason = "handed to C as pointers")]
    pub waiting: Vec<Box<Event>>,
    /// Events that C has.
    pub out: Vec<*mut Event>,
    /// Where services and keys come from; none with those of a file.
    agent: Option<Agent>,
    due: Due,
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
            due: Due::default(),
            status: Status::default(),
            readiness,
        };
        serving.tell()?;
        Ok(serving)
    }

    /// What the program polls.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.readiness.descriptor()
    }

    /// To be called after everything that may change what is to be waited for.
    pub fn tell(&mut self) -> io::Result<()> {
        let (fd, events) = self.server.awaited();
        self.readiness.update(fd, events, !self.waiting.is_empty())
    }

    /// Takes up what the agent gave, and says how this server is.
    pub fn hear(&mut self) {
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

// SAFETY: the pointers are boxes given to the C side; the header allows one thread at a time.
unsafe impl Send for Serving {}

/// What a descriptor is.
#[derive(Clone)]
pub enum End {
    /// Of `msk_listen`.
    Server(Arc<Mutex<Serving>>),
    /// Of `msk_connect`.
    Client(Arc<Client>),
}

static ENDS: LazyLock<Mutex<HashMap<i32, (OwnedFd, End)>>> = LazyLock::new(Mutex::default);

thread_local! {
    static ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// Notes an error and gives the -1 that goes with it.
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

/// Registers an end under its descriptor.
pub fn add(fd: OwnedFd, end: End) -> i32 {
    use std::os::fd::AsRawFd;
    let number = fd.as_raw_fd();
    ENDS.lock().insert(number, (fd, end));
    number
}

/// The end behind a descriptor.
pub fn get(fd: i32) -> Option<End> {
    ENDS.lock().get(&fd).map(|(_, end)| end.clone())
}

/// Forgets a descriptor; the end itself goes with its last user.
pub fn remove(fd: i32) -> Option<End> {
    ENDS.lock().remove(&fd).map(|(_, end)| end)
}

//! Digests of objects: whether two servers have the same bytes under one name.
//!
//! A server describes an object by entity tag and length, and two servers may give both for
//! different bytes: `cp -p`, `rsync` after an edit, and reproducible builds leave files of equal
//! time and length. So a replica requests each object that it protects from its local server, once
//! and slowly, and keeps a digest of all bytes. The record of a connection has this digest, and a
//! replica that adopts the connection compares it with its own ([`Digests::look_up`]). Replicas
//! list the objects with known digests in the store ([`share`]), so that others compute theirs
//! before they need them.

mod ask;
mod queue;
pub mod share;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rivulet_bpf::trods::FlowKey;
use rivulet_pktio::in_netns;

use self::queue::Queue;
use crate::head;
use crate::record::{Body, Response};

/// Limit on stored digests: all that a table can name, and as many again. The oldest is dropped.
const MAX_KNOWN: usize = 1 << 19;
/// Pause before the server is asked again for an object that it failed to send.
const AGAIN: Duration = Duration::from_secs(30);
/// Age at which a digest is computed again, since a file can be written in place with its
/// modification time kept. Objects that no client fetched for as long are not listed for other
/// replicas.
const STALE: Duration = Duration::from_secs(600);

/// Digest of all bytes of an object: the first 128 bits of BLAKE3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 16]);

/// The digest of an object, and the checksum of its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Digest of all bytes.
    pub digest: Digest,
    /// How many of the first bytes records check, and the CRC-32C of these bytes.
    pub check: (u32, u32),
}

impl Default for Content {
    /// The content of an empty object.
    fn default() -> Content {
        Content { digest: Digest(shorten(&blake3::Hasher::new())), check: (0, 0) }
    }
}

/// Identifies an object: a hash of service, host, target, entity tag, content coding and length,
/// and of the credentials ([`is_credential`]) if the request has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name([u8; 16]);

/// An object, and the request that fetches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    name: Name,
    service: SocketAddr,
    /// The head of a request that the server answered with this object.
    request: Vec<u8>,
    etag: Vec<u8>,
    encoding: Option<Vec<u8>>,
    total: u64,
    /// First byte and length of the only part that can be fetched, because the client
    /// [signed](head::is_bound) its request for that part.
    part: Option<(u64, u64)>,
}

impl Wanted {
    /// The object that this response is a part of, if any.
    #[must_use]
    pub fn of(service: SocketAddr, response: &Response) -> Option<Wanted> {
        let Body::Object { request, .. } = &response.body else { return None };
        let object = response.object()?;
        let mut wanted = Wanted::new(service, request, object.etag, object.encoding, object.total)?;
        if head::is_bound(request) {
            let (first, length) = (object.first.to_le_bytes(), object.length.to_le_bytes());
            let name = [&wanted.name.0[..], &first, &length].concat();
            wanted.name = Name(shorten(blake3::Hasher::new().update(&name)));
            wanted.part = Some((object.first, object.length));
        }
        Some(wanted)
    }

    /// The object with this tag, coding and length that answers `request`.
    #[must_use]
    pub fn new(
        service: SocketAddr,
        request: &[u8],
        etag: &[u8],
        encoding: Option<&[u8]>,
        total: u64,
    ) -> Option<Wanted> {
        let mut hash = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(service.to_string().as_bytes());
        part(head::target(request)?);
        let host: Vec<u8> = head::values(request, "host").collect::<Vec<_>>().join(&b","[..]);
        part(&host.to_ascii_lowercase());
        part(etag);
        part(encoding.unwrap_or(b""));
        part(&total.to_le_bytes());
        for (field, line) in head::fields(request).filter(|(field, _)| is_credential(field)) {
            part(&field.to_ascii_lowercase());
            part(line[field.len() + 1..].trim_ascii());
        }
        let name = Name(shorten(&hash));
        let (request, etag, encoding) = (request.to_vec(), etag.to_vec(), encoding.map(<[u8]>::to_vec));
        Some(Wanted { name, service, request, etag, encoding, total, part: None })
    }

    /// Whether the request may be listed for other replicas: nothing in it can be a credential. A
    /// query string can be a signature, and so can any field outside of [`COMMON`].
    fn is_open(&self) -> bool {
        let is_common =
            |field: &[u8]| COMMON.iter().any(|common| field.eq_ignore_ascii_case(common.as_bytes()));
        let has_query = |text: &[u8]| text.contains(&b'?');
        self.part.is_none()
            && !head::target(&self.request).is_none_or(has_query)
            && head::fields(&self.request).skip(1).all(|(field, _)| is_common(field))
            && !head::values(&self.request, "referer").any(has_query)
    }
}

/// Substrings of the names of header fields by which servers identify users: `Authorization`,
/// `Cookie`, `X-Api-Key`, `X-Amz-Security-Token` and others.
const CREDENTIALS: [&str; 8] =
    ["auth", "cookie", "credential", "key", "password", "secret", "session", "token"];

/// Header fields that a client program sends identically for all its users.
const COMMON: [&str; 26] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "connection",
    "dnt",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "pragma",
    "priority",
    "range",
    "referer",
    "sec-fetch-dest",
    "sec-fetch-mode",
    "sec-fetch-site",
    "sec-fetch-user",
    "te",
    "upgrade-insecure-requests",
    "user-agent",
    "want-digest",
];

/// Whether a server may identify a user by the header field of this name.
fn is_credential(field: &[u8]) -> bool {
    let has = |part: &str| field.windows(part.len()).any(|at| at.eq_ignore_ascii_case(part.as_bytes()));
    CREDENTIALS.into_iter().any(has)
}

fn shorten(hash: &blake3::Hasher) -> [u8; 16] {
    let mut digest = [0; 16];
    hash.finalize_xof().fill(&mut digest);
    digest
}

/// State of an object's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// The digest is known.
    Digest(Digest),
    /// The object is being requested from the local server.
    Asked,
    /// The local server does not have the object, or refuses it to this host.
    Unavailable,
}

/// The result of one request to the local server.
#[derive(Debug)]
struct Known {
    /// `None`: the server did not send the object.
    content: Option<Content>,
    /// Time of the request.
    at: Instant,
    /// When a client last fetched it.
    served: Option<Instant>,
}

#[derive(Debug)]
struct State {
    known: HashMap<Name, Known>,
    /// Names in the order in which their digests were computed.
    order: VecDeque<Name>,
    /// Objects to read while no client waits, each with the client that fetched it, if any.
    idle: Queue,
    /// Objects that clients wait for.
    urgent: Queue,
    /// Names that are in a queue or being requested.
    waiting: HashSet<Name>,
    /// Requests of clients for objects with known digests, to be listed for other replicas; newest
    /// last.
    open: VecDeque<Wanted>,
    stop: bool,
}

impl Default for State {
    fn default() -> State {
        State {
            known: HashMap::new(),
            order: VecDeque::new(),
            idle: Queue::new(),
            urgent: Queue::new(),
            waiting: HashSet::new(),
            open: VecDeque::new(),
            stop: false,
        }
    }
}

impl State {
    /// Notes that a client fetches an object.
    fn serve(&mut self, wanted: &Wanted, now: Instant) {
        let Some(known) = self.known.get_mut(&wanted.name) else { return };
        if known.served.replace(now).is_none() && known.content.is_some() && wanted.is_open() {
            self.open.push_back(wanted.clone());
            if self.open.len() > share::MAX_LISTED {
                self.open.pop_front();
            }
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Number of digests computed.
    made: AtomicU64,
}

/// The digests of a replica. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Digests(Arc<Shared>);

/// The thread that requests objects from the local servers; dropping this ends it.
#[derive(Debug)]
pub struct Worker {
    digests: Digests,
    thread: Option<JoinHandle<()>>,
}

impl Digests {
    /// Starts the thread that requests objects, in this network namespace.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(&self, netns: Option<String>) -> std::io::Result<Worker> {
        let digests = self.clone();
        let thread = std::thread::Builder::new().name("digests".into()).spawn(move || {
            if let Err(e) = in_netns(netns.as_deref(), || digests.run()) {
                tracing::error!(error = %e, "no object is compared");
            }
        })?;
        Ok(Worker { digests: self.clone(), thread: Some(thread) })
    }

    /// Looks up the digest of an object that a client waits for. If there is none, or a stale one
    /// (the server may have other bytes now), the object is read at once. While the client's share
    /// of the queue is full, the caller has to look the object up again.
    #[must_use]
    pub fn look_up(&self, wanted: &Wanted, client: IpAddr) -> Knowledge {
        self.ask(wanted, true, Some(client))
    }

    /// Puts known digests into a connection's responses, and queues the objects without one.
    /// Returns whether any digest is still missing.
    pub fn fill(&self, key: &FlowKey, responses: &mut [Response]) -> bool {
        let mut lacks = false;
        for response in responses {
            let Some(wanted) = lacking(key.service(), response) else { continue };
            if let Body::Object { digest, .. } = &mut response.body {
                *digest = match self.ask(&wanted, false, Some(key.client().ip())) {
                    Knowledge::Digest(digest) => Some(digest),
                    Knowledge::Asked | Knowledge::Unavailable => None,
                };
                lacks |= digest.is_none();
            }
        }
        lacks
    }

    /// Looks up the digest of an object that no client waits for, and queues the object if there is
    /// none.
    pub(crate) fn look_for(&self, wanted: &Wanted) -> Knowledge {
        self.ask(wanted, false, None)
    }

    /// The digest and checksum of an object, if known; requests nothing.
    #[must_use]
    pub fn content(&self, wanted: &Wanted) -> Option<Content> {
        self.state().known.get(&wanted.name)?.content
    }

    /// Queues an object that another replica serves, unless its digest is fresh, so that the digest
    /// is known by the time of an adoption.
    fn keep_fresh(&self, wanted: &Wanted) {
        let is_fresh = |known: &Known| known.content.is_none() || known.at.elapsed() < STALE;
        if !self.state().known.get(&wanted.name).is_some_and(is_fresh) {
            self.ask(wanted, false, None);
        }
    }

    /// Whether the digest is known; requests nothing.
    #[must_use]
    pub fn has_digest(&self, wanted: &Wanted) -> bool {
        self.content(wanted).is_some()
    }

    /// Requests these objects again, because the local server may have been replaced.
    pub fn forget(&self, service: SocketAddr, responses: &[Response]) {
        let mut state = self.state();
        for wanted in responses.iter().filter_map(|response| Wanted::of(service, response)) {
            state.known.remove(&wanted.name);
        }
    }

    /// Number of digests computed since the start.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.0.made.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, wanted: &Wanted, is_urgent: bool, client: Option<IpAddr>) -> Knowledge {
        let mut state = self.state();
        let now = Instant::now();
        if client.is_some() && !is_urgent {
            state.serve(wanted, now);
        }
        let answer = match state.known.get(&wanted.name) {
            Some(Known { content: Some(content), at, .. }) if now - *at < STALE => {
                return Knowledge::Digest(content.digest);
            }
            Some(Known { content: Some(content), .. }) if !is_urgent => Knowledge::Digest(content.digest),
            Some(Known { content: None, at, .. }) if now - *at < AGAIN => return Knowledge::Unavailable,
            Some(_) | None => Knowledge::Asked,
        };
        let is_new = !state.waiting.contains(&wanted.name);
        if is_urgent {
            // The object may already be in the queue of those that no client waits for.
            let at = state.idle.position(&wanted.name);
            if (at.is_none() && !is_new) || !state.urgent.push(wanted, client) {
                return answer;
            }
            if let Some(at) = at {
                state.idle.take(at);
            }
        } else if !is_new || !state.idle.push(wanted, client) {
            return answer;
        }
        state.waiting.insert(wanted.name);
        self.0.wake.notify_all();
        answer
    }

    fn run(&self) {
        while let Some((wanted, is_urgent, client)) = self.next() {
            self.make(&wanted, is_urgent, client);
        }
    }

    /// Waits for the next object to read. Returns it with whether a client waits for it, and the
    /// client that fetched it; `None`: the thread has to end.
    fn next(&self) -> Option<(Wanted, bool, Option<IpAddr>)> {
        let mut state = self.state();
        loop {
            if state.stop {
                return None;
            }
            if let Some((wanted, _)) = state.urgent.pop() {
                return Some((wanted, true, None));
            }
            if let Some((wanted, client)) = state.idle.pop() {
                return Some((wanted, false, client));
            }
            state = self.0.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn make(&self, wanted: &Wanted, is_urgent: bool, client: Option<IpAddr>) {
        let content = ask::content(wanted, is_urgent, || {
            // An object that a client waits for must not wait until a background object is read.
            let urgent = || if is_urgent { None } else { self.state().urgent.pop() };
            while let Some((urgent, _)) = urgent() {
                self.make(&urgent, true, None);
            }
            !self.state().stop
        });
        let mut state = self.state();
        state.waiting.remove(&wanted.name);
        let now = Instant::now();
        let content = match content {
            Ok(content) => {
                self.0.made.fetch_add(1, Ordering::Relaxed);
                Some(content)
            }
            Err(e) => {
                let target =
                    String::from_utf8_lossy(head::target(&wanted.request).unwrap_or_default()).into_owned();
                tracing::info!(error = %e, service = %wanted.service, target, "the local server does not send an object");
                None
            }
        };
        let served = state.known.get(&wanted.name).and_then(|known| known.served);
        let is_new = state.known.insert(wanted.name, Known { content, at: now, served }).is_none();
        if client.is_some() {
            state.serve(wanted, now);
        }
        if is_new {
            state.order.push_back(wanted.name);
            if state.order.len() > MAX_KNOWN
                && let Some(oldest) = state.order.pop_front()
            {
                state.known.remove(&oldest);
            }
        }
    }
}

/// The object of a response that needs a digest and has none.
#[must_use]
pub fn lacking(service: SocketAddr, response: &Response) -> Option<Wanted> {
    let has = matches!(response.body, Body::Object { digest: Some(_), .. });
    Some(response).filter(|response| !has && needs_digest(response)).and_then(|r| Wanted::of(service, r))
}

/// Whether the record's checksum covers less than the response's whole body.
#[must_use]
pub fn needs_digest(response: &Response) -> bool {
    match &response.body {
        Body::Object { head, check, .. } => {
            u64::from(check.0) < response.length.saturating_sub(head.len() as u64)
        }
        Body::Generated { .. } | Body::Whole(_) => false,
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.digests.state().stop = true;
        self.digests.0.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of digests panicked");
        }
    }
}

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

/// Digests that are kept, for all that a table can name and as many more; the oldest gives way.
const MAX_KNOWN: usize = 1 << 19;
/// A server that did not bring an object is not asked for it again before.
const AGAIN: Duration = Duration::from_secs(30);
/// A digest is made again after this, since a file can be written in place and keep its time. Objects not served for as long are not
/// listed for other replicas.
const STALE: Duration = Duration::from_secs(600);

/// Digest of all bytes of an object: the first 128 bits of BLAKE3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 16]);

/// The digest of an object, and the checksum of its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Digest of all bytes.
    pub digest: Digest,
    /// Number of the first bytes that records check, and their CRC-32C.
    pub check: (u32, u32),
}

impl Default for Content {
    /// Of an empty object.
    fn default() -> Content {
        Content { digest: Digest(shorten(&blake3::Hasher::new())), check: (0, 0) }
    }
}

/// What an object is known by: service, host, target, entity tag, content coding and length; of a request with credentials
/// ([`is_credential`]) also these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name([u8; 16]);

/// An object, as it is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    name: Name,
    service: SocketAddr,
    /// The head of a request that was answered with it.
    request: Vec<u8>,
    etag: Vec<u8>,
    encoding: Option<Vec<u8>>,
    total: u64,
    /// First byte and length of the part that alone can be had, since the client [signed](head::is_bound) the request for it.
    part: Option<(u64, u64)>,
}

impl Wanted {
    /// The object of this response, if it is part of one.
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

    /// The object with this tag, coding and length, for which this request asked.
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

    /// Whether the request may be listed for other replicas: nothing in it can be a credential. A query can be a signature, and so can any
    /// field outside of [`COMMON`].
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

/// Parts of the names of fields by which servers know users: `Authorization`, `Cookie`, `X-Api-Key`, `X-Amz-Security-Token` and others.
const CREDENTIALS: [&str; 8] =
    ["auth", "cookie", "credential", "key", "password", "secret", "session", "token"];

/// Fields that a client program sends alike for all its users.
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

/// Whether a server may know a user by a field of this name.
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
    /// Its digest.
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
    /// When a client was served it last.
    served: Option<Instant>,
}

#[derive(Debug)]
struct State {
    known: HashMap<Name, Known>,
    /// Names in the order in which they became known.
    order: VecDeque<Name>,
    /// Objects to read when no client waits, each with the client that was served it, if any.
    idle: Queue,
    /// Objects that clients wait for.
    urgent: Queue,
    /// Names in either queue, or being asked for.
    waiting: HashSet<Name>,
    /// Requests for known objects that clients were served, for the list; newest last.
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
    /// A client is served an object.
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
    /// Digests that were made.
    made: AtomicU64,
}

/// The digests of a replica. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Digests(Arc<Shared>);

/// The thread that requests objects from the local servers; it ends when this is dropped.
#[derive(Debug)]
pub struct Worker {
    digests: Digests,
    thread: Option<JoinHandle<()>>,
}

impl Digests {
    /// Starts to ask servers, in a network namespace.
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

    /// Looks up the digest of an object that a client waits for. Reads the object at once if there is no digest, or a stale one, by
    /// which other bytes could be sent. While the share of its client is full, the caller has to look it up again.
    #[must_use]
    pub fn look_up(&self, wanted: &Wanted, client: IpAddr) -> Knowledge {
        self.ask(wanted, true, Some(client))
    }

    /// Puts known digests into responses of a connection, and queues the other objects. Returns whether some are still to come.
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

    /// Looks up the digest of an object, and queues the object if there is none.
    pub(crate) fn look_for(&self, wanted: &Wanted) -> Knowledge {
        self.ask(wanted, false, None)
    }

    /// The state of an object's digest, without a request.
    #[must_use]
    pub fn content(&self, wanted: &Wanted) -> Option<Content> {
        self.state().known.get(&wanted.name)?.content
    }

    /// Queues an object that another replica serves, unless its digest is fresh: at an adoption the digest is there then.
    fn keep_fresh(&self, wanted: &Wanted) {
        let is_fresh = |known: &Known| known.content.is_none() || known.at.elapsed() < STALE;
        if !self.state().known.get(&wanted.name).is_some_and(is_fresh) {
            self.ask(wanted, false, None);
        }
    }

    /// Whether a digest is known, without a request.
    #[must_use]
    pub fn has_digest(&self, wanted: &Wanted) -> bool {
        self.content(wanted).is_some()
    }

    /// The local server may have been replaced: these objects are requested again.
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
            // It may wait behind others.
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

    /// The next object, when there is one, whether a client waits for it, and which one was served it; none: it is to end.
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
            // Objects that a client waits for must not wait behind others.
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
                tracing::info!(error = %e, service = %wanted.service, target, "the own server does not bring an object");
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

/// Whether the checksum of a response's first flight is not over all of its body.
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

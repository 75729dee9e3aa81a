//! Exchanges lists of protected objects between replicas through the store. Each replica requests
//! the objects that others list from its own local server. The lists contain no digests: those are
//! in the records of connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Digests, STALE, Wanted};
use crate::head;
use crate::record::MAX_RECORD;
use crate::store::{Notices, RecordKeys};

/// Limit on the objects of a list, the most recently served ones.
pub(super) const MAX_LISTED: usize = 1024;
/// A list is stored in parts. Limits on a part's length (that of a record) and on the number of
/// parts.
const MAX_PART: usize = MAX_RECORD;
const PARTS: usize = 32;
/// Interval at which lists are written and read, and the lifetime of a stored list in seconds.
const SHARE: Duration = Duration::from_secs(1);
const COUNTS: u32 = 60;
/// First bytes of a stored list: format and version.
const MAGIC: &[u8; 4] = b"TRO\x01";

/// The thread that exchanges lists; it ends soon after this is dropped.
#[derive(Debug)]
pub struct Sharing {
    stop: Arc<AtomicBool>,
    /// The replicas and keys with which lists are exchanged.
    pub with: Peers,
}

/// The replicas that publish the lists to read, and the key of this replica's own list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// The servers of the store.
    pub servers: Vec<SocketAddr>,
    /// Epochs of the keys that seal the lists ([`RecordKeys::epochs`]).
    pub epochs: (u16, Vec<u16>),
    /// Prefix of the keys of this replica's list.
    pub own: String,
    /// Prefixes of the keys of the other replicas' lists.
    pub others: Vec<String>,
    /// Services with the objects to list.
    pub services: Vec<SocketAddr>,
}

fn keys(prefix: &str) -> impl Iterator<Item = String> {
    (0..PARTS).map(move |part| format!("{prefix}.objects{part}"))
}

impl Sharing {
    /// Starts the thread in the calling thread's network namespace.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        digests: &Digests,
        netns: Option<String>,
        keys: &RecordKeys,
        with: Peers,
    ) -> std::io::Result<Sharing> {
        let stop = Arc::new(AtomicBool::new(false));
        let (digests, stopped, peers) = (digests.clone(), Arc::clone(&stop), with.clone());
        let mut notices = Notices::new(&peers.servers, keys);
        std::thread::Builder::new().name("objects".into()).spawn(move || {
            let run = || exchange(&digests, &mut notices, &peers, &stopped);
            if let Err(e) = rivulet_pktio::in_netns(netns.as_deref(), run) {
                tracing::error!(error = %e, "objects are not listed");
            }
        })?;
        Ok(Sharing { stop, with })
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn exchange(digests: &Digests, notices: &mut Notices, peers: &Peers, stop: &AtomicBool) {
    let theirs: Vec<String> = peers.others.iter().flat_map(|other| keys(other)).collect();
    let own: Vec<String> = keys(&peers.own).collect();
    let mut said: Vec<Option<(Vec<u8>, Instant)>> = vec![None; PARTS];
    while !stop.load(Ordering::Relaxed) {
        let parts = encode(&digests.listed(&peers.services));
        for ((key, part), said) in own.iter().zip(parts).zip(&mut said) {
            let is_said =
                |(before, at): &(Vec<u8>, Instant)| *before == part && at.elapsed() < SHARE * (COUNTS / 3);
            if !said.as_ref().is_some_and(is_said) && notices.put(key, COUNTS, &part) > 0 {
                *said = Some((part, Instant::now()));
            }
        }
        notices.get(&theirs, |_, list| {
            for wanted in decode(list).into_iter().filter(|wanted| peers.services.contains(&wanted.service)) {
                digests.keep_fresh(&wanted);
            }
        });
        let until = Instant::now() + SHARE;
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Digests {
    pub(super) fn listed(&self, services: &[SocketAddr]) -> Vec<Wanted> {
        let state = self.state();
        let is_served = |wanted: &Wanted| {
            let served = state.known.get(&wanted.name).and_then(|known| known.served);
            served.is_some_and(|at| at.elapsed() < STALE)
        };
        let is_listed = |wanted: &&Wanted| services.contains(&wanted.service) && is_served(wanted);
        state.open.iter().rev().filter(is_listed).cloned().collect()
    }
}

fn encode(all: &[Wanted]) -> Vec<Vec<u8>> {
    let (mut done, mut out) = (Vec::new(), MAGIC.to_vec());
    for Wanted { service, request, etag, encoding, total, .. } in all {
        let service = service.to_string();
        let parts = [service.as_bytes(), request, etag, encoding.as_deref().unwrap_or_default()];
        let size = parts.iter().map(|part| 2 + part.len()).sum::<usize>() + 8;
        if size > MAX_PART - MAGIC.len() {
            continue;
        }
        if out.len() + size > MAX_PART {
            done.push(std::mem::replace(&mut out, MAGIC.to_vec()));
        }
        if done.len() == PARTS {
            return done;
        }
        for part in parts {
            out.extend_from_slice(&(part.len() as u16).to_be_bytes());
            out.extend_from_slice(part);
        }
        out.extend_from_slice(&total.to_be_bytes());
    }
    done.push(out);
    done
}

/// Decodes the requests of a list, up to the first malformed entry.
fn decode(list: &[u8]) -> Vec<Wanted> {
    let mut all = Vec::new();
    let Some(mut rest) = list.strip_prefix(MAGIC).filter(|_| list.len() <= MAX_PART) else { return all };
    while let Some(wanted) = decode_one(&mut rest)
        && all.len() < MAX_LISTED
    {
        all.push(wanted);
    }
    all
}

fn decode_one(rest: &mut &[u8]) -> Option<Wanted> {
    let mut part = || {
        let (length, behind) = rest.split_first_chunk()?;
        let (part, behind) = behind.split_at_checked(u16::from_be_bytes(*length).into())?;
        *rest = behind;
        Some(part)
    };
    let (service, request, etag, encoding) = (part()?, part()?, part()?, part()?);
    let (total, behind) = rest.split_first_chunk()?;
    *rest = behind;
    let service = std::str::from_utf8(service).ok()?.parse().ok()?;
    let is_request = head::request(request).ok().flatten()?.length == request.len();
    let encoding = Some(encoding).filter(|encoding| !encoding.is_empty());
    let is_plain = |bytes: &[u8]| bytes.iter().all(|b| matches!(b, 0x20..=0x7e | 0x80..));
    let is_good = is_request && is_plain(etag) && encoding.is_none_or(is_plain);
    let wanted = Wanted::new(service, request, etag, encoding, u64::from_be_bytes(*total))?;
    (is_good && wanted.is_open()).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";

    fn wanted(request: &[u8]) -> Wanted {
        let service = "10.9.0.1:80".parse().unwrap();
        Wanted::new(service, request, b"\"x\"", Some(b"br"), 1000).unwrap()
    }

    #[test]
    fn object_list_round_trips() {
        let all = [wanted(GET), Wanted { encoding: None, ..wanted(GET) }];
        let again = decode(&encode(&all)[0]);
        assert_eq!(again.len(), 2);
        assert_eq!((&again[0], &again[1].encoding), (&all[0], &None));
        let list = encode(&all).remove(0);
        for n in 0..list.len() {
            assert!(decode(&list[..n]).len() < 2, "{n}");
        }
    }

    #[test]
    fn objects_with_credentials_and_malformed_requests_are_skipped() {
        let with = |field: &str| {
            let request = format!("GET /a HTTP/1.1\r\nHost: h\r\n{field}\r\n");
            decode(&encode(&[wanted(request.as_bytes())])[0]).len()
        };
        let fields = ["", "Cookie: a\r\n", "Authorization: b\r\n", "Content-Length: 5\r\n"];
        assert_eq!(fields.map(with), [1, 0, 0, 0]);
        // A field that is not in [`COMMON`] may be a credential.
        let fields = [
            "user-agent: u\r\nRange: bytes=1-\r\n",
            "X-Api-Key: k\r\n",
            "X-Amz-Security-Token: t\r\n",
            "X-A: b\r\n",
        ];
        assert_eq!(fields.map(with), [1, 0, 0, 0]);
        assert_eq!(["Referer: http://h/a\r\n", "Referer: http://h/a?t=1\r\n"].map(with), [1, 0]);
        let signed = b"GET /a?X-Amz-Signature=1 HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(decode(&encode(&[wanted(signed)])[0]), []);
        let odd = Wanted { etag: b"a\r\nb: c".to_vec(), ..wanted(GET) };
        assert_eq!(decode(&encode(&[odd])[0]), []);
    }

    #[test]
    fn list_is_bounded() {
        let many = vec![wanted(GET); 100_000];
        let parts = encode(&many);
        assert_eq!(parts.len(), PARTS);
        assert!(parts.iter().all(|part| part.len() <= MAX_PART && decode(part).len() > 50));
    }

    #[test]
    fn object_name_covers_host_target_tag_coding_length_user() {
        let service = "10.9.0.1:80".parse().unwrap();
        let name = |request: &str, etag: &str, encoding: Option<&[u8]>, total| {
            let request = request.replace('|', "\r\n") + "\r\n\r\n";
            Wanted::new(service, request.as_bytes(), etag.as_bytes(), encoding, total).unwrap().name
        };
        let first = name("GET /a HTTP/1.1|Host: h", "\"x\"", None, 5);
        assert_eq!(name("GET /a HTTP/1.1|User-Agent: u|host: H", "\"x\"", None, 5), first);
        for other in [
            name("GET /b HTTP/1.1|Host: h", "\"x\"", None, 5),
            name("GET /a HTTP/1.1|Host: i", "\"x\"", None, 5),
            name("GET /a HTTP/1.1|Host: h|Cookie: c", "\"x\"", None, 5),
            name("GET /a HTTP/1.1|Host: h|x-api-KEY: c", "\"x\"", None, 5),
            name("GET /a HTTP/1.1|Host: h|X-Auth-User: c", "\"x\"", None, 5),
            name("GET /a HTTP/1.1|Host: h", "\"y\"", None, 5),
            name("GET /a HTTP/1.1|Host: h", "\"x\"", Some(b"br"), 5),
            name("GET /a HTTP/1.1|Host: h", "\"x\"", None, 6),
        ] {
            assert_ne!(other, first);
        }
    }
}

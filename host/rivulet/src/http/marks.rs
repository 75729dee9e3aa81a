//! Pictures that carry a mark of each client's own (Trickles paper, section 6.2).
//!
//! An answer holds the original's identity, the text and the places of the entropy coder. All replicas make the same bytes
//! from that.
//! The index of a picture is computed at its first request, by the threads that may wait for the disk.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::RwLock;
use rivulet_watermark::{Error, MAX_FILE, MAX_PLACES, MAX_TEXT, Picture, Places};

use super::codec::{Malformed, Reader};
use super::object::{Identity, Object};

/// Indices of pictures that are kept, and their bytes. At either bound all are dropped, and computed again when requested.
const MAX_INDICES: usize = 1024;
const MAX_MEMORY: usize = 64 << 20;
/// The first bytes of a JPEG: marker SOI, and the next marker's first byte.
pub(super) const JPEG: [u8; 3] = [0xff, 0xd8, 0xff];

/// Which pictures are marked, and how. Clones share the indices.
#[derive(Clone, Debug)]
pub struct Marks {
    /// What the names of marked files begin with: a folder and a slash, or nothing for all.
    prefix: Arc<[u8]>,
    /// Words before the client's address.
    words: Arc<str>,
    indices: Arc<RwLock<Indices>>,
}

/// By the content's hash: its index, or why it has none.
#[derive(Debug, Default)]
struct Indices {
    of: HashMap<[u8; 16], Result<Arc<Picture>, Error>>,
    memory: usize,
}

/// What an answer needs of a marked picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The original.
    pub original: Identity,
    length: u8,
    /// [`Places::encode`]
    places: [u8; MAX_PLACES],
}

/// What becomes of a file that is asked for.
pub(super) enum Kind {
    /// It is sent as it is.
    Plain,
    /// It is sent with this mark, and has another identity then.
    Marked(Mark, Identity),
    /// It is a JPEG that cannot be marked.
    Unfit,
}

impl Marks {
    /// Marks the JPEGs in `folder`, a path relative to the directory that is served (empty: all), with `words` and
    /// the client's address.
    #[must_use]
    pub fn new(folder: &str, words: &str) -> Marks {
        let folder = folder.trim_matches('/');
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        Marks { prefix: prefix.into_bytes().into(), words: words.into(), indices: Arc::default() }
    }

    /// Whether a file with this name (without a slash before it) and these first bytes is marked.
    #[must_use]
    pub fn covers(&self, name: &[u8], first: &[u8]) -> bool {
        name.starts_with(&self.prefix) && first.starts_with(&JPEG)
    }

    /// The text for a client.
    pub(super) fn text(&self, client: IpAddr) -> String {
        let mut text = match &*self.words {
            "" => client.to_canonical().to_string(),
            words => format!("{words} {}", client.to_canonical()),
        };
        // Words and an address of any length: the address stays whole.
        if text.len() > MAX_TEXT {
            text.drain(..text.len() - MAX_TEXT);
        }
        text
    }

    /// The index of the content with this hash, or why it has none; `None` if it was not computed.
    pub(super) fn index(&self, hash: &[u8; 16]) -> Option<Result<Arc<Picture>, Error>> {
        self.indices.read().of.get(hash).cloned()
    }

    /// Computes the index of a file's content, and keeps it.
    pub(super) fn compute(&self, object: &Object, name: &[u8]) {
        let identity = object.identity();
        let read = |size: usize| {
            let mut file = vec![0; size];
            object.read(0, &mut file).then_some(file)
        };
        let picture = match usize::try_from(identity.size) {
            Ok(size) if size <= MAX_FILE => match read(size) {
                Some(file) => Picture::read(&file),
                // The file was cut short: its next state has another hash.
                None => return,
            },
            _ => Err(Error::TooLong),
        };
        if let Err(error) = &picture {
            let name = String::from_utf8_lossy(name);
            tracing::warn!(%name, %error, "a picture that cannot be marked is not sent");
        }
        let memory = picture.as_ref().map_or(0, Picture::memory);
        let mut indices = self.indices.write();
        if indices.of.len() >= MAX_INDICES || indices.memory + memory > MAX_MEMORY {
            *indices = Indices::default();
        }
        indices.memory += memory;
        indices.of.insert(identity.hash, picture.map(Arc::new));
    }
}

impl Mark {
    pub(super) fn new(original: Identity, places: &Places) -> Mark {
        let mut encoded = Vec::with_capacity(MAX_PLACES);
        places.encode(&mut encoded);
        let mut mark = Mark { original, length: encoded.len() as u8, places: [0; MAX_PLACES] };
        mark.places[..encoded.len()].copy_from_slice(&encoded);
        mark
    }

    /// Identity of a picture under this text: what all replicas make of the same original.
    pub(super) fn identity(&self, places: &Places) -> Identity {
        let mut hasher = blake3::Hasher::new_derive_key("rivulet 2026 watermark 1");
        hasher.update(&self.original.hash).update(places.text());
        let mut hash = [0; 16];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Identity { size: places.len(), hash }
    }

    /// The places, unless they are malformed.
    pub(super) fn places(&self) -> Option<Places> {
        Places::decode(&self.places[..self.length.into()]).map(|(places, _)| places)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.original.size.to_be_bytes());
        out.extend_from_slice(&self.original.hash);
        out.push(self.length);
        out.extend_from_slice(&self.places[..self.length.into()]);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Mark, Malformed> {
        let (size, hash, length) = (r.u64()?, r.array()?, r.u8()?);
        let mut places = [0; MAX_PLACES];
        for byte in places.get_mut(..length.into()).ok_or(Malformed)? {
            *byte = r.u8()?;
        }
        Ok(Mark { original: Identity { size, hash }, length, places })
    }
}

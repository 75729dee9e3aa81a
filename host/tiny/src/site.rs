//! What the server serves: pages in read-only memory, and one text that is made for each request.

use arrayvec::ArrayString;
use rivulet_transport::MacKey;

use crate::counters::Counters;

/// Maximum length of the made text in bytes. It travels in its output continuation.
pub const TEXT_BYTES: usize = 256;

/// A file of the site.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The decoded path, which begins with `/`.
    pub path: &'static str,
    /// The value of `Content-Type`.
    pub media_type: &'static str,
    /// The bytes.
    pub content: &'static [u8],
}

impl Page {
    /// A digest of the page. Output continuations carry it, so that a server with another version of the page refuses
    /// to continue the answer.
    pub(crate) fn identity(&self) -> [u8; 16] {
        // Anyone may know the key: the digest is compared only inside of sealed continuations.
        let length = (self.path.len() as u64).to_be_bytes();
        MacKey::new(b"rivulet-tiny 1  ").mac(&[&length, self.path.as_bytes(), self.content])
    }
}

/// A text about the server, made when it is requested.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The decoded path, which begins with `/`.
    pub path: &'static str,
    /// Makes the text.
    pub make: fn(&Counters) -> ArrayString<TEXT_BYTES>,
}

/// All that is served.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// At most 255 files.
    pub pages: &'static [Page],
    /// The text about the server, if it has one.
    pub report: Option<Report>,
}

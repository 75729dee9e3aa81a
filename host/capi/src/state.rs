//! The library's part of user continuations.

/// Version of both encodings; other versions are refused.
const VERSION: u8 = 1;
const INLINE: u8 = 1;
const FILE: u8 = 2;
const LAST: u8 = 0x80;

/// An input continuation: the next output offset and the application's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputContinuation {
    /// Next output offset.
    pub next: u64,
    /// Bytes set by `msk_setucont`.
    pub user: Vec<u8>,
}

impl InputContinuation {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.next.to_be_bytes());
        out.extend_from_slice(&self.user);
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<InputContinuation> {
        let (next, user) = bytes.strip_prefix(&[VERSION])?.split_first_chunk::<8>()?;
        Some(InputContinuation { next: u64::from_be_bytes(*next), user: user.to_vec() })
    }
}

/// An output continuation: where the bytes of an answer come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The bytes themselves.
    Inline {
        /// All bytes.
        data: Vec<u8>,
        /// The stream ends after them.
        last: bool,
    },
    /// A part of a file.
    File {
        /// Start of the part in the file.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Path of the file, the same on every server.
        path: String,
    },
}

impl Source {
    /// Length of the output in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Source::Inline { data, .. } => data.len() as u64,
            Source::File { length, .. } => *length,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        match self {
            Source::Inline { data, last } => {
                let mut out = vec![VERSION, INLINE | if *last { LAST } else { 0 }];
                out.extend_from_slice(data);
                out
            }
            Source::File { offset, length, path } => {
                let mut out = vec![VERSION, FILE];
                out.extend_from_slice(&offset.to_be_bytes());
                out.extend_from_slice(&length.to_be_bytes());
                out.extend_from_slice(path.as_bytes());
                out
            }
        }
    }

    pub fn decode(bytes: &[u8]) -> Option<Source> {
        let (&kind, rest) = bytes.strip_prefix(&[VERSION])?.split_first()?;
        match kind & !LAST {
            INLINE => Some(Source::Inline { data: rest.to_vec(), last: kind & LAST != 0 }),
            FILE if kind & LAST == 0 => {
                let (offset, rest) = rest.split_first_chunk::<8>()?;
                let (length, path) = rest.split_first_chunk::<8>()?;
                Some(Source::File {
                    offset: u64::from_be_bytes(*offset),
                    length: u64::from_be_bytes(*length),
                    path: String::from_utf8(path.to_vec()).ok()?,
                })
            }
            _ => None,
        }
    }

    /// Fills `out` with the bytes from `at` on. Returns false if the file cannot be read here.
    pub fn read(&self, at: u64, out: &mut [u8]) -> bool {
        use std::os::unix::fs::FileExt;
        match self {
            Source::Inline { data, .. } => {
                let from = usize::try_from(at).ok().and_then(|at| data.get(at..)?.get(..out.len()));
                from.map(|from| out.copy_from_slice(from)).is_some()
            }
            Source::File { offset, path, .. } => {
                let Some(at) = offset.checked_add(at) else { return false };
                std::fs::File::open(path).and_then(|file| file.read_exact_at(out, at)).is_ok()
            }
        }
    }

    /// Whether the stream ends after it.
    pub fn is_last(&self) -> bool {
        matches!(self, Source::Inline { last: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_round_trip() {
        let ahead = InputContinuation { next: 77, user: b"abc".to_vec() };
        assert_eq!(InputContinuation::decode(&ahead.encode()), Some(ahead));
        for source in [
            Source::Inline { data: b"xy".to_vec(), last: false },
            Source::Inline { data: vec![], last: true },
            Source::File { offset: 5, length: 6, path: "/a".into() },
        ] {
            assert_eq!(Source::decode(&source.encode()), Some(source));
        }
        for bad in [&[][..], &[1], &[2, 1], &[1, 9], &[1, 2, 0]] {
            assert_eq!(Source::decode(bad), None);
        }
    }

    #[test]
    fn pieces_of_sources() {
        let source = Source::Inline { data: b"hello".to_vec(), last: false };
        let mut out = [0; 3];
        assert!(source.read(1, &mut out) && &out == b"ell");
        assert!(!source.read(3, &mut out));
        assert!(!source.read(u64::MAX, &mut out));
        let gone = Source::File { offset: 0, length: 9, path: "/no/such/file".into() };
        assert!(!gone.read(0, &mut out));
    }
}

//! A set of ports that an XDP program and this process share.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::bpf;

/// A bit for each port.
const OCTETS: usize = (1 << 16) / 8;

/// A set of ports. A filter that names it follows its changes at once and without a system call, which
/// matters to a client whose connections come and go. Clones are the same set.
#[derive(Clone, Debug)]
pub struct PortSet(Arc<Bits>);

#[derive(Debug)]
struct Bits {
    map: OwnedFd,
    memory: NonNull<AtomicU8>,
}

// SAFETY: the memory is atomics, mapped for as long as the object lives.
unsafe impl Send for Bits {}
// SAFETY: as above.
unsafe impl Sync for Bits {}

impl PortSet {
    /// An empty set, in a BPF map of this process's own.
    pub fn new() -> io::Result<PortSet> {
        let map = bpf::shared_map(OCTETS as u32)?;
        // SAFETY: a fresh mapping of the whole map.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                OCTETS,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(PortSet(Arc::new(Bits { map, memory })))
    }

    fn octet(&self, port: u16) -> &AtomicU8 {
        // SAFETY: the octet of any port lies in the mapping, which lives as long as `self`.
        unsafe { self.0.memory.add(usize::from(port >> 3)).as_ref() }
    }

    /// Puts a port in or takes it out.
    pub fn set(&self, port: u16, inside: bool) {
        let bit = 1 << (port & 7);
        if inside {
            self.octet(port).fetch_or(bit, Ordering::Relaxed);
        } else {
            self.octet(port).fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Whether a port is in it.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        self.octet(port).load(Ordering::Relaxed) >> (port & 7) & 1 != 0
    }

    /// The map, for a program.
    pub(crate) fn map(&self) -> RawFd {
        self.0.map.as_raw_fd()
    }
}

impl PartialEq for PortSet {
    fn eq(&self, other: &PortSet) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PortSet {}

impl Drop for Bits {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), OCTETS) };
    }
}

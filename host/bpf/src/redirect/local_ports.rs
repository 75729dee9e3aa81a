//! The kinds of segments to select for each local port, in memory that a BPF program and this
//! process share.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use libbpf_rs::libbpf_sys::{BPF_F_MMAPABLE, bpf_map_create_opts};
use libbpf_rs::{MapHandle, MapType};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;

/// A byte for each port (`struct local_ports`).
const OCTETS: usize = 1 << 16;

/// Selection of segments to a local port (`enum local_port`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No segments.
    #[default]
    None = 0,
    /// Segments with our option: the port has a connection.
    Open = 1,
    /// All segments: the server of a connection may turn out to use plain TCP.
    Opening = 2,
}

/// A state for each port. The program reads a change at once and without a system call, which
/// matters to a client with many short connections. Clones share the memory.
#[derive(Clone, Debug)]
pub struct LocalPorts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    map: MapHandle,
    memory: NonNull<AtomicU8>,
}

// SAFETY: the memory is atomics, mapped for as long as the object lives.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl LocalPorts {
    /// Creates the BPF map, with every port at [`State::None`].
    ///
    /// # Errors
    /// The process lacks a privilege or memory.
    pub fn new() -> Result<LocalPorts, Error> {
        let options = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as u64,
            map_flags: BPF_F_MMAPABLE,
            ..bpf_map_create_opts::default()
        };
        let map = MapHandle::create(MapType::Array, Some("local_ports"), 4, OCTETS as u32, 1, &options)
            .map_err(Error::of("BPF_MAP_CREATE"))?;
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a fresh mapping of the whole map; no existing memory is touched.
        let memory = unsafe { mmap(std::ptr::null_mut(), OCTETS, access, kind, map.as_fd(), 0) };
        let fail = |source| Error::Os { operation: "mmap of a BPF map", source };
        let memory = memory.map_err(|e| fail(e.into()))?;
        let memory = NonNull::new(memory.cast()).ok_or_else(|| fail(io::ErrorKind::OutOfMemory.into()))?;
        Ok(LocalPorts(Arc::new(Shared { map, memory })))
    }

    fn octet(&self, port: u16) -> &AtomicU8 {
        // SAFETY: the byte of any port lies in the mapping, which lives as long as `self`.
        unsafe { self.0.memory.add(usize::from(port)).as_ref() }
    }

    /// Sets the selection of a port.
    pub fn set(&self, port: u16, state: State) {
        self.octet(port).store(state as u8, Ordering::Relaxed);
    }

    /// The selection of a port.
    #[must_use]
    pub fn get(&self, port: u16) -> State {
        match self.octet(port).load(Ordering::Relaxed) {
            1 => State::Open,
            2 => State::Opening,
            _ => State::None,
        }
    }

    /// The map, to be given to a program.
    pub(crate) fn map(&self) -> BorrowedFd<'_> {
        self.0.map.as_fd()
    }
}

impl PartialEq for LocalPorts {
    fn eq(&self, other: &LocalPorts) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LocalPorts {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), OCTETS) };
    }
}

//! File mappings that survive their file being cut short.
//!
//! Reading a page beyond the end of a mapped file raises SIGBUS. The handler here puts a page of zeros
//! in the place of the missing one and notes that the mapping is broken; the reader looks at the note
//! after its copy and throws the copy away. Faults elsewhere go to whoever handled them before.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings at the same time; a file that finds no place is read by system calls instead.
const SLOTS: usize = 4096;

struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    broken: AtomicBool,
    taken: AtomicBool,
}

static REGIONS: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
        taken: AtomicBool::new(false),
    }
}; SLOTS];

/// Page size, and the handler that stood before ours.
static PAGE: AtomicUsize = AtomicUsize::new(4096);
static INSTALL: Once = Once::new();

/// A read-only mapping of a file's first octets.
#[derive(Debug)]
pub(crate) struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    slot: usize,
}

// SAFETY: the pages are only read, and the pointer stays valid until drop.
unsafe impl Send for Mapping {}
// SAFETY: as above; reading from several threads at once is harmless.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` octets, more than 0. Fails when there are too many mappings.
    pub fn new(file: &File, len: usize) -> io::Result<Mapping> {
        INSTALL.call_once(install);
        let free = |slot: &&Slot| !slot.taken.swap(true, Ordering::AcqRel);
        let (index, slot) =
            REGIONS.iter().enumerate().find(|(_, s)| free(s)).ok_or(io::ErrorKind::QuotaExceeded)?;
        // SAFETY: a fresh mapping of a file; no existing memory is touched.
        let ptr = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        let Some(ptr) = NonNull::new(ptr.cast()).filter(|_| ptr != libc::MAP_FAILED) else {
            let error = io::Error::last_os_error();
            slot.taken.store(false, Ordering::Release);
            return Err(error);
        };
        let start = ptr.as_ptr() as usize;
        slot.broken.store(false, Ordering::Release);
        slot.end.store(start + len, Ordering::Release);
        slot.start.store(start, Ordering::Release);
        Ok(Mapping { ptr, len, slot: index })
    }

    /// Copies octets from `offset` on into `out`; false if the file no longer has them.
    pub fn copy(&self, offset: usize, out: &mut [u8]) -> bool {
        if offset > self.len || out.len() > self.len - offset {
            return false;
        }
        // SAFETY: inside the mapping by the check above, and `out` is not part of it. Another process
        // may change the octets meanwhile, which a byte copy tolerates; a missing page is replaced by
        // the handler.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr.as_ptr().add(offset), out.as_mut_ptr(), out.len()) };
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        !REGIONS[self.slot].broken.load(Ordering::Acquire)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let slot = &REGIONS[self.slot];
        slot.start.store(0, Ordering::Release);
        slot.end.store(0, Ordering::Release);
        // SAFETY: exactly the mapping made in `new`.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
        slot.taken.store(false, Ordering::Release);
    }
}

fn install() {
    // SAFETY: sysconf reads a constant; the action is fully initialised and the handler does only what
    // is allowed in one (atomics, mmap, sigaction).
    unsafe {
        PAGE.store(libc::sysconf(libc::_SC_PAGESIZE) as usize, Ordering::Release);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn on_fault(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() } as usize;
    let page = PAGE.load(Ordering::Acquire);
    for slot in &REGIONS {
        let (start, end) = (slot.start.load(Ordering::Acquire), slot.end.load(Ordering::Acquire));
        if start != 0 && (start..end).contains(&address) {
            slot.broken.store(true, Ordering::Release);
            let at = (address / page * page) as *mut libc::c_void;
            // SAFETY: replaces one page of a mapping that belongs to this slot.
            let got = unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                libc::mmap(at, page, libc::PROT_READ, flags, -1, 0)
            };
            if got != libc::MAP_FAILED {
                return;
            }
        }
    }
    // Not ours: the access is repeated under the default action, which ends the process with a core.
    // SAFETY: allowed in a handler.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_cut_short_is_noticed_and_survived() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 20_000]).unwrap();
        let mapping = Mapping::new(&file, 20_000).unwrap();
        let mut out = [0; 5000];
        assert!(mapping.copy(15_000, &mut out) && out == [7; 5000]);
        assert!(!mapping.copy(15_001, &mut out), "beyond the end");
        assert!(!mapping.copy(usize::MAX, &mut out));
        file.set_len(100).unwrap();
        assert!(!mapping.copy(15_000, &mut out), "the page is gone");
        assert!(!mapping.copy(0, &mut out), "and stays noted");
        drop(mapping);
        assert!(Mapping::new(&file, 100).unwrap().copy(0, &mut out[..100]), "the place is free again");
    }
}

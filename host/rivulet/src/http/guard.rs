//! File mappings that survive a truncation of their file.
//!
//! Reading a page beyond the end of a mapped file raises SIGBUS. The signal handler here maps a
//! page of zeros in place of the missing one and marks the mapping as broken; the reader checks
//! that mark after its copy and discards the copy. Every other SIGBUS goes to the handler that was
//! installed before.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Limit on simultaneous mappings; more are refused.
const SLOTS: usize = 4096;
/// Number of bytes that are checked, and loaded into memory, at a time.
const BLOCK: usize = 256 << 10;
/// How long a block that was in memory is assumed to be there, milliseconds.
const GOOD_FOR: u32 = 1000;
/// Number of blocks that are loaded together.
const AHEAD: usize = 4;
/// linux/mman.h, since Linux 5.14
const MADV_POPULATE_READ: libc::c_int = 22;

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

/// Page size, bytes.
static PAGE: AtomicUsize = AtomicUsize::new(4096);
/// The former action of SIGBUS: set once, before the handler is installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A read-only mapping of a file's first bytes.
#[derive(Debug)]
pub(crate) struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    slot: usize,
    /// When each block was last known to be in memory, milliseconds of the caller's clock.
    seen: Box<[AtomicU32]>,
}

// SAFETY: the pages are only read, and the pointer stays valid until drop.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; reading from several threads at once is harmless.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, more than 0. Fails when there are too many mappings.
    pub fn new(file: &File, len: usize) -> io::Result<Mapping> {
        BEFORE.get_or_init(install);
        let free = |slot: &&Slot| !slot.taken.swap(true, Ordering::AcqRel);
        let (index, slot) =
            REGIONS.iter().enumerate().find(|(_, s)| free(s)).ok_or(io::ErrorKind::QuotaExceeded)?;
        // SAFETY: a new mapping of a file; no existing memory is touched.
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
        let seen = (0..len.div_ceil(BLOCK)).map(|_| AtomicU32::new(0)).collect();
        Ok(Mapping { ptr, len, slot: index, seen })
    }

    /// The first block of these bytes that may not be in memory, so that [`Mapping::copy`] would
    /// wait for the disk.
    pub fn missing(&self, offset: usize, len: usize, now: u32) -> Option<usize> {
        let end = offset.saturating_add(len).min(self.len);
        (offset / BLOCK..end.div_ceil(BLOCK)).find(|block| !self.is_resident(*block, now))
    }

    fn is_resident(&self, block: usize, now: u32) -> bool {
        let Some(seen) = self.seen.get(block) else { return true };
        let before = seen.load(Ordering::Relaxed);
        if before != 0 && now.wrapping_sub(before) < GOOD_FOR {
            return true;
        }
        let Range { start, end } = self.range(block);
        let mut pages = [0u8; BLOCK / 4096];
        // SAFETY: a part of the mapping, from the start of a page; a page has at least 4096 bytes,
        // so `pages` has room for all.
        let told =
            unsafe { libc::mincore(self.ptr.as_ptr().add(start).cast(), end - start, pages.as_mut_ptr()) };
        let count = (end - start).div_ceil(PAGE.load(Ordering::Acquire));
        // If mincore fails, the block counts as present, and the copy reads it.
        let resident = told != 0 || pages[..count].iter().all(|page| page & 1 != 0);
        if resident {
            seen.store(now.max(1), Ordering::Relaxed);
        }
        resident
    }

    /// Loads a block and those after it into memory, however long that takes.
    pub fn fetch(&self, block: usize, now: u32) {
        for block in (block..self.seen.len()).take(AHEAD) {
            let Range { start, end } = self.range(block);
            // SAFETY: a part of the mapping, from the start of a page.
            let done = unsafe {
                libc::madvise(self.ptr.as_ptr().add(start).cast(), end - start, MADV_POPULATE_READ)
            };
            if done != 0 {
                // An older kernel, or a truncated file: touch each page.
                for at in (start..end).step_by(PAGE.load(Ordering::Acquire)) {
                    // SAFETY: inside the mapping; the handler replaces a missing page. Volatile, so
                    // that the compiler keeps the read.
                    unsafe { self.ptr.as_ptr().add(at).read_volatile() };
                }
            }
            self.seen[block].store(now.max(1), Ordering::Relaxed);
        }
    }

    fn range(&self, block: usize) -> Range<usize> {
        block * BLOCK..self.len.min((block + 1) * BLOCK)
    }

    /// Copies bytes from `offset` on into `out`; returns `false` if the file no longer has them.
    pub fn copy(&self, offset: usize, out: &mut [u8]) -> bool {
        if offset > self.len || out.len() > self.len - offset {
            return false;
        }
        // SAFETY: inside the mapping by the check above, and `out` is not part of it, since the
        // mapping is never given out as `&mut`. The handler replaces a missing page. Another
        // process may write the file meanwhile. The language has no rule for that; memcpy then
        // copies old or new bytes, and no reference to them is made.
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

/// Installs the handler; returns the former action.
fn install() -> libc::sigaction {
    // SAFETY: sysconf reads a constant. All zero is a valid sigaction, and both calls get pointers
    // to initialised locals.
    unsafe {
        PAGE.store(libc::sysconf(libc::_SC_PAGESIZE) as usize, Ordering::Release);
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        // On the alternate stack, as the former handler may expect: Rust's own handler detects
        // stack overflows.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, &mut before);
        before
    }
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler. A signal that a process
    // sent has a code of 0 or less, and holds its process and user where a fault has its address.
    let fault = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr() as usize) };
    if fault.is_some_and(replace_page) {
        return;
    }
    // SAFETY: allowed in a handler: sigaction, raise, and calls of handlers that were installed for
    // this signal, with the kernel's arguments and according to their flags.
    unsafe {
        match BEFORE.get() {
            Some(before) if ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction) => {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(before.sa_sigaction);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(libc::c_int) = std::mem::transmute(before.sa_sigaction);
                    handler(signal);
                }
            }
            Some(before) if before.sa_sigaction == libc::SIG_IGN && fault.is_none() => {}
            _ => {
                // With the default action restored, a fault recurs when this handler returns; a
                // signal that was sent does not, so it is sent again. Either ends the process.
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
                if fault.is_none() {
                    libc::raise(libc::SIGBUS);
                }
            }
        }
    }
}

/// Maps a page of zeros in place of a mapping's missing page; returns `false` if the address is in
/// no mapping.
fn replace_page(address: usize) -> bool {
    let page = PAGE.load(Ordering::Acquire);
    REGIONS.iter().any(|slot| {
        let (start, end) = (slot.start.load(Ordering::Acquire), slot.end.load(Ordering::Acquire));
        let inside = start != 0 && (start..end).contains(&address);
        // Between the two loads the slot may have been given to another mapping: its old start and
        // new end then enclose memory of others.
        if !inside || slot.start.load(Ordering::Acquire) != start {
            return false;
        }
        slot.broken.store(true, Ordering::Release);
        let at = (address / page * page) as *mut libc::c_void;
        // SAFETY: one page of this slot's mapping, which lives as long as the faulting copy borrows
        // it. The mapping begins at the start of a page, so no other object shares the page.
        let got = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            libc::mmap(at, page, libc::PROT_READ, flags, -1, 0)
        };
        got != libc::MAP_FAILED
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn reading_a_truncated_file_fails_without_a_crash() {
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

    #[test]
    fn uncached_blocks_are_missing_until_fetched() {
        let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.write_all(&vec![7; 3 * BLOCK + 5]).unwrap();
        file.as_file().sync_all().unwrap();
        let mapping = Mapping::new(file.as_file(), 3 * BLOCK + 5).unwrap();
        // SAFETY: a plain call on an open descriptor: the page cache drops the file.
        unsafe { libc::posix_fadvise(file.as_file().as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(mapping.missing(BLOCK - 1, 2, 5), Some(0));
        mapping.fetch(0, 5);
        for offset in [0, 3 * BLOCK + 4] {
            assert_eq!(mapping.missing(offset, 1, 5), None);
            assert!(mapping.copy(offset, &mut [0]));
        }
        assert_eq!(mapping.missing(usize::MAX, 9, 5), None, "beyond the end there is nothing to wait for");
    }

    /// The name of the test below, which starts it in a separate process.
    const CHILD: &str = "RIVULET_TEST_SIGBUS";

    extern "C" fn note_and_exit(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel's siginfo; _exit may be called in a handler.
        unsafe { libc::_exit(if (*info).si_code > 0 { 42 } else { 43 }) };
    }

    #[test]
    fn foreign_sigbus_reaches_the_former_handler() {
        if let Ok(how) = std::env::var(CHILD) {
            sigbus_elsewhere(&how);
        }
        let exit = |how: &str| {
            let name = "http::guard::tests::foreign_sigbus_reaches_the_former_handler";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", name, "--nocapture"]).env(CHILD, how).output().unwrap().status
        };
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(exit("fault").code(), Some(42), "a fault in a mapping of others");
        assert_eq!(exit("sent").code(), Some(43), "a signal that was sent");
        assert_eq!(exit("default fault").signal(), Some(libc::SIGBUS));
        assert_eq!(exit("default sent").signal(), Some(libc::SIGBUS));
    }

    /// In a separate process: installs a handler, then this module's, and causes a SIGBUS outside
    /// of its mappings.
    fn sigbus_elsewhere(how: &str) -> ! {
        // SAFETY: the action is initialised; the mapping is read beyond its file's end on purpose.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction =
                if how.starts_with("default") { libc::SIG_DFL } else { note_and_exit as *const () as usize };
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[7; 9000]).unwrap();
            let ours = Mapping::new(&file, 9000).unwrap();
            let flags = libc::MAP_SHARED;
            let other = libc::mmap(std::ptr::null_mut(), 9000, libc::PROT_READ, flags, file.as_raw_fd(), 0)
                .cast::<u8>();
            file.set_len(0).unwrap();
            assert!(!ours.copy(0, &mut [0]), "our own is survived");
            if how.ends_with("sent") {
                libc::raise(libc::SIGBUS);
            } else {
                other.read_volatile();
            }
            libc::_exit(1)
        }
    }
}

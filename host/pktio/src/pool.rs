//! Page-backed memory with a fixed address that the kernel may keep; pages become resident when
//! touched.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Anonymous pages, initially zero, released on drop.
pub(crate) struct Pool {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages belong to this object alone and are reached through `&self`/`&mut self` only.
unsafe impl Send for Pool {}

impl Pool {
    /// Maps `len` bytes, more than 0.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh anonymous mapping; no existing memory is touched.
        let ptr = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, kind)? };
        let ptr = NonNull::new(ptr.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Pool { ptr, len })
    }

    /// The address of byte `offset`, for the kernel.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        // SAFETY: within the mapping or one past its end.
        unsafe { self.ptr.as_ptr().add(offset) }
    }

    /// Bytes `offset..offset + len`.
    pub(crate) fn slice(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: inside the mapping, which lives as long as `self`; every bit pattern is a u8, and
        // the kernel writes only during a system call or into slots the ring protocol gave it.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().add(offset), len) }
    }

    /// Bytes `offset..offset + len`, mutable.
    pub(crate) fn slice_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: as in `slice`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().add(offset), len) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; no reference outlives `self`.
        let _ = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

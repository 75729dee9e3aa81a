//! Counts the allocations of the server, among those of the client and the test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system allocator unchanged; counting uses only const-initialised thread-locals.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + u64::from(COUNTING.with(Cell::get))));
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Does the work with its allocations counted.
pub fn counted<T>(work: impl FnOnce() -> T) -> T {
    COUNTING.with(|c| c.set(true));
    let result = work();
    COUNTING.with(|c| c.set(false));
    result
}

/// Does the work without counting, within [`counted`] work.
pub fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let before = COUNTING.with(|c| c.replace(false));
    let result = work();
    COUNTING.with(|c| c.set(before));
    result
}

/// Allocations counted in this thread.
pub fn count() -> u64 {
    COUNT.with(Cell::get)
}

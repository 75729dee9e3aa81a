//! All memory that the program writes: a static stack, a static heap, and the figures about both.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Size of the stack in bytes.
pub const STACK_BYTES: usize = 32 << 10;
/// Size of the heap in bytes.
const HEAP_BYTES: usize = 28 << 10;
/// Word that marks unused stack.
const PAINT: u64 = 0x5a5a_5a5a_5a5a_5a5a;
/// Bytes below the frame of [`paint`] that it leaves alone, because its own calls use them.
const OWN_FRAMES: usize = 1 << 10;

/// Memory without an owner in the type system.
#[repr(C, align(16))]
pub struct Area<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: the program has one thread.
unsafe impl<const N: usize> Sync for Area<N> {}

pub static STACK: Area<STACK_BYTES> = Area(UnsafeCell::new([0; STACK_BYTES]));
static HEAP: Area<HEAP_BYTES> = Area(UnsafeCell::new([0; HEAP_BYTES]));

fn words() -> *mut u64 {
    STACK.0.get().cast()
}

/// Marks the unused part of the stack.
pub fn paint() {
    let here = 0u8;
    let unused = (&raw const here).addr() - words().addr() - OWN_FRAMES;
    for i in 0..unused / size_of::<u64>() {
        // SAFETY: within the stack, and below the frames in use.
        unsafe { words().add(i).write_volatile(PAINT) };
    }
}

fn is_painted(i: usize) -> bool {
    // SAFETY: within the stack; whatever is there is a number.
    unsafe { words().add(i).read_volatile() == PAINT }
}

/// Whether the last word of the stack was written.
pub fn stack_overflowed() -> bool {
    !is_painted(0)
}

/// The largest number of bytes that the stack has had.
fn stack_peak() -> usize {
    let unused = (0..STACK_BYTES / size_of::<u64>()).take_while(|&i| is_painted(i)).count();
    STACK_BYTES - unused * size_of::<u64>()
}

/// Hands the heap out from its start to its end, and takes nothing back: after the start nothing is allocated.
struct Bump {
    used: AtomicUsize,
}

#[global_allocator]
static ALLOCATOR: Bump = Bump { used: AtomicUsize::new(0) };

// SAFETY: every block begins behind the one before it, has the size and the alignment of its layout, and lies within the
// heap, which only this allocator uses.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = HEAP.0.get().cast::<u8>();
        let used = self.used.load(Ordering::Relaxed);
        let begin = (base.addr() + used).next_multiple_of(layout.align()) - base.addr();
        let end = begin.saturating_add(layout.size());
        if end > HEAP_BYTES {
            return core::ptr::null_mut();
        }
        self.used.store(end, Ordering::Relaxed);
        base.wrapping_add(begin)
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

/// Displays what memory there is and how much of it was used.
pub struct Figures;

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Symbols of the linker: the addresses of the sections.
        unsafe extern "C" {
            safe static __executable_start: u8;
            safe static etext: u8;
            safe static __bss_start: u8;
            safe static end: u8;
        }
        let at = |symbol: *const u8| symbol.addr();
        let code = at(&raw const etext) - at(&raw const __executable_start);
        let written = at(&raw const end) - at(&raw const __bss_start);
        write!(
            f,
            "code and pages {code}, memory {written}, heap {} of {HEAP_BYTES}, stack {} of {STACK_BYTES}",
            ALLOCATOR.used.load(Ordering::Relaxed),
            stack_peak(),
        )
    }
}

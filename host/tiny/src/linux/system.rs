//! The system calls of Linux on x86-64 that the program makes, without a C library.

use core::arch::asm;
use core::ffi::{CStr, c_char};
use core::fmt;

/// asm/unistd_64.h
const READ: usize = 0;
const WRITE: usize = 1;
const OPEN: usize = 2;
const IOCTL: usize = 16;
const EXIT: usize = 60;
const CLOCK_GETTIME: usize = 228;
const GETRANDOM: usize = 318;
/// asm/errno.h
const EINTR: i32 = 4;
/// asm/fcntl.h
const O_RDWR: usize = 2;
const O_CLOEXEC: usize = 0o2_000_000;

/// An error of the system: a number of errno(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// Makes a system call with three arguments.
///
/// # Safety
/// The call must not write memory that the arguments do not lend to it.
unsafe fn call(number: usize, a: usize, b: usize, c: usize) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel keeps all registers but rax, rcx and r11. What it writes is the caller's concern.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    usize::try_from(result).map_err(|_| Errno(-result as i32))
}

/// The arguments of the process: a pointer to their number, which the pointers to each follow.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Arguments(*const usize);

impl Arguments {
    /// Argument `index`; the first is the name of the program.
    pub fn get(&self, index: usize) -> Option<&'static CStr> {
        // SAFETY: the kernel puts the number of arguments and their addresses on the first stack of the process, where
        // they stay. Each argument ends with a zero byte.
        unsafe {
            let count = *self.0;
            let argument = || *self.0.add(1 + index).cast::<*const c_char>();
            (index < count).then(|| CStr::from_ptr(argument()))
        }
    }
}

/// An open file. It stays open until the process ends.
pub struct File(usize);

impl File {
    /// Opens a file for reading and writing.
    pub fn open(path: &CStr) -> Result<File, Errno> {
        // SAFETY: the path ends with a zero byte, and the call writes no memory.
        unsafe { call(OPEN, path.as_ptr().addr(), O_RDWR | O_CLOEXEC, 0) }.map(File)
    }

    /// Reads into the buffer and returns how many bytes.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        loop {
            // SAFETY: the kernel writes at most the bytes of the buffer, which is lent to this call.
            match unsafe { call(READ, self.0, buffer.as_mut_ptr().expose_provenance(), buffer.len()) } {
                Err(Errno(EINTR)) => {}
                done => return done,
            }
        }
    }

    /// Writes the bytes and returns how many were written.
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        // SAFETY: the call writes no memory.
        unsafe { call(WRITE, self.0, bytes.as_ptr().expose_provenance(), bytes.len()) }
    }

    /// Makes a request that reads and may write this structure.
    ///
    /// # Safety
    /// The request must be one for a structure of at most `N` bytes.
    pub unsafe fn ioctl<const N: usize>(
        &self,
        request: usize,
        argument: &mut [u8; N],
    ) -> Result<usize, Errno> {
        // SAFETY: the caller names a request that writes at most this structure.
        unsafe { call(IOCTL, self.0, request, argument.as_mut_ptr().expose_provenance()) }
    }
}

/// Reads the first `N` bytes of a file. An error also where it has fewer.
pub fn read_exactly<const N: usize>(path: &CStr) -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    let file = File::open(path)?;
    let mut read = 0;
    while read < N {
        match file.read(&mut bytes[read..])? {
            0 => return Err(Errno(0)),
            more => read += more,
        }
    }
    Ok(bytes)
}

/// Random bytes of the kernel.
pub fn random<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    // SAFETY: the kernel writes at most these bytes.
    match unsafe { call(GETRANDOM, bytes.as_mut_ptr().expose_provenance(), N, 0) }? {
        length if length == N => Ok(bytes),
        _ => Err(Errno(0)),
    }
}

/// The real time in microseconds since 1970.
pub fn clock_us() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: the kernel writes one timespec, two numbers of 64 bits. Clock 0 is CLOCK_REALTIME, which always exists.
    let _ = unsafe { call(CLOCK_GETTIME, 0, time.as_mut_ptr().expose_provenance(), 0) };
    time[0] * 1_000_000 + time[1] / 1_000
}

/// Ends the process.
pub fn exit(code: i32) -> ! {
    loop {
        // SAFETY: the call writes no memory.
        let _ = unsafe { call(EXIT, code as usize, 0, 0) };
    }
}

/// Standard output or standard error, for text.
pub struct Output(File);

impl Output {
    pub fn standard() -> Output {
        Output(File(1))
    }
    pub fn error() -> Output {
        Output(File(2))
    }
}

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes()).map(drop).map_err(|_| fmt::Error)
    }
}

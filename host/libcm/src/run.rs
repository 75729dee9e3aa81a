//! Runs kernel programs by BPF_PROG_RUN, which needs no privilege except the descriptor.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::abi::{BULK, Bulk, Op, Opening, Plain};

/// linux/bpf.h
const BPF_PROG_TEST_RUN: libc::c_int = 10;

/// `union bpf_attr`, as far as this command uses it.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    unused: u32,
}

/// Runs a program of type `BPF_PROG_TYPE_SYSCALL`, which may change its arguments.
///
/// # Errors
/// The kernel's error; EPERM or ENOSYS in a sandbox that forbids bpf(2).
pub fn run<T: Plain>(program: BorrowedFd<'_>, arguments: &mut T) -> io::Result<()> {
    let bytes = arguments.bytes_mut();
    let mut attributes = Attributes {
        prog_fd: program.as_raw_fd() as u32,
        ctx_size_in: bytes.len() as u32,
        ctx_in: bytes.as_mut_ptr() as u64,
        ..Attributes::default()
    };
    let size = size_of::<Attributes>();
    // SAFETY: both live through the call, and the kernel writes at most `size` bytes.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attributes, size) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Executes a client's calls.
pub trait Calls {
    /// Opens a flow.
    ///
    /// # Errors
    /// The call could not be made; `opening` holds the result of the operation.
    fn open(&mut self, opening: &mut Opening) -> io::Result<()>;

    /// Does at most [`BULK`] operations in order.
    ///
    /// # Errors
    /// The call could not be made; each operation holds its own result.
    fn call(&mut self, ops: &mut [Op]) -> io::Result<()>;
}

/// The descriptors of the kernel programs.
#[derive(Debug)]
pub struct Descriptors {
    /// `cm_open`
    pub open: OwnedFd,
    /// `cm_call`
    pub call: OwnedFd,
    /// `cm_calls`
    pub calls: OwnedFd,
}

impl Calls for Descriptors {
    fn open(&mut self, opening: &mut Opening) -> io::Result<()> {
        use std::os::fd::AsFd;
        run(self.open.as_fd(), opening)
    }

    fn call(&mut self, ops: &mut [Op]) -> io::Result<()> {
        use std::os::fd::AsFd;
        if let [op] = ops {
            return run(self.call.as_fd(), op);
        }
        let count = ops.len().min(BULK);
        let mut bulk = Bulk { ops: [Op::default(); BULK] };
        bulk.ops[..count].copy_from_slice(&ops[..count]);
        run(self.calls.as_fd(), &mut bulk)?;
        ops[..count].copy_from_slice(&bulk.ops[..count]);
        Ok(())
    }
}

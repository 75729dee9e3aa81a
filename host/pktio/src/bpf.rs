//! bpf(2): maps, XDP programs, and their links to interfaces.
//!
//! Everything is a descriptor and goes with the process, however that ends.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const LINK_UPDATE: libc::c_long = 29;

const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_XSKMAP: u32 = 17;
const MAP_FLAG_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;

/// Attaches behind the driver, where every interface can.
pub(crate) const GENERIC: u32 = 1 << 1;
/// Attaches in the driver.
pub(crate) const NATIVE: u32 = 1 << 2;

/// Octets of `union bpf_attr` that are used here; the rest counts as zero.
const ATTR: usize = 128;
/// Octets for what the verifier says of a program that it refuses.
const LOG: usize = 1 << 20;
/// Last lines of that which an error shows.
const LOG_LINES: usize = 4;

/// One instruction: opcode, registers, offset, constant.
pub(crate) type Instruction = [u8; 8];

/// The attributes of a command.
struct Attr([u8; ATTR]);

impl Attr {
    fn new(words: &[(usize, u32)]) -> Attr {
        let mut attr = Attr([0; ATTR]);
        for (at, value) in words {
            attr.0[*at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        attr
    }

    fn pointer<T>(mut self, at: usize, value: *const T) -> Attr {
        self.0[at..at + 8].copy_from_slice(&(value as u64).to_ne_bytes());
        self
    }
}

/// bpf(2) with the attributes' first octets; a negative result is an error.
fn bpf(command: libc::c_long, attr: &mut Attr) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is ATTR octets; pointers inside it, where the command has any, point to live memory of
    // the sizes the command expects.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, attr.0.as_mut_ptr(), ATTR) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: a descriptor that bpf(2) just made, nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// A map of one socket, for `bpf_redirect_map`.
pub(crate) fn socket_map() -> io::Result<OwnedFd> {
    // map_type, key_size, value_size, max_entries
    bpf(MAP_CREATE, &mut Attr::new(&[(0, MAP_TYPE_XSKMAP), (4, 4), (8, 4), (12, 1)])).map(owned)
}

/// A map of one value of so many octets that programs read and this process has mapped (Linux 5.5).
pub(crate) fn shared_map(octets: u32) -> io::Result<OwnedFd> {
    let words = [(0, MAP_TYPE_ARRAY), (4, 4), (8, octets), (12, 1), (16, MAP_FLAG_MMAPABLE)];
    bpf(MAP_CREATE, &mut Attr::new(&words)).map(owned)
}

/// Puts a socket into its map.
pub(crate) fn map_set(map: &OwnedFd, socket: RawFd) -> io::Result<()> {
    let (key, value) = (0u32, socket as u32);
    let attr = Attr::new(&[(0, map.as_raw_fd() as u32)]);
    bpf(MAP_UPDATE_ELEM, &mut attr.pointer(8, &raw const key).pointer(16, &raw const value)).map(drop)
}

/// Loads an XDP program. If the verifier refuses it the error holds the last lines of what it says.
pub(crate) fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    // No helper that is used is one of those reserved to GPL programs.
    let license = c"Apache-2.0";
    let attr = |more: &[(usize, u32)]| {
        let mut words = vec![(0, PROG_TYPE_XDP), (4, program.len() as u32)];
        words.extend(more);
        Attr::new(&words).pointer(8, program.as_ptr()).pointer(16, license.as_ptr())
    };
    let error = match bpf(PROG_LOAD, &mut attr(&[])) {
        Ok(fd) => return Ok(owned(fd)),
        Err(e) => e,
    };
    if error.raw_os_error() == Some(libc::EPERM) {
        return Err(io::Error::new(error.kind(), format!("{error} (needs CAP_BPF and CAP_NET_ADMIN)")));
    }
    // Once more, to hear why.
    let mut log = vec![0u8; LOG];
    // log_level, log_size, log_buf
    let mut attr = attr(&[(24, 1), (28, LOG as u32)]).pointer(32, log.as_mut_ptr());
    if let Ok(fd) = bpf(PROG_LOAD, &mut attr) {
        return Ok(owned(fd));
    }
    let text = String::from_utf8_lossy(log.split(|b| *b == 0).next().unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("; ");
    Err(io::Error::new(error.kind(), format!("{error}; the verifier: {last}")))
}

/// Attaches a program to the interface of this index; closing the link takes it off.
pub(crate) fn attach(program: &OwnedFd, index: u32, mode: u32) -> io::Result<OwnedFd> {
    // prog_fd, target_ifindex, attach_type, flags
    let words = [(0, program.as_raw_fd() as u32), (4, index), (8, ATTACH_XDP), (12, mode)];
    bpf(LINK_CREATE, &mut Attr::new(&words)).map(owned)
}

/// Has a link use another program, from one frame to the next.
pub(crate) fn replace(link: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    // link_fd, new_prog_fd
    let words = [(0, link.as_raw_fd() as u32), (4, program.as_raw_fd() as u32)];
    bpf(LINK_UPDATE, &mut Attr::new(&words)).map(drop)
}

/// Runs a program on a frame of 14 octets or more and returns its verdict.
#[cfg(test)]
pub(crate) fn run(program: &OwnedFd, frame: &[u8]) -> io::Result<u32> {
    const PROG_TEST_RUN: libc::c_long = 10;
    let mut out = vec![0u8; frame.len() + 256];
    // prog_fd, data_size_in, data_size_out
    let words = [(0, program.as_raw_fd() as u32), (8, frame.len() as u32), (12, out.len() as u32)];
    let mut attr = Attr::new(&words).pointer(16, frame.as_ptr()).pointer(24, out.as_mut_ptr());
    bpf(PROG_TEST_RUN, &mut attr)?;
    Ok(u32::from_ne_bytes([attr.0[4], attr.0[5], attr.0[6], attr.0[7]]))
}

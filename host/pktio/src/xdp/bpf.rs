//! The XDP program: "to the socket of this queue, else on to the kernel", by bpf(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const FLAGS_SKB_MODE: u32 = 1 << 1;
const FLAGS_DRV_MODE: u32 = 1 << 2;

/// Octets of `union bpf_attr` that are used here; the rest counts as zero.
const ATTR: usize = 128;

/// The program on its interface; closing the link takes it off.
pub(super) struct Attached {
    _link: OwnedFd,
    _map: OwnedFd,
}

impl Attached {
    /// Redirects queue 0 of the interface to the socket.
    pub(super) fn new(socket: BorrowedFd<'_>, index: u32) -> Result<Self, (&'static str, io::Error)> {
        let map = map_create().map_err(|e| ("BPF_MAP_CREATE", e))?;
        map_set(map.as_raw_fd(), socket.as_raw_fd()).map_err(|e| ("BPF_MAP_UPDATE_ELEM", e))?;
        let program = load(map.as_raw_fd()).map_err(|e| ("BPF_PROG_LOAD", e))?;
        // In the driver if it can (veth can), else behind it.
        let link = attach(&program, index, FLAGS_DRV_MODE)
            .or_else(|e| match e.raw_os_error() {
                Some(libc::EBUSY) => Err(e),
                _ => attach(&program, index, FLAGS_SKB_MODE),
            })
            .map_err(|e| ("attaching the XDP program", e))?;
        Ok(Attached { _link: link, _map: map })
    }
}

/// bpf(2) with the attributes' first octets; a negative result is an error.
fn bpf(command: libc::c_long, attr: &[u8; ATTR]) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is ATTR readable octets; pointers inside it, where the command has any, point to live
    // memory of the sizes the command expects.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), ATTR) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: a descriptor that bpf(2) just made, nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

fn put(attr: &mut [u8; ATTR], at: usize, value: u32) {
    attr[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn put_pointer<T>(attr: &mut [u8; ATTR], at: usize, value: *const T) {
    attr[at..at + 8].copy_from_slice(&(value as u64).to_ne_bytes());
}

fn map_create() -> io::Result<OwnedFd> {
    let mut attr = [0; ATTR];
    // map_type, key_size, value_size, max_entries
    for (at, value) in [(0, MAP_TYPE_XSKMAP), (4, 4), (8, 4), (12, 1)] {
        put(&mut attr, at, value);
    }
    bpf(MAP_CREATE, &attr).map(owned)
}

fn map_set(map: RawFd, socket: RawFd) -> io::Result<()> {
    let (key, value) = (0u32, socket as u32);
    let mut attr = [0; ATTR];
    put(&mut attr, 0, map as u32);
    put_pointer(&mut attr, 8, &raw const key);
    put_pointer(&mut attr, 16, &raw const value);
    bpf(MAP_UPDATE_ELEM, &attr).map(drop)
}

/// One instruction: opcode, destination and source register, offset, constant.
fn instruction(code: u8, dst: u8, src: u8, offset: i16, constant: i32) -> [u8; 8] {
    let [o0, o1] = offset.to_ne_bytes();
    let [c0, c1, c2, c3] = constant.to_ne_bytes();
    [code, src << 4 | dst, o0, o1, c0, c1, c2, c3]
}

fn load(map: RawFd) -> io::Result<OwnedFd> {
    const REDIRECT_MAP: i32 = 51;
    const XDP_PASS: i32 = 2;
    const RX_QUEUE_INDEX: i16 = 16;
    const PSEUDO_MAP_FD: u8 = 1;
    let program = [
        // r2 = ctx->rx_queue_index
        instruction(0x61, 2, 1, RX_QUEUE_INDEX, 0),
        // r1 = map (two instructions)
        instruction(0x18, 1, PSEUDO_MAP_FD, 0, map),
        instruction(0, 0, 0, 0, 0),
        // r3 = what to do without a socket
        instruction(0xb7, 3, 0, 0, XDP_PASS),
        // return bpf_redirect_map(r1, r2, r3)
        instruction(0x85, 0, 0, 0, REDIRECT_MAP),
        instruction(0x95, 0, 0, 0, 0),
    ];
    // The helper is not one of those reserved to GPL programs.
    let license = c"Apache-2.0";
    let mut attr = [0; ATTR];
    put(&mut attr, 0, PROG_TYPE_XDP);
    put(&mut attr, 4, program.len() as u32);
    put_pointer(&mut attr, 8, program.as_ptr());
    put_pointer(&mut attr, 16, license.as_ptr());
    bpf(PROG_LOAD, &attr).map(owned)
}

fn attach(program: &OwnedFd, index: u32, flags: u32) -> io::Result<OwnedFd> {
    let mut attr = [0; ATTR];
    // prog_fd, target_ifindex, attach_type, flags
    for (at, value) in [(0, program.as_raw_fd() as u32), (4, index), (8, ATTACH_XDP), (12, flags)] {
        put(&mut attr, at, value);
    }
    bpf(LINK_CREATE, &attr).map(owned)
}

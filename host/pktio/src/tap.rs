//! A TAP interface whose frames a process reads, with large segments and partial checksums as their
//! sender left them.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::vnet::{VNET_LEN, Vnet};
use crate::{Checksum, Interface, LinkInfo, OpenError, Segmentation, in_netns};

/// Offloads that senders may leave to the hardware.
const OFFLOADS: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
/// linux/sockios.h
const SIOCSIFTXQLEN: libc::Ioctl = 0x8943;

/// Bytes of the longest frame: the largest IP packet with its Ethernet header.
pub const MAX_FRAME: usize = 14 + 65_535;

/// A TAP of this process; dropping it removes the interface.
#[derive(Debug)]
pub struct Tap {
    file: File,
    interface: Interface,
    index: u32,
}

/// Metadata of a frame that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapFrame {
    /// Length in bytes.
    pub len: usize,
    /// State of its checksum.
    pub checksum: Checksum,
    /// How to cut it, if it is longer than the MTU.
    pub segmentation: Option<Segmentation>,
}

impl Tap {
    /// Creates a TAP in a network namespace (a name of `ip netns` or a path) or the calling
    /// thread's. The kernel chooses its name from `pattern` (`tap%d`). Up to `queue` frames wait to
    /// be read. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// [`OpenError::Os`]: `ENOENT` where the kernel lacks TAPs (`CONFIG_TUN`).
    pub fn new(pattern: &str, queue: u32, netns: Option<&str>) -> Result<Tap, OpenError> {
        let failed = |operation| move |source| OpenError::Os { interface: pattern.into(), operation, source };
        let made = in_netns(netns, || {
            let (file, name) = open(pattern).map_err(failed("/dev/net/tun"))?;
            start(&name, queue).map_err(failed("starting the TAP"))?;
            Ok((file, name))
        });
        let (file, name) = made??;
        let interface = Interface::new(netns, &name)?;
        let index = LinkInfo::of(&interface)?.index;
        Ok(Tap { file, interface, index })
    }

    /// Its name.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Its index in its namespace.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Reads the next frame into `buffer`, which must have [`MAX_FRAME`] bytes; `None` if none
    /// waits. Skips frames with an unknown segmentation type.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<TapFrame>> {
        loop {
            let mut header = [0; VNET_LEN];
            let parts = &mut [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
            let len = match self.file.read_vectored(parts) {
                Ok(n) => n.saturating_sub(VNET_LEN),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let Vnet { checksum, segmentation, unknown_gso } = Vnet::parse(&header);
            if !unknown_gso {
                return Ok(Some(TapFrame { len, checksum, segmentation }));
            }
        }
    }

    /// Injects a frame as if the interface had received it: whole, with its checksum.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        self.file.write_vectored(&[IoSlice::new(&[0; VNET_LEN]), IoSlice::new(frame)]).map(drop)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open(pattern: &str) -> io::Result<(File, String)> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let mut request = request(pattern)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: the request reads and writes one ifreq.
    ok(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    // SAFETY: the request takes a number.
    ok(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(OFFLOADS)) })?;
    // SAFETY: the kernel wrote a terminated name.
    let name = unsafe { CStr::from_ptr(request.ifr_name.as_ptr()) };
    Ok((file, name.to_string_lossy().into_owned()))
}

/// Sets the length of its queue and brings it up.
fn start(name: &str, queue: u32) -> io::Result<()> {
    // Best effort: keep the kernel from sending IPv6 packets on it. All frames read from it are
    // checked anyway.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
    let mut request = request(name)?;
    request.ifr_ifru.ifru_metric = queue as libc::c_int;
    // SAFETY: these requests read one ifreq.
    ok(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCSIFTXQLEN, &raw mut request) })?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_NOARP) as libc::c_short;
    // SAFETY: as above.
    ok(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) })
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn ok(rc: libc::c_int) -> io::Result<()> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

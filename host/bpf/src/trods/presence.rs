//! Whether the programs of a process that died are still on an interface ([`crate::linger`]): a name that only lives as long as
//! they do says so, in the namespace of the interface. What they are the kernel tells nobody without `CAP_SYS_ADMIN`.

use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Names that an interface's programs may have: one for those that are there, others for as many processes as die within seconds.
const NAMES: u32 = 8;

/// A name for programs on the interface of this index, in the namespace of the calling thread, as long as what has it is open; none
/// if all are taken. And whether others have one.
///
/// # Errors
/// The system's.
pub(super) fn claim(index: u32) -> io::Result<(Option<UnixDatagram>, bool)> {
    let (mut own, mut others) = (None, false);
    for n in 0..NAMES {
        let name = SocketAddr::from_abstract_name(format!("rivulet-trods-{index}-{n}"))?;
        match UnixDatagram::bind_addr(&name) {
            Ok(socket) if own.is_none() => own = Some(socket),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::AddrInUse => others = true,
            Err(e) => return Err(e),
        }
    }
    Ok((own, others))
}

#[cfg(test)]
mod tests {
    use super::claim;

    #[test]
    fn whoever_is_there_is_seen_for_as_long_as_it_is() {
        // Of no interface.
        let of = || claim(u32::MAX).unwrap();
        let (first, others) = of();
        assert!(first.is_some() && !others);
        let (second, others) = of();
        assert!(second.is_some() && others);
        drop(first);
        // It has the first name now, and sees who has the second.
        let (third, others) = of();
        assert!(third.is_some() && others);
        drop(second);
        assert!(of().1);
        drop(third);
        assert!(!of().1);
    }
}

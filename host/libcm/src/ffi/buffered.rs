//! CM-UDP sockets for C: the library queues datagrams and sends them as they are granted.

use std::ffi::{c_int, c_void};
use std::io;
use std::net::UdpSocket;
use std::os::fd::BorrowedFd;

use super::{State, address, answer, invalid, opened, with};
use crate::{CmUdp, Error, FlowId};

/// A socket whose datagrams the library sends.
pub(super) struct Buffered {
    udp: CmUdp,
    /// Why a datagram could not be sent; the next call returns it.
    failed: Option<Error>,
}

/// # Safety
/// `dst` is null or points to a socket address of its family.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cm_udp_open(fd: c_int, dst: *const libc::sockaddr, limit: usize) -> u64 {
    if fd < 0 {
        return opened(Err(Error::of("cm_udp_open")(io::Error::from_raw_os_error(libc::EBADF))));
    }
    // SAFETY: only duplicated here, and duplicating fails on a bad descriptor.
    let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map_err(Error::of("cm_udp_open"));
    opened(copy.map(UdpSocket::from).and_then(|socket| {
        let dst = if dst.is_null() {
            socket.peer_addr().map_err(Error::of("getting the socket's peer address"))
        } else {
            // SAFETY: the caller's promise.
            unsafe { address(dst) }
        }?;
        with(|s| {
            let udp = CmUdp::new(&mut s.client, socket, dst, limit)?;
            let flow = udp.flow();
            s.buffered.insert(flow.0, Buffered { udp, failed: None });
            Ok(flow)
        })
    }))
}

/// # Safety
/// `datagram` points to `length` bytes, or `length` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cm_udp_send(flow: u64, datagram: *const c_void, length: usize) -> c_int {
    let bytes: &[u8] = match length {
        0 => &[],
        _ if datagram.is_null() || length > isize::MAX as usize => {
            return answer(Err(invalid("cm_udp_send: the datagram is null")));
        }
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(datagram.cast(), length) },
    };
    answer(with(|s| {
        let State { client, buffered, .. } = s;
        let of = buffered.get_mut(&flow).ok_or(rivulet_cm::Error::NoFlow)?;
        if let Some(failed) = of.failed.take() {
            return Err(failed);
        }
        of.udp.send(client, bytes).map(|()| 0)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_udp_waiting(flow: u64) -> c_int {
    answer(with(|s| {
        let of = s.buffered.get(&flow).ok_or(rivulet_cm::Error::NoFlow)?;
        Ok(c_int::try_from(of.udp.waiting()).unwrap_or(c_int::MAX))
    }))
}

/// What a CM-UDP flow did with a grant.
pub(super) enum Turn {
    /// The flow is not a CM-UDP flow.
    None,
    /// It sent a datagram, or its queue was empty.
    Done,
    /// The socket's buffer is full: other flows go first.
    Full,
}

pub(super) fn granted(state: &mut State, flow: FlowId) -> Turn {
    let Some(of) = state.buffered.get_mut(&flow.0) else { return Turn::None };
    match of.udp.granted(&mut state.client) {
        Ok(_) => Turn::Done,
        Err(Error::Os { error, .. }) if error.kind() == io::ErrorKind::WouldBlock => Turn::Full,
        Err(e) => {
            of.failed = Some(e);
            Turn::Done
        }
    }
}

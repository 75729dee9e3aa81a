//! The C interface `include/cm.h`, with the paper's names, over one client per process.

mod buffered;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use buffered::{Buffered, Turn};
use rivulet_cm::{Congestion, Error as Refusal, Status, Thresholds, Update};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::{Client, Error, Event, FlowId, MAX_BULK, MacroflowId, daemon, path};

/// `struct cm_status`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CmStatus {
    rate: u64,
    srtt: u64,
    rttdev: u64,
    loss: u32,
}

/// `struct cm_feedback`
#[repr(C)]
pub struct CmFeedback {
    flow: u64,
    nsent: u64,
    nrecd: u64,
    lossmode: c_int,
    result: c_int,
    rtt: u64,
}

/// `struct cm_item`
#[repr(C)]
pub struct CmItem {
    flow: u64,
    nsent: u32,
    result: c_int,
    status: CmStatus,
}

type SendCallback = unsafe extern "C" fn(u64, *mut c_void);
type UpdateCallback = unsafe extern "C" fn(u64, *const CmStatus, *mut c_void);

/// The pointer that C registered with a callback.
#[derive(Clone, Copy)]
struct Context(*mut c_void);
// SAFETY: C decides in which thread it dispatches.
unsafe impl Send for Context {}

#[derive(Clone, Copy, Default)]
struct Callbacks {
    send: Option<(SendCallback, Context)>,
    update: Option<(UpdateCallback, Context)>,
}

struct State {
    client: Client,
    callbacks: BTreeMap<u64, Callbacks>,
    buffered: BTreeMap<u64, Buffered>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
/// Wakes `cm_loop` to end it.
static STOP: LazyLock<Option<OwnedFd>> =
    LazyLock::new(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok());

thread_local! {
    static SAID: RefCell<CString> = RefCell::default();
}

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(error: &Error) -> c_int {
    match error {
        Error::Refused(Refusal::NoFlow | Refusal::NoMacroflow) => libc::ENOENT,
        Error::Refused(Refusal::Open) => libc::EEXIST,
        Error::Refused(Refusal::Full) => libc::EMFILE,
        Error::Refused(Refusal::Requests) => libc::EAGAIN,
        Error::Refused(_) => libc::EINVAL,
        Error::Os { error, .. } => error.raw_os_error().unwrap_or(match error.kind() {
            io::ErrorKind::InvalidInput => libc::EINVAL,
            io::ErrorKind::PermissionDenied => libc::EACCES,
            _ => libc::EIO,
        }),
    }
}

fn fail(errno: c_int, said: &dyn std::fmt::Display) {
    let said = CString::new(said.to_string()).unwrap_or_default();
    SAID.with_borrow_mut(|last| *last = said);
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Result for C: the value, or -1 with errno set.
fn answer(done: Result<c_int, Error>) -> c_int {
    done.unwrap_or_else(|e| {
        fail(errno(&e), &e);
        -1
    })
}

fn invalid(what: &'static str) -> Error {
    Error::of(what)(io::Error::from_raw_os_error(libc::EINVAL))
}

fn connect(socket: Option<PathBuf>) -> Result<State, Error> {
    let socket = socket.or_else(|| std::env::var_os("RIVULET_CM").map(PathBuf::from));
    let socket = socket.unwrap_or_else(|| PathBuf::from(daemon::SOCKET));
    let client = Client::connect(&socket)?;
    Ok(State { client, callbacks: BTreeMap::new(), buffered: BTreeMap::new() })
}

/// Calls `f` with the process's client, connecting it first if needed.
fn with<T>(f: impl FnOnce(&mut State) -> Result<T, Error>) -> Result<T, Error> {
    let mut state = state();
    if state.is_none() {
        *state = Some(connect(None)?);
    }
    state.as_mut().map_or_else(|| Err(invalid("the client")), f)
}

/// # Safety
/// `socket` is null or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cm_init(socket: *const c_char) -> c_int {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: the caller's promise.
    let path = (!socket.is_null()).then(|| unsafe { CStr::from_ptr(socket) });
    let path = path.map(|p| PathBuf::from(std::ffi::OsStr::from_bytes(p.to_bytes())));
    let mut state = state();
    if state.is_some() {
        return answer(Err(invalid("cm_init: the process already has a client")));
    }
    answer(connect(path).map(|new| {
        *state = Some(new);
        0
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_end() {
    *state() = None;
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_fd() -> c_int {
    answer(with(|s| Ok(s.client.as_fd().as_raw_fd())))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_async(signal: c_int) -> c_int {
    answer(with(|s| s.client.signal((signal != 0).then_some(signal)).map(|()| 0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_proxied() -> c_int {
    answer(with(|s| Ok(c_int::from(s.client.proxied()))))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_error() -> *const c_char {
    SAID.with_borrow(|said| said.as_ptr())
}

/// # Safety
/// `at` is null or points to a socket address of its family.
unsafe fn address(at: *const libc::sockaddr) -> Result<SocketAddr, Error> {
    if at.is_null() {
        return Err(invalid("the address is null"));
    }
    // SAFETY: the caller's promise. `read_unaligned` allows any alignment.
    match c_int::from(unsafe { (&raw const (*at).sa_family).read_unaligned() }) {
        libc::AF_INET => {
            // SAFETY: the caller's promise: the address has the length of its family.
            let four = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(four.sin_addr.s_addr.to_ne_bytes());
            Ok((ip, u16::from_be(four.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let six = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Ok((Ipv6Addr::from(six.sin6_addr.s6_addr), u16::from_be(six.sin6_port)).into())
        }
        _ => Err(invalid("the address is neither IPv4 nor IPv6")),
    }
}

fn opened(flow: Result<FlowId, Error>) -> u64 {
    number(flow.map(|flow| flow.0))
}

/// Result for C: the value, or 0 with errno set.
fn number(found: Result<u64, Error>) -> u64 {
    found.unwrap_or_else(|e| {
        fail(errno(&e), &e);
        0
    })
}

/// # Safety
/// Both are null or point to socket addresses of their families.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cm_open(src: *const libc::sockaddr, dst: *const libc::sockaddr) -> u64 {
    // SAFETY: the caller's promise.
    let both = unsafe { address(src).and_then(|src| Ok((src, address(dst)?))) };
    opened(both.and_then(|(src, dst)| {
        let found = path::find(src, dst, 0).map_err(Error::of("looking for a route"))?;
        with(|s| s.client.open(&found.0, found.1))
    }))
}

/// # Safety
/// `dst` is null or points to a socket address of its family.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cm_open_socket(fd: c_int, dst: *const libc::sockaddr) -> u64 {
    if fd < 0 {
        return opened(Err(Error::of("cm_open_socket")(io::Error::from_raw_os_error(libc::EBADF))));
    }
    // SAFETY: `ManuallyDrop` never closes it, and the calls below fail on a bad descriptor.
    let socket = ManuallyDrop::new(unsafe { UdpSocket::from_raw_fd(fd) });
    let dst = if dst.is_null() {
        socket.peer_addr().map_err(Error::of("getting the socket's peer address"))
    } else {
        // SAFETY: the caller's promise.
        unsafe { address(dst) }
    };
    opened(dst.and_then(|dst| {
        let (key, mtu) = path::describe(&socket, dst).map_err(Error::of("looking at the socket"))?;
        with(|s| s.client.open(&key, mtu))
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_close(flow: u64) -> c_int {
    answer(with(|s| {
        s.callbacks.remove(&flow);
        s.buffered.remove(&flow);
        s.client.close(FlowId(flow)).map(|()| 0)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_mtu(flow: u64) -> c_int {
    answer(with(|s| Ok(s.client.mtu(FlowId(flow))? as c_int)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_register_send(flow: u64, callback: Option<SendCallback>, context: *mut c_void) -> c_int {
    let context = Context(context);
    answer(with(|s| {
        if s.buffered.contains_key(&flow) {
            return Err(invalid("cm_register_send: the library sends this flow's datagrams"));
        }
        s.client.mtu(FlowId(flow))?;
        s.callbacks.entry(flow).or_default().send = callback.map(|c| (c, context));
        Ok(0)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_request(flow: u64) -> c_int {
    answer(with(|s| s.client.request(FlowId(flow), 1).map(|()| 0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_notify(flow: u64, nsent: u32) -> c_int {
    answer(with(|s| s.client.notify(FlowId(flow), nsent).map(|()| 0)))
}

fn update(nsent: u64, nrecd: u64, lossmode: c_int, rtt: u64) -> Result<Update, Error> {
    let congestion = match lossmode {
        0 => Congestion::None,
        1 => Congestion::Transient,
        2 => Congestion::Persistent,
        3 => Congestion::Ecn,
        _ => return Err(invalid("cm_update: no lossmode")),
    };
    Ok(Update { nsent, nrecd, congestion, rtt })
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_update(flow: u64, nsent: u64, nrecd: u64, lossmode: c_int, rtt: u64) -> c_int {
    let update = update(nsent, nrecd, lossmode, rtt);
    answer(update.and_then(|u| with(|s| s.client.update(FlowId(flow), &u).map(|()| 0))))
}

fn plain(status: &Status) -> CmStatus {
    CmStatus { rate: status.rate, srtt: status.rtt, rttdev: status.deviation, loss: status.loss }
}

fn unknown() -> Error {
    let why = "no round trip time is known yet";
    Error::Os { operation: "cm_query", error: io::Error::new(io::ErrorKind::WouldBlock, why) }
}

/// # Safety
/// `status` points to a `CmStatus`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cm_query(flow: u64, status: *mut CmStatus) -> c_int {
    if status.is_null() {
        return answer(Err(invalid("cm_query: status is null")));
    }
    match with(|s| s.client.query(FlowId(flow))) {
        Ok(Some(found)) => {
            // SAFETY: the caller's promise.
            unsafe { status.write(plain(&found)) };
            0
        }
        Ok(None) => {
            fail(libc::EAGAIN, &unknown());
            -1
        }
        Err(e) => answer(Err(e)),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_register_update(
    flow: u64,
    callback: Option<UpdateCallback>,
    context: *mut c_void,
) -> c_int {
    let context = Context(context);
    answer(with(|s| {
        s.client.register_update(FlowId(flow), callback.is_some())?;
        s.callbacks.entry(flow).or_default().update = callback.map(|c| (c, context));
        Ok(0)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_thresh(flow: u64, down: f64, up: f64) -> c_int {
    let thresholds = Thresholds { rate_down: down, rate_up: up, ..Thresholds::default() };
    answer(with(|s| s.client.thresh(FlowId(flow), &thresholds).map(|()| 0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_getmacroflow(flow: u64) -> u64 {
    number(with(|s| s.client.macroflow(FlowId(flow)).map(|macroflow| macroflow.0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_setmacroflow(macroflow: u64, flow: u64) -> c_int {
    answer(with(|s| match macroflow {
        0 => s.client.split(FlowId(flow)).map(|_| 0),
        to => s.client.set_macroflow(FlowId(flow), MacroflowId(to)).map(|()| 0),
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_weight(flow: u64, weight: u32) -> c_int {
    answer(with(|s| s.client.set_weight(FlowId(flow), weight).map(|()| 0)))
}

/// # Safety
/// `items` points to `count` items, or `count` is 0.
unsafe fn items<'a, T>(items: *mut T, count: usize) -> Result<&'a mut [T], Error> {
    match count {
        0 => Ok(&mut []),
        _ if items.is_null() || count > MAX_BULK => {
            Err(invalid("a bulk call has at most 64 items, not null"))
        }
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(items, count) }),
    }
}

fn results<T>(
    items: &mut [CmItem],
    results: Vec<Result<T, Error>>,
    mut f: impl FnMut(&mut CmItem, T) -> c_int,
) -> c_int {
    for (item, result) in items.iter_mut().zip(results) {
        item.result = match result {
            Ok(done) => f(item, done),
            Err(e) => errno(&e),
        };
    }
    0
}

/// # Safety
/// `at` points to `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cm_bulk_request(at: *mut CmItem, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { items(at, count) }.and_then(|items| {
        let flows: Vec<_> = items.iter().map(|i| FlowId(i.flow)).collect();
        let done = with(|s| s.client.bulk_request(&flows))?;
        Ok(results(items, done, |_, ()| 0))
    }))
}

/// # Safety
/// `at` points to `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cm_bulk_notify(at: *mut CmItem, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { items(at, count) }.and_then(|items| {
        let sent: Vec<_> = items.iter().map(|i| (FlowId(i.flow), i.nsent)).collect();
        let done = with(|s| s.client.bulk_notify(&sent))?;
        Ok(results(items, done, |_, ()| 0))
    }))
}

/// # Safety
/// `at` points to `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cm_bulk_query(at: *mut CmItem, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { items(at, count) }.and_then(|items| {
        let flows: Vec<_> = items.iter().map(|i| FlowId(i.flow)).collect();
        let done = with(|s| s.client.bulk_query(&flows))?;
        Ok(results(items, done, |item, found| match found {
            Some(status) => {
                item.status = plain(&status);
                0
            }
            None => libc::EAGAIN,
        }))
    }))
}

/// # Safety
/// `at` points to `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cm_bulk_update(at: *mut CmFeedback, count: usize) -> c_int {
    // SAFETY: the caller's promise.
    answer(unsafe { items(at, count) }.and_then(|items| {
        let one = |i: &CmFeedback| Ok((FlowId(i.flow), update(i.nsent, i.nrecd, i.lossmode, i.rtt)?));
        let updates = items.iter().map(one).collect::<Result<Vec<_>, Error>>()?;
        let done = with(|s| s.client.bulk_update(&updates))?;
        for (item, result) in items.iter_mut().zip(done) {
            item.result = result.map_or_else(|e| errno(&e), |()| 0);
        }
        Ok(0)
    }))
}

/// The next callback to make.
enum Due {
    Send(u64, SendCallback, Context),
    Update(u64, Status, UpdateCallback, Context),
    /// A queued datagram was sent.
    Sent,
    /// No callback is registered.
    Nothing,
}

/// Takes the next event. `None`: no event waits, or a socket's buffer is full.
fn due(s: &mut State) -> Result<Option<Due>, Error> {
    let Some(event) = s.client.poll()? else { return Ok(None) };
    let (Event::Send(flow) | Event::Update(flow, _)) = event;
    let callbacks = s.callbacks.get(&flow.0).copied().unwrap_or_default();
    Ok(Some(match event {
        Event::Update(_, status) => match callbacks.update {
            Some((callback, context)) => Due::Update(flow.0, status, callback, context),
            None => Due::Nothing,
        },
        Event::Send(_) => match (callbacks.send, buffered::granted(s, flow)) {
            (_, Turn::Done) => Due::Sent,
            (_, Turn::Full) => return Ok(None),
            (Some((callback, context)), Turn::None) => Due::Send(flow.0, callback, context),
            (None, Turn::None) => {
                // The flow has no callback to use this grant.
                let _ = s.client.decline(flow);
                Due::Nothing
            }
        },
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_dispatch() -> c_int {
    let mut count = 0;
    loop {
        // No lock is held during callbacks, because they call into the library.
        match with(due) {
            Ok(None) => return count,
            Err(e) => return answer(Err(e)),
            Ok(Some(Due::Nothing)) => continue,
            Ok(Some(Due::Sent)) => {}
            Ok(Some(Due::Send(flow, callback, context))) => {
                // SAFETY: C registered this callback for the flow. No lock is held, so it may call
                // the library; cm.h requires that the context lives until `cm_dispatch` returns.
                unsafe { callback(flow, context.0) };
            }
            Ok(Some(Due::Update(flow, status, callback, context))) => {
                let status = plain(&status);
                // SAFETY: as above; the status lives through the call.
                unsafe { callback(flow, &raw const status, context.0) };
            }
        }
        count += 1;
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_loop() -> c_int {
    let Some(stop) = &*STOP else { return answer(Err(invalid("cm_loop: no eventfd"))) };
    let own = with(|s| s.client.as_fd().try_clone_to_owned().map_err(Error::of("cm_loop")));
    let own = match own {
        Ok(own) => own,
        Err(e) => return answer(Err(e)),
    };
    loop {
        if cm_dispatch() < 0 {
            return -1;
        }
        let mut fds = [PollFd::new(&own, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return answer(Err(Error::of("cm_loop")(e))),
            Ok(_) => {}
        }
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(stop, &mut [0; 8]);
            return 0;
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cm_stop() {
    if let Some(stop) = &*STOP {
        let _ = rustix::io::write(stop, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_addresses_are_read() {
        for (family, expected) in
            [(libc::AF_INET, "10.1.2.3:258"), (libc::AF_INET6, "[::]:258"), (libc::AF_UNIX, "none")]
        {
            let mut raw = [0_u8; 40];
            raw[1..3].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
            raw[3..5].copy_from_slice(&[1, 2]);
            if family == libc::AF_INET {
                raw[5..9].copy_from_slice(&[10, 1, 2, 3]);
            }
            for shift in 0..2 {
                raw.rotate_right(shift);
                // SAFETY: an address of its family, at an odd or an even place.
                let found = unsafe { address(raw[1 + shift..].as_ptr().cast()) };
                assert_eq!(found.map_or("none".into(), |a| a.to_string()), expected);
            }
        }
        // SAFETY: null is allowed.
        assert!(unsafe { address(std::ptr::null()) }.is_err());
    }
}

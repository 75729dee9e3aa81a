//! The functions that stand behind ours.

use std::ffi::CStr;
use std::sync::OnceLock;

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

type Connect = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
type GetName = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
type GetOption = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
type SetOption = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
type SendTo =
    unsafe extern "C" fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;

type Read = unsafe extern "C" fn(c_int, *mut c_void, size_t) -> ssize_t;
type Receive = unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
type ReceiveFrom =
    unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
type ReceiveMessage = unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> ssize_t;
type ReadVector = unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;

/// The C library's own.
pub struct Real {
    pub connect: Connect,
    pub getpeername: GetName,
    pub getsockname: GetName,
    pub getsockopt: GetOption,
    pub setsockopt: SetOption,
    pub sendto: SendTo,
    pub read: Read,
    pub readv: ReadVector,
    pub recv: Receive,
    pub recvfrom: ReceiveFrom,
    pub recvmsg: ReceiveMessage,
}

/// Before `main`, so that nothing is looked up in a signal handler.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_UP: extern "C" fn() = look_up;

extern "C" fn look_up() {
    real();
}

/// Found once; a process without them cannot go on.
pub fn real() -> &'static Real {
    static REAL: OnceLock<Real> = OnceLock::new();
    // SAFETY: each symbol is the C library's function of that name, whose type is as declared.
    REAL.get_or_init(|| unsafe {
        Real {
            connect: std::mem::transmute::<*mut c_void, Connect>(next(c"connect")),
            getpeername: std::mem::transmute::<*mut c_void, GetName>(next(c"getpeername")),
            getsockname: std::mem::transmute::<*mut c_void, GetName>(next(c"getsockname")),
            getsockopt: std::mem::transmute::<*mut c_void, GetOption>(next(c"getsockopt")),
            setsockopt: std::mem::transmute::<*mut c_void, SetOption>(next(c"setsockopt")),
            sendto: std::mem::transmute::<*mut c_void, SendTo>(next(c"sendto")),
            read: std::mem::transmute::<*mut c_void, Read>(next(c"read")),
            readv: std::mem::transmute::<*mut c_void, ReadVector>(next(c"readv")),
            recv: std::mem::transmute::<*mut c_void, Receive>(next(c"recv")),
            recvfrom: std::mem::transmute::<*mut c_void, ReceiveFrom>(next(c"recvfrom")),
            recvmsg: std::mem::transmute::<*mut c_void, ReceiveMessage>(next(c"recvmsg")),
        }
    })
}

fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated name; RTLD_NEXT looks behind this library.
    let symbol = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if symbol.is_null() {
        // SAFETY: ends the process; nothing can be done without the function that was asked for.
        unsafe { libc::abort() };
    }
    symbol
}

/// Sets errno and gives the -1 that goes with it.
pub fn set_errno(errno: c_int) -> c_int {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

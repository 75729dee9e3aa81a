//! The C library's functions that the shim replaces.

use std::ffi::CStr;
use std::sync::OnceLock;

use libc::{c_int, c_void, epoll_event, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

type Connect = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
type GetName = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
type GetOption = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
type SetOption = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
type EpollCtl = unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;

type Read = unsafe extern "C" fn(c_int, *mut c_void, size_t) -> ssize_t;
type Receive = unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
type ReceiveFrom =
    unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
type ReceiveMessage = unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> ssize_t;
/// readv and writev.
type Vectored = unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;

type Write = unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
type Send = unsafe extern "C" fn(c_int, *const c_void, size_t, c_int) -> ssize_t;
type SendTo =
    unsafe extern "C" fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
type SendMessage = unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t;
type SendFile = unsafe extern "C" fn(c_int, c_int, *mut off_t, size_t) -> ssize_t;

/// Declares [`Real`], with a field for each function, and looks them up.
macro_rules! functions {
    ($($name:ident: $type:ty,)*) => {
        /// The C library's functions.
        pub struct Real {
            $(pub $name: $type,)*
        }

        impl Real {
            fn look_up() -> Real {
                // SAFETY: each symbol is the C library's function of that name and declared type.
                unsafe {
                    Real {
                        $($name: std::mem::transmute::<*mut c_void, $type>(next(name_of(concat!(stringify!($name), "\0")))),)*
                    }
                }
            }
        }
    };
}

functions! {
    connect: Connect,
    getpeername: GetName,
    getsockname: GetName,
    getsockopt: GetOption,
    setsockopt: SetOption,
    epoll_ctl: EpollCtl,
    read: Read,
    readv: Vectored,
    recv: Receive,
    recvfrom: ReceiveFrom,
    recvmsg: ReceiveMessage,
    write: Write,
    writev: Vectored,
    send: Send,
    sendto: SendTo,
    sendmsg: SendMessage,
    sendfile: SendFile,
}

/// A name with its terminating NUL.
fn name_of(name: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default()
}

/// Runs before `main`, so that no signal handler triggers the lookup.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_UP: extern "C" fn() = look_up;

extern "C" fn look_up() {
    real();
}

/// The functions, looked up once; without them the process aborts.
pub fn real() -> &'static Real {
    static REAL: OnceLock<Real> = OnceLock::new();
    REAL.get_or_init(Real::look_up)
}

fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the name is terminated; RTLD_NEXT searches after this library.
    let symbol = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if symbol.is_null() {
        // SAFETY: ends the process; it cannot run without the function.
        unsafe { libc::abort() };
    }
    symbol
}

/// errno of this thread.
pub fn errno() -> c_int {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() }
}

/// Sets errno and returns -1.
pub fn set_errno(errno: c_int) -> c_int {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

//! Opens and loads the object files that clang compiled.

use std::cell::RefCell;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Once;

use libbpf_rs::libbpf_sys::{
    bpf_link_create, bpf_link_create_opts, bpf_obj_get, bpf_prog_test_run_opts, bpf_test_run_opts,
};
use libbpf_rs::{Map, MapCore, Object, ObjectBuilder, OpenObject, PrintLevel, Program};

use crate::Error;
use crate::error::to_io;

/// Lines of the verifier's log that an error shows, from its end.
const LOG_LINES: usize = 4;

thread_local! {
    /// Messages of libbpf to this thread since the last load began.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// An object file, aligned as libelf requires.
#[repr(C, align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub T);

/// The object file of `src/bpf/NAME.c`.
macro_rules! object {
    ($name:literal) => {{
        static OBJECT: &crate::object::Aligned<[u8]> =
            &crate::object::Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".o")));
        &OBJECT.0
    }};
}
pub(crate) use object;

/// Opens an object file. Its maps and programs can be changed before it is [loaded](load).
///
/// # Errors
/// The object file is damaged.
pub fn open(name: &'static str, object: &[u8]) -> Result<OpenObject, Error> {
    listen();
    let fail = Error::of("opening a BPF object");
    let mut builder = ObjectBuilder::default();
    builder.name(name).map_err(&fail)?.open_memory(object).map_err(fail)
}

/// Loads the maps and programs of an object file.
///
/// # Errors
/// [`Error::Refused`] with the last lines of the verifier's log if the verifier refused a program;
/// otherwise the error of libbpf.
pub(crate) fn load(name: &'static str, object: OpenObject) -> Result<Object, Error> {
    SAID.with_borrow_mut(String::clear);
    object.load().map_err(|e| {
        let source = to_io(&e);
        match SAID.with_borrow(|said| verdict(said)) {
            Some(why) => Error::Refused { program: name, source, why },
            None => Error::Os { operation: "loading a BPF object", source },
        }
    })
}

/// Attaches a program to the interface with this index, in the namespace of the calling thread.
/// Closing the link detaches it. `kind` is an `enum bpf_attach_type`, and `flags` are the flags of
/// that kind.
pub(crate) fn attach(program: &Program<'_>, index: u32, kind: u32, flags: u32) -> io::Result<OwnedFd> {
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as u64,
        flags,
        ..bpf_link_create_opts::default()
    };
    let program = program.as_fd().as_raw_fd();
    // SAFETY: the options are whole, name their size, and live through the call.
    let rc = unsafe { bpf_link_create(program, index as i32, kind, &raw const options) };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc));
    }
    // SAFETY: a descriptor that was just created and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(rc) })
}

/// Opens a pinned program or link.
pub(crate) fn get(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path lives through the call.
    let rc = unsafe { bpf_obj_get(path.as_ptr()) };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc));
    }
    // SAFETY: a descriptor that was just created and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(rc) })
}

/// Runs a program of type syscall (BPF_PROG_RUN) and returns its result.
pub(crate) fn run(program: BorrowedFd<'_>, arguments: &mut [u8]) -> io::Result<u32> {
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as u64,
        ctx_in: if arguments.is_empty() { std::ptr::null_mut() } else { arguments.as_mut_ptr().cast() },
        ctx_size_in: arguments.len() as u32,
        ..bpf_test_run_opts::default()
    };
    // SAFETY: the arguments have the given sizes and live through the call.
    let rc = unsafe { bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(options.retval) }
}

/// A map of a loaded object.
pub(crate) fn map<'o>(object: &'o Object, name: &'static str) -> Result<Map<'o>, Error> {
    object.maps().find(|m| m.name() == name).ok_or_else(|| missing(name))
}

/// The error for a map or program that the object file lacks.
pub(crate) fn missing(name: &'static str) -> Error {
    Error::Os { operation: name, source: io::Error::new(io::ErrorKind::NotFound, "not in the BPF object") }
}

/// Sends libbpf's messages to the log of this process and not to standard error.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Info, |_, text| {
            tracing::debug!(target: "libbpf", "{}", text.trim_end());
            SAID.with_borrow_mut(|said| said.push_str(&text));
        })));
    });
}

/// The last lines of the verifier's log, if libbpf quoted one.
fn verdict(said: &str) -> Option<String> {
    let log = said.split("-- BEGIN PROG LOAD LOG --").nth(1)?.split("-- END PROG LOAD LOG --").next()?;
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Some(lines[lines.len().saturating_sub(LOG_LINES)..].join("; "))
}

#[cfg(test)]
mod tests {
    use libbpf_rs::ProgramType;
    use libbpf_rs::libbpf_sys::{bpf_prog_get_info_by_fd, bpf_prog_info};

    use super::*;
    use crate::kernel::{self, Feature};

    #[test]
    fn refused_program_error_has_verifier_log() {
        if kernel::skipped(Feature::Xdp) {
            return;
        }
        let mut object = open("redirect", object!("redirect")).unwrap();
        // takes_frame expects another context than a socket filter has.
        object.progs_mut().for_each(|mut p| p.set_prog_type(ProgramType::SocketFilter));
        let error = load("redirect", object).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("the verifier") && text.contains("takes_frame"), "{text}");
    }

    /// The verifier checks shared code once for each path that reaches it in another state: a
    /// program of a few thousand instructions can take hundreds of thousands of steps, and seconds.
    #[test]
    fn verifier_steps_stay_within_bounds() {
        let programs = [
            ("redirect", object!("redirect"), Feature::Xdp, 20_000),
            ("calls", object!("calls"), Feature::UserCalls, 300_000),
        ];
        for (name, octets, feature, most) in programs {
            if kernel::skipped(feature) {
                continue;
            }
            let object = load(name, open(name, octets).unwrap()).unwrap();
            for program in object.progs() {
                let (mut info, mut size) = (bpf_prog_info::default(), size_of::<bpf_prog_info>() as u32);
                // SAFETY: the kernel writes at most the given number of bytes.
                let rc = unsafe {
                    bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &raw mut info, &raw mut size)
                };
                assert_eq!(rc, 0);
                println!("{name} {:?}: {}", program.name(), info.verified_insns);
                assert!(info.verified_insns < most, "{:?}: {}", program.name(), info.verified_insns);
            }
        }
    }

    #[test]
    fn damaged_object_file_is_refused() {
        let object = object!("redirect");
        for damaged in [&object[..0], &object[..100], &object[..object.len() / 2]] {
            assert!(open("redirect", damaged).is_err(), "{} bytes", damaged.len());
        }
    }
}

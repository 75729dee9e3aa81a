//! `rivulet-tiny TAP ADDRESS:PORT KEYS`: serves a page over a TAP, from 64 KiB of memory and without the standard library.
//!
//! It is built for x86_64-unknown-none, a target that has no standard library, and runs as a Linux process that makes its
//! system calls itself. All memory that it writes is static: its stack, its heap, and some variables.

#![no_std]
#![no_main]

extern crate alloc;

mod memory;
mod site;
mod system;
mod tap;

use core::fmt::Write;
use core::net::SocketAddrV4;
use core::panic::PanicInfo;

use rivulet_tiny::{Keys, Server};
use rivulet_transport::Time;

use system::{Arguments, Output};

/// Exit code for wrong arguments, and for what the system refuses at the start.
const REFUSED: i32 = 1;
/// Exit code of a panic.
const PANICKED: i32 = 101;

/// The first instructions: continues on the static stack, with the system's, where the arguments are, as the parameter.
#[unsafe(naked)]
// SAFETY: no other symbol has this name, which the linker takes as the start.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    core::arch::naked_asm!(
        "mov rdi, rsp",
        "lea rsp, [rip + {stack} + {bytes}]",
        "xor ebp, ebp",
        "call {start}",
        "ud2",
        stack = sym memory::STACK,
        bytes = const memory::STACK_BYTES,
        start = sym start,
    )
}

/// Runs on the static stack.
extern "C" fn start(arguments: Arguments) -> ! {
    memory::paint();
    let failed = match run(&arguments) {
        Ok(never) => match never {},
        Err(why) => why,
    };
    let _ = writeln!(Output::error(), "rivulet-tiny: {failed}");
    system::exit(REFUSED)
}

/// What never returns.
enum Never {}

fn run(arguments: &Arguments) -> Result<Never, &'static str> {
    const USAGE: &str = "usage: rivulet-tiny TAP ADDRESS:PORT KEYS, with 48 random bytes in the file KEYS";
    let (Some(name), Some(address), Some(path), None) =
        (arguments.get(1), arguments.get(2), arguments.get(3), arguments.get(4))
    else {
        return Err(USAGE);
    };
    let address =
        core::str::from_utf8(address.to_bytes()).ok().and_then(|text| text.parse::<SocketAddrV4>().ok());
    let address = address.ok_or("the address must be like 10.9.0.1:80")?;
    let keys = system::read_exactly::<{ Keys::LENGTH }>(path)
        .map_err(|_| "cannot read 48 bytes from the file of keys")?;
    let tap =
        tap::open(name.to_bytes()).map_err(|_| "cannot attach to the TAP: it needs root and /dev/net/tun")?;
    let secret = u64::from_ne_bytes(system::random().map_err(|_| "no random bytes")?);
    // Locally administered, and different for each address.
    let [a, b, c, d] = address.ip().octets();
    let mut server = Server::new([2, 0, a, b, c, d], address, &Keys(keys), secret, site::SITE);
    let _ = writeln!(
        Output::standard(),
        "serving {address} on {}: {}",
        name.to_str().unwrap_or("?"),
        memory::Figures
    );
    let mut frame = [0; tap::FRAME];
    loop {
        let length = tap.read(&mut frame).map_err(|_| "the TAP is gone")?;
        // A frame that the TAP does not take is lost, as on any link.
        server.receive(&frame[..length], Time(system::clock_us()), &mut |answer| {
            let _ = tap.write(answer);
        });
        if memory::stack_overflowed() {
            return Err("the stack overflowed");
        }
    }
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    let _ = writeln!(Output::error(), "rivulet-tiny: {info}");
    system::exit(PANICKED)
}

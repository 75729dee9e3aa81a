//! Opens servers from C, with keys from a file, an agent or a controller.

use std::ffi::{c_char, c_int};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_agent::{Agent, Controllers};
use rivulet_pktio::Interface;
use rivulet_server::keys::KeySet;
use rivulet_server::service::{Plain, Service};
use rivulet_server::{Config, Server, incarnation};

use crate::client::packet_io;
use crate::ends::{End, Serving, add, fail};
use crate::ffi::{attempt, text};

type Failure = Box<dyn std::error::Error>;

/// See the header.
///
/// # Safety
/// The strings are NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_listen(
    interface: *const c_char,
    address: *const c_char,
    port: u16,
    key_file: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let (interface, address, keys) =
        unsafe { (attempt!(text(interface)), attempt!(text(address)), attempt!(text(key_file))) };
    listen(|| {
        let service = Service::standalone(
            "msk",
            vec![address.parse::<IpAddr>()?],
            port,
            KeySet::read(Path::new(keys))?,
            Plain::None,
        );
        let config = Config {
            interface: Interface::new(None, interface)?,
            services: vec![service],
            incarnation: incarnation(),
            io: packet_io()?,
        };
        Ok((Server::open(&config)?, None))
    })
}

/// See the header.
///
/// # Safety
/// The strings are terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_listen_agent(
    interface: *const c_char,
    agent: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let (interface, agent, name) =
        unsafe { (attempt!(text(interface)), attempt!(text(agent)), attempt!(text(name))) };
    listen(|| {
        let addresses: Vec<String> = agent.split(',').map(str::to_owned).collect();
        let controllers = Controllers::new(&addresses, None)?;
        let incarnation = incarnation();
        let interface = Interface::new(None, interface)?;
        let config = Config { interface, services: Vec::new(), incarnation, io: packet_io()? };
        let server = Server::open(&config)?;
        let agent = Agent::start(controllers, name, incarnation, server.mac())?;
        Ok((server, Some(agent)))
    })
}

fn listen(open: impl FnOnce() -> Result<(Server, Option<Agent>), Failure>) -> c_int {
    let (server, agent) = match open() {
        Ok(opened) => opened,
        Err(e) => return fail(libc::EINVAL, &e),
    };
    let opened = Serving::new(server, agent).and_then(|serving| Ok((serving.descriptor()?, serving)));
    match opened {
        Ok((fd, serving)) => add(fd, End::Server(Arc::new(Mutex::new(serving)))),
        Err(e) => fail(e.raw_os_error().unwrap_or(libc::EIO), &e),
    }
}

//! Tests that use the server's locks.

use std::sync::mpsc::sync_channel;

use tonic::Code;

use super::*;
use crate::ports::{Link, Port, PortError, TraceReport};
use crate::stream::outbox;

struct NoPorts;

impl NoPorts {
    fn none<T>() -> Result<T, PortError> {
        Err(PortError::Unsupported("ports".to_owned()))
    }
}

impl Ports for NoPorts {
    fn add_port(&self, _: u32, _: &str) -> Result<(), PortError> {
        Self::none()
    }
    fn remove_port(&self, _: u32) -> Result<(), PortError> {
        Self::none()
    }
    fn list_ports(&self) -> Vec<Port> {
        Vec::new()
    }
    fn is_up(&self, _: u32) -> Option<bool> {
        None
    }
    fn set_link(&self, _: u32, _: Option<Link>) -> Result<(), PortError> {
        Self::none()
    }
    fn trace(&self, _: u32, _: &[u8], _: bool) -> Result<TraceReport, PortError> {
        Self::none()
    }
    fn packet_out(&self, _: Vec<u8>) -> Result<(), PortError> {
        Self::none()
    }
}

/// A write that waits for the device does not block arbitration, and is refused if its controller
/// is no longer the primary when the device is free.
#[test]
fn arbitration_does_not_wait_behind_reads() {
    let (switch, _path, _events) = Switch::new(rivulet_engine::SwitchConfig::default());
    let shared = Server::new(ServerConfig::default(), switch, Arc::new(NoPorts)).shared;
    let (outbox, _inbox) = outbox();
    let peer = Peer { stream: 1, connection: 1, outbox };
    fn id(low: u64) -> Option<p4::Uint128> {
        Some(p4::Uint128 { high: 0, low })
    }
    let message = |low| p4::MasterArbitrationUpdate { election_id: id(low), ..Default::default() };
    let role = shared.arbitrate(&peer, None, &message(1)).unwrap();
    let reading = shared.device.read();
    let writer = {
        let shared = shared.clone();
        let request = p4::WriteRequest { election_id: id(1), ..Default::default() };
        std::thread::spawn(move || shared.write(&request))
    };
    let (done, arbitrated) = sync_channel(0);
    {
        let shared = shared.clone();
        std::thread::spawn(move || {
            // Long enough for the writer to reach the point where it waits.
            for low in 2..200 {
                shared.arbitrate(&peer, Some(&role), &message(low)).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
            done.send(()).unwrap();
        });
    }
    arbitrated
        .recv_timeout(Duration::from_secs(30))
        .expect("arbitration waits for a write that waits for a read");
    assert!(!writer.is_finished(), "the read is not over");
    drop(reading);
    assert_eq!(writer.join().unwrap().unwrap_err().code(), Code::PermissionDenied);
}

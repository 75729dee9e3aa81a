//! A switch without ports, for trying out controllers: `cargo run -p rivulet-p4rt --example bare --
//! [ADDRESS]`.
//!
//! Packet-outs run through the pipeline. Packets that the program sends to the CPU port (510)
//! become packet-ins. Packets to any other port are received again at that port, so that a
//! controller can play both ends of a cable.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rivulet_engine::{DataPath, Switch, SwitchConfig};
use rivulet_p4rt::{
    Link, PacketInSender, Port, PortError, Ports, Server, ServerConfig, TraceReport, packet_in_channel,
};

const CPU_PORT: u32 = 510;

/// Ports 0 to 15, all up, with nothing behind them.
struct NoPorts {
    packet_outs: SyncSender<Vec<u8>>,
}

fn unsupported<T>() -> Result<T, PortError> {
    Err(PortError::Unsupported("this switch has no real ports".to_owned()))
}

impl Ports for NoPorts {
    fn add_port(&self, _port: u32, _interface: &str) -> Result<(), PortError> {
        unsupported()
    }

    fn remove_port(&self, _port: u32) -> Result<(), PortError> {
        unsupported()
    }

    fn list_ports(&self) -> Vec<Port> {
        (0..16).map(|port| Port { port, up: true, ..Port::default() }).collect()
    }

    fn is_up(&self, port: u32) -> Option<bool> {
        (port < 16).then_some(true)
    }

    fn set_link(&self, _port: u32, _link: Option<Link>) -> Result<(), PortError> {
        unsupported()
    }

    fn trace(&self, _port: u32, _frame: &[u8], _dry_run: bool) -> Result<TraceReport, PortError> {
        unsupported()
    }

    fn packet_out(&self, frame: Vec<u8>) -> Result<(), PortError> {
        self.packet_outs.try_send(frame).map_err(|_| PortError::Full("packet-outs".to_owned()))
    }
}

fn forward(mut path: DataPath, packet_outs: &Receiver<Vec<u8>>, packet_in: &PacketInSender) {
    let start = Instant::now();
    loop {
        let now = start.elapsed().as_micros() as u64;
        match packet_outs.recv_timeout(Duration::from_millis(1)) {
            Ok(frame) => {
                let mut looped = Vec::new();
                let mut output = |port: u32, head: &[u8], rest: &[u8]| match port {
                    CPU_PORT => drop(packet_in.send(head, rest)),
                    _ => looped.push((port, [head, rest].concat())),
                };
                path.process(now, CPU_PORT, &frame, &mut output);
                for (port, frame) in looped {
                    path.process(now, port, &frame, &mut |port: u32, head: &[u8], rest: &[u8]| {
                        if port == CPU_PORT {
                            packet_in.send(head, rest);
                        }
                    });
                }
            }
            Err(_) => drop(path.poll(now, &mut |_: u32, _: &[u8], _: &[u8]| {})),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address: SocketAddr = std::env::args().nth(1).as_deref().unwrap_or("127.0.0.1:9559").parse()?;
    let (switch, path, events) = Switch::new(SwitchConfig::default());
    let (packet_in, packet_ins) = packet_in_channel(1024);
    let (packet_outs, receiver) = sync_channel(1024);
    std::thread::spawn(move || forward(path, &receiver, &packet_in));
    let server = Server::new(ServerConfig::default(), switch, Arc::new(NoPorts { packet_outs }));
    println!("P4Runtime on {address}, device 0");
    server.bind_and_serve(address, packet_ins, events.digests, std::future::pending()).await?;
    Ok(())
}

//! Interface between the server and its process: ports, links, traces, and packet-outs.

pub use crate::proto::rivulet::switch::v1::{Link, Port};

/// Ports and links of the switch, and the entry of controllers' packets.
///
/// Calls other than [`packet_out`](Self::packet_out) and [`is_up`](Self::is_up) may block for as
/// long as the kernel takes; the server makes them on blocking threads. Port numbers are the data
/// plane's (`standard_metadata.ingress_port`).
pub trait Ports: Send + Sync + 'static {
    /// Attaches a Linux interface as a port.
    ///
    /// # Errors
    /// [`PortError::Exists`] for a number in use, [`PortError::NotFound`] for a missing interface,
    /// [`PortError::Invalid`] for a number that is not a data port (for example the CPU or drop
    /// port).
    fn add_port(&self, port: u32, interface: &str) -> Result<(), PortError>;

    /// Detaches a port.
    ///
    /// # Errors
    /// [`PortError::NotFound`].
    fn remove_port(&self, port: u32) -> Result<(), PortError>;

    /// All ports.
    fn list_ports(&self) -> Vec<Port>;

    /// Whether the port's link is up; `None` if there is no such port. Must not block.
    fn is_up(&self, port: u32) -> Option<bool>;

    /// Shapes packets sent by a port; `None` removes the shaping.
    ///
    /// # Errors
    /// [`PortError::NotFound`]; [`PortError::Invalid`] for invalid settings.
    fn set_link(&self, port: u32, link: Option<Link>) -> Result<(), PortError>;

    /// Runs one frame through the pipeline as if received at `port`, and returns a trace. Sends
    /// nothing. With `dry_run` the state does not change either.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] for a dry run if the switch does not support it,
    /// [`PortError::Full`] if the packet path does not answer.
    fn trace(&self, port: u32, frame: &[u8], dry_run: bool) -> Result<TraceReport, PortError>;

    /// Queues a frame to be processed with the CPU port as its ingress port. Must not block.
    ///
    /// # Errors
    /// [`PortError::Full`] if the queue is full, [`PortError::Unsupported`] if the switch has no
    /// CPU port.
    fn packet_out(&self, frame: Vec<u8>) -> Result<(), PortError>;
}

/// Why a call of [`Ports`] failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// No such port or interface.
    #[error("not found: {0}")]
    NotFound(String),
    /// The port number is in use.
    #[error("already exists: {0}")]
    Exists(String),
    /// An argument is invalid.
    #[error("invalid: {0}")]
    Invalid(String),
    /// A queue is full.
    #[error("no room: {0}")]
    Full(String),
    /// This switch does not support it.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The kernel refused.
    #[error("{0}")]
    System(String),
}

/// Trace of one packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceReport {
    /// Text for humans, one step a line.
    pub text: String,
    /// The same as JSON.
    pub json: String,
    /// The packets that would have been sent: port and frame.
    pub outputs: Vec<(u32, Vec<u8>)>,
}

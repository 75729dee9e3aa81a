//! What the server needs from the process around it: ports, links, traces and a way in for packet-outs.

pub use crate::proto::rivulet::switch::v1::{Link, Port};

/// Ports and links of the switch, and the way of a controller's packet into it.
///
/// Calls other than [`packet_out`](Self::packet_out) and [`is_up`](Self::is_up) may block for as long as the
/// kernel takes; the server makes them on threads where that does no harm. Port numbers are those of the data
/// plane (`standard_metadata.ingress_port`).
pub trait Ports: Send + Sync + 'static {
    /// Attaches a Linux interface as a port.
    ///
    /// # Errors
    /// [`PortError::Exists`] for a number in use, [`PortError::NotFound`] for an interface that is not there,
    /// [`PortError::Invalid`] for a number that is no port's (the CPU or drop port, say).
    fn add_port(&self, port: u32, interface: &str) -> Result<(), PortError>;

    /// Detaches a port.
    ///
    /// # Errors
    /// [`PortError::NotFound`].
    fn remove_port(&self, port: u32) -> Result<(), PortError>;

    /// All ports.
    fn list_ports(&self) -> Vec<Port>;

    /// Whether the port is there and its link is up, `None` if there is no such port. Must not block.
    fn is_up(&self, port: u32) -> Option<bool>;

    /// Shapes what leaves a port; `None` stops shaping it.
    ///
    /// # Errors
    /// [`PortError::NotFound`]; [`PortError::Invalid`] for settings that make no sense.
    fn set_link(&self, port: u32, link: Option<Link>) -> Result<(), PortError>;

    /// Runs one frame through the pipeline as if it had come in on `port`, and tells what happened. Nothing is
    /// sent. With `dry_run` the state it would have changed stays as it was.
    ///
    /// # Errors
    /// [`PortError::Unsupported`] for a dry run where the switch has none, [`PortError::Full`] if the packet
    /// path does not answer.
    fn trace(&self, port: u32, frame: &[u8], dry_run: bool) -> Result<TraceReport, PortError>;

    /// Queues a frame for the packet path, to be processed with the CPU port as its ingress port. Must not
    /// block.
    ///
    /// # Errors
    /// [`PortError::Full`] when the queue is, [`PortError::Unsupported`] when the switch has no CPU port.
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
    /// An argument makes no sense.
    #[error("invalid: {0}")]
    Invalid(String),
    /// A queue is full.
    #[error("no room: {0}")]
    Full(String),
    /// This switch cannot do that.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The kernel refused.
    #[error("{0}")]
    System(String),
}

/// The story of one packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceReport {
    /// For people, one step a line.
    pub text: String,
    /// The same as JSON.
    pub json: String,
    /// What would have been sent: port and frame.
    pub outputs: Vec<(u32, Vec<u8>)>,
}

//! What the server needs from the process around it: ports, links, traces and a way in for packet-outs.

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
    fn list_ports(&self) -> Vec<PortStatus>;

    /// Whether the port is there and its link is up, `None` if there is no such port. Must not block.
    fn is_up(&self, port: u32) -> Option<bool>;

    /// Shapes what leaves a port; `None` stops shaping it.
    ///
    /// # Errors
    /// [`PortError::NotFound`]; [`PortError::Invalid`] for settings that make no sense.
    fn set_link(&self, port: u32, link: Option<LinkSettings>) -> Result<(), PortError>;

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

/// One port, as [`Ports::list_ports`] tells it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortStatus {
    /// Its number.
    pub port: u32,
    /// The Linux interface.
    pub interface: String,
    /// Whether the link is up.
    pub up: bool,
    /// How packets are exchanged with the kernel: "af_packet", "af_xdp".
    pub packet_io: String,
    /// Packets that came in.
    pub rx_packets: u64,
    /// Their bytes, without FCS.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Their bytes, without FCS.
    pub tx_bytes: u64,
    /// Packets that came in and were lost before the pipeline.
    pub rx_dropped: u64,
    /// Packets lost between the pipeline and the wire, by the link or a full queue.
    pub tx_dropped: u64,
    /// How the port is shaped, if it is.
    pub link: Option<LinkSettings>,
}

/// One direction of a link; zero is "not at all" in every field.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkSettings {
    /// Rate in bits a second, Ethernet header included, preamble and FCS not.
    pub rate_bps: u64,
    /// One-way delay in nanoseconds.
    pub delay_ns: u64,
    /// Uniform addition to the delay, up to this many nanoseconds; keeps the order.
    pub jitter_ns: u64,
    /// Probability of loss, 0 to 1.
    pub loss: f64,
    /// Probability that a packet arrives twice, 0 to 1.
    pub duplicate: f64,
    /// Probability that a packet overtakes those waiting, 0 to 1.
    pub reorder: f64,
    /// Packets the queue holds; 0 for the switch's default.
    pub queue_packets: u32,
    /// Queue length in packets from which ECN-capable packets are marked; 0 for never.
    pub ecn_packets: u32,
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

//! The trace of a packet, step by step.

use std::fmt;

/// The path of one packet through the switch, as text (`Display`) and as JSON (`serde`).
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Trace {
    /// The switch's clock on arrival, microseconds.
    pub time_us: u64,
    /// Ingress port.
    pub ingress_port: u32,
    /// Its length in bytes.
    pub length: usize,
    /// The steps in order.
    pub steps: Vec<Step>,
}

/// One step of a [`Trace`].
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// A pass started: "normal", "resubmit", "recirculate" or, for egress only, "clone" and
    /// "replica".
    Pass {
        /// `instance_type` by name.
        kind: String,
        /// "ingress" or "egress".
        pipeline: String,
        /// Egress port, for egress.
        port: Option<u32>,
    },
    /// A parser state was entered.
    ParserState {
        /// Its name.
        name: String,
    },
    /// A header was extracted.
    Extract {
        /// Its name.
        header: String,
        /// Offset in the packet, bytes.
        offset: usize,
    },
    /// The parser ended with an error.
    ParserError {
        /// Name of the error.
        error: String,
    },
    /// A table was applied.
    Table {
        /// Its name.
        name: String,
        /// The key that was looked up, each field as `name=0x…`.
        key: Vec<String>,
        /// The entry hit (`None` on a miss), as `field=value…`.
        entry: Option<String>,
        /// The action that ran, with its arguments.
        action: String,
    },
    /// A condition was evaluated.
    Condition {
        /// Its name, with the source text if the JSON has it.
        name: String,
        /// Its value.
        value: bool,
    },
    /// An action ran outside of any table.
    Action {
        /// Its name.
        name: String,
    },
    /// A checksum was verified.
    Checksum {
        /// Its name.
        name: String,
        /// Whether it was correct.
        ok: bool,
    },
    /// A digest sample was sent.
    Digest {
        /// Its name.
        name: String,
    },
    /// A copy was made.
    Copy {
        /// "ingress clone", "egress clone" or "multicast".
        kind: String,
        /// Its port.
        port: u32,
    },
    /// The packet starts another pass.
    Again {
        /// "resubmit" or "recirculate".
        kind: String,
    },
    /// The packet was dropped.
    Drop {
        /// Reason and place.
        reason: String,
    },
    /// A message of `log_msg`, or a failed `assert`.
    Log {
        /// The text.
        text: String,
    },
    /// A packet was sent.
    Emit {
        /// Port.
        port: u32,
        /// Bytes.
        length: usize,
    },
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} µs port {} {} bytes", self.time_us, self.ingress_port, self.length)?;
        self.steps.iter().try_for_each(|s| writeln!(f, "  {s}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Pass { kind, pipeline, port: Some(port) } => {
                write!(f, "{pipeline} of port {port} ({kind})")
            }
            Step::Pass { kind, pipeline, port: None } => write!(f, "{pipeline} ({kind})"),
            Step::ParserState { name } => write!(f, "state {name}"),
            Step::Extract { header, offset } => write!(f, "extract {header} at byte {offset}"),
            Step::ParserError { error } => write!(f, "parser error {error}"),
            Step::Table { name, key, entry, action } => {
                write!(f, "table {name} [{}] ", key.join(" "))?;
                match entry {
                    Some(entry) => write!(f, "hit {entry} -> {action}"),
                    None => write!(f, "miss -> {action}"),
                }
            }
            Step::Condition { name, value } => write!(f, "if {name}: {value}"),
            Step::Action { name } => write!(f, "action {name}"),
            Step::Checksum { name, ok } => {
                write!(f, "checksum {name}: {}", if *ok { "right" } else { "wrong" })
            }
            Step::Digest { name } => write!(f, "digest {name}"),
            Step::Copy { kind, port } => write!(f, "{kind} to port {port}"),
            Step::Again { kind } => write!(f, "{kind}"),
            Step::Drop { reason } => write!(f, "drop: {reason}"),
            Step::Log { text } => write!(f, "log: {text}"),
            Step::Emit { port, length } => write!(f, "out of port {port}, {length} bytes"),
        }
    }
}

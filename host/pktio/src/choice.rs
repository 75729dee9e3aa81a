//! The user's choice of packet I/O.

use std::str::FromStr;

use crate::{AfPacket, AfXdp, Backend, Config, Interface, OpenError, PacketIo};

/// How to send and receive frames: the values of every `--io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// AF_PACKET: works on every interface, and other programs can use it too.
    #[default]
    AfPacket,
    /// AF_XDP, or an error with the reason.
    AfXdp,
    /// AF_XDP where the interface allows it, else AF_PACKET.
    Auto,
}

/// An opened interface.
pub struct Opened {
    /// The packet I/O in use.
    pub io: Box<dyn PacketIo>,
    /// The error of AF_XDP, if it was tried and AF_PACKET is used instead.
    pub instead: Option<OpenError>,
}

impl IoChoice {
    /// Opens an interface. `config` returns the configuration for the backend that is tried.
    ///
    /// # Errors
    /// The chosen backend's error; with [`IoChoice::Auto`], AF_PACKET's.
    pub fn open(
        self,
        interface: &Interface,
        mut config: impl FnMut(Backend) -> Result<Config, OpenError>,
    ) -> Result<Opened, OpenError> {
        let mut instead = None;
        if self != IoChoice::AfPacket {
            match config(Backend::AfXdp).and_then(|config| AfXdp::open(interface, config)) {
                Ok(io) => return Ok(Opened { io: Box::new(io), instead }),
                Err(e) if self == IoChoice::AfXdp => return Err(e),
                Err(e) => {
                    tracing::debug!(why = %e, "AF_PACKET instead of AF_XDP");
                    instead = Some(e);
                }
            }
        }
        let io = AfPacket::open(interface, config(Backend::AfPacket)?)?;
        Ok(Opened { io: Box::new(io), instead })
    }

    /// Reopens the interface of `io` after it was deleted and recreated. With `Auto`, switches to
    /// AF_PACKET with this configuration if the new interface does not support AF_XDP.
    ///
    /// # Errors
    /// As [`PacketIo::reopen`] and [`AfPacket::open`]; `io` is unchanged.
    pub fn reopen(
        self,
        io: &mut Box<dyn PacketIo>,
        config: impl FnOnce() -> Result<Config, OpenError>,
    ) -> Result<(), OpenError> {
        match io.reopen() {
            // Without an interface, AF_PACKET would fail too.
            Err(e)
                if self == IoChoice::Auto
                    && io.backend() == Backend::AfXdp
                    && !matches!(e, OpenError::NoSuchInterface(_) | OpenError::Netns { .. }) =>
            {
                tracing::info!(why = %e, "AF_PACKET instead of AF_XDP");
                *io = Box::new(AfPacket::open(io.interface(), config()?)?);
                Ok(())
            }
            other => other,
        }
    }

    /// The name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IoChoice::AfPacket => "af_packet",
            IoChoice::AfXdp => "af_xdp",
            IoChoice::Auto => "auto",
        }
    }
}

impl std::fmt::Display for IoChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for IoChoice {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let all = [IoChoice::AfPacket, IoChoice::AfXdp, IoChoice::Auto];
        all.into_iter()
            .find(|choice| choice.name() == text)
            .ok_or_else(|| OpenError::Config(format!("packet I/O {text:?}: af_packet, af_xdp or auto")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        for text in ["af_packet", "af_xdp", "auto"] {
            assert_eq!(text.parse::<IoChoice>().unwrap().to_string(), text);
        }
        assert!("AF_XDP".parse::<IoChoice>().unwrap_err().to_string().contains("af_packet, af_xdp or auto"));
    }
}

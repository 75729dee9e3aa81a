//! The TCP option that identifies Rivulet segments, and the classes.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::error::WireError;

/// Option kind for experiments (RFC 4727).
pub const KIND: u8 = 253;
/// Length of the option in bytes.
pub const LENGTH: usize = 8;
/// Experiment identifier (RFC 6994), "RV".
pub const EX_ID: u16 = 0x5256;
/// Version of the wire format.
pub const VERSION: u8 = 2;
/// Set in the class of every response.
pub const RESPONSE_BIT: u8 = 0x80;

macro_rules! classes {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $value,)* }

        impl $name {
            /// All classes, in the order of their values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The class with this value on the wire.
            pub fn from_wire(value: u8) -> Option<Self> {
                match value { $($value => Some(Self::$variant),)* _ => None }
            }

            /// The name used in documents, vectors and P4.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

classes! {
    /// Class of a request.
    RequestClass {
        /// Opens a connection.
        Syn = 0x00, "SYN";
        /// Acknowledges one response, or two with a delayed acknowledgement.
        Normal = 0x01, "NORMAL";
        /// Asks for one response because the last responses did not arrive (RFC 8985 §7).
        Probe = 0x02, "PROBE";
        /// Reports that the retransmission timer fired (section 2.5 of the paper).
        Timeout = 0x03, "TIMEOUT";
        /// Starts a new generation from any old continuation.
        Restart = 0x04, "RESTART";
        /// Starts a new generation under a new nonce epoch.
        Rekey = 0x05, "REKEY";
        /// Ends the connection.
        Close = 0x06, "CLOSE";
    }
}

classes! {
    /// Class of a response.
    ResponseClass {
        /// Data, or only a continuation.
        Data = 0x80, "DATA";
        /// Data of a lost packet, without a continuation.
        Retransmission = 0x81, "RETRANSMISSION";
        /// The continuations of recovery condition (b), without data.
        Group = 0x82, "GROUP";
        /// A region of the stream without bytes.
        Skip = 0x83, "SKIP";
        /// The answer is not ready: repeat the request later.
        Wait = 0x84, "WAIT";
        /// This replica does not have the content: another one may.
        NotMine = 0x85, "NOT_MINE";
        /// Asks the client to return the token, which proves its address.
        Challenge = 0x86, "CHALLENGE";
        /// Acknowledges consumed input, with the continuation for further input.
        Input = 0x87, "INPUT";
        /// Final refusal by the application or the stack.
        Error = 0x88, "ERROR";
    }
}

/// The class byte of the option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Client to server.
    Request(RequestClass),
    /// Server to client.
    Response(ResponseClass),
}

impl Class {
    /// The class with this value on the wire.
    pub fn from_wire(value: u8) -> Option<Self> {
        if value & RESPONSE_BIT == 0 {
            RequestClass::from_wire(value).map(Self::Request)
        } else {
            ResponseClass::from_wire(value).map(Self::Response)
        }
    }

    /// The value on the wire.
    pub fn to_wire(self) -> u8 {
        match self {
            Self::Request(c) => c as u8,
            Self::Response(c) => c as u8,
        }
    }

    /// The name used in documents, vectors and P4.
    pub fn name(self) -> &'static str {
        match self {
            Self::Request(c) => c.name(),
            Self::Response(c) => c.name(),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<RequestClass> for Class {
    fn from(c: RequestClass) -> Self {
        Self::Request(c)
    }
}

impl From<ResponseClass> for Class {
    fn from(c: ResponseClass) -> Self {
        Self::Response(c)
    }
}

/// The option's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RivuletOption {
    /// The class.
    pub class: Class,
    /// Low half of the packet number; 0 in a SYN.
    pub number_low: u16,
}

impl RivuletOption {
    /// Parses the option from its kind on; the caller has checked the kind.
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let start = r.pos();
        let (kind, length, ex_id) = (r.u8()?, r.u8()?, r.u16()?);
        if kind != KIND || ex_id != EX_ID {
            return Err(WireError::OptionMissing(start));
        }
        if usize::from(length) != LENGTH {
            return Err(WireError::OptionLength(start + 1));
        }
        let (class, version, number_low) = (r.u8()?, r.u8()?, r.u16()?);
        // Check the version first: another version may number its classes differently.
        if version >> 4 != VERSION {
            return Err(WireError::OptionVersion(start + 5));
        }
        let class = Class::from_wire(class).ok_or(WireError::ClassUnknown(start + 4))?;
        if version & 0xf != 0 {
            return Err(WireError::OptionFlags(start + 5));
        }
        Ok(Self { class, number_low })
    }

    /// The four bytes after the ExID as an integer.
    pub(crate) fn low_word(self) -> u32 {
        u32::from_be_bytes([self.class.to_wire(), VERSION << 4, 0, 0]) | u32::from(self.number_low)
    }

    pub(crate) fn is_syn(self) -> bool {
        self.class == Class::Request(RequestClass::Syn)
    }

    pub(crate) fn write(&self, w: &mut Writer<'_>) {
        w.u8(KIND);
        w.u8(LENGTH as u8);
        w.u16(EX_ID);
        w.u8(self.class.to_wire());
        w.u8(VERSION << 4);
        w.u16(self.number_low);
    }
}

impl fmt::Display for RivuletOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ..{:04x}", self.class, self.number_low)
    }
}

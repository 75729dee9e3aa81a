//! `@p4runtime_translation` (P4Runtime sections 8.4.6 and 18.1): a value of a translated type has
//! one form for controllers and another in the data plane.

use std::fmt::Display;

use crate::bytestring;
use crate::error::{Result, invalid};
use crate::proto::p4::config::v1 as config;
use config::p4_new_type_spec::Representation;
use config::p4_new_type_translation::SdnType;

/// Widest number that a controller may exchange, in bits.
const MAX_WIDTH: u32 = 2048;

/// The controller's form of a translated type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdn {
    /// A number of this many bits, equal to the data plane's number.
    Number(u32),
}

/// The types that a P4Info declares.
#[derive(Clone, Copy)]
pub struct Types<'a> {
    info: Option<&'a config::P4TypeInfo>,
}

impl<'a> Types<'a> {
    /// The types of a P4Info.
    pub fn new(p4info: &'a config::P4Info) -> Types<'a> {
        Types { info: p4info.type_info.as_ref() }
    }

    /// The controller's form of a field or parameter with this type name and width in bits; `None`
    /// if its type is not translated.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, starting with `place`, for translations that this server does not know and
    /// for widths that contradict the type.
    pub fn translated(
        &self,
        name: Option<&config::P4NamedType>,
        bitwidth: i32,
        place: &dyn Display,
    ) -> Result<Option<Sdn>> {
        let spec = name.and_then(|n| self.info?.new_types.get(&n.name));
        let Some(Representation::TranslatedType(t)) = spec.and_then(|s| s.representation.as_ref()) else {
            return Ok(None);
        };
        let sdn = Sdn::of_type(t, place)?;
        match sdn {
            Sdn::Number(width) if u32::try_from(bitwidth) != Ok(width) => Err(invalid(format!(
                "{place} has {bitwidth} bits in the P4Info, its translated type {width}"
            ))),
            sdn => Ok(Some(sdn)),
        }
    }
}

impl Sdn {
    /// The form that a type declares.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, starting with `place`, for forms that this server does not know.
    pub fn of_type(t: &config::P4NewTypeTranslation, place: &dyn Display) -> Result<Sdn> {
        match t.sdn_type {
            Some(SdnType::SdnBitwidth(width)) => {
                let number = u32::try_from(width).ok().filter(|w| (1..=MAX_WIDTH).contains(w));
                number
                    .map(Sdn::Number)
                    .ok_or_else(|| invalid(format!("{place} is translated to {width} bits")))
            }
            _ => Err(invalid(format!("{place}: translation to strings is not served"))),
        }
    }

    /// The data plane's value of `width` bits for a controller's, canonical.
    ///
    /// # Errors
    /// OUT_OF_RANGE for a value that one of the two forms lacks.
    pub fn to_data_plane(self, value: &[u8], width: u32, place: &dyn Display) -> Result<Vec<u8>> {
        let Sdn::Number(sdn_width) = self;
        bytestring::unsigned(value, sdn_width, place)?;
        bytestring::unsigned(value, width, &format_args!("{place}: data plane"))
    }
}

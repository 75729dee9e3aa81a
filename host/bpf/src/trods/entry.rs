//! Entries of the programs' maps.

use libbpf_rs::{MapCore, MapFlags};

use crate::Error;

/// Writes an entry.
pub(super) fn update(map: &dyn MapCore, key: &[u8], value: &[u8], flags: MapFlags) -> Result<(), Error> {
    map.update(key, value, flags).map_err(Error::of("BPF_MAP_UPDATE_ELEM"))
}

/// Deletes an entry. A missing entry is no error.
pub(super) fn delete(map: &dyn MapCore, key: &[u8]) -> Result<(), Error> {
    match map.delete(key) {
        Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => Err(Error::of("BPF_MAP_DELETE_ELEM")(e)),
        _ => Ok(()),
    }
}

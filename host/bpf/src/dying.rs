//! The program that detects connections which end because their process dies (`src/bpf/dying.c`).
//! It shares the maps of [`trods`](crate::trods).

use std::os::fd::{AsFd, BorrowedFd};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};

use crate::Error;
use crate::kernel::{Feature, require};
use crate::object::{load, map, missing, object, open};

const NAME: &str = "dying";

/// The loaded program, for one network namespace; dropping this unloads it.
#[derive(Debug)]
pub(crate) struct Dying {
    link: Link,
    _object: Object,
}

impl Dying {
    /// The link that keeps the program attached.
    pub fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// Loads the program for the network namespace with this inode number. It uses the given maps
    /// under their names. Needs
    /// `CAP_PERFMON` beside `CAP_BPF`.
    ///
    /// # Errors
    /// The kernel lacks a feature or refuses the program.
    pub fn load(namespace: u32, with: &[(&str, &MapHandle)]) -> Result<Dying, Error> {
        require(Feature::Btf)?;
        let mut object = open(NAME, object!("dying"))?;
        for mut shared in object.maps_mut() {
            let Some((_, with)) = with.iter().find(|(name, _)| shared.name() == *name) else { continue };
            shared.reuse_fd(with.as_fd()).map_err(Error::of("sharing a BPF map"))?;
        }
        let object = load(NAME, object)?;
        let to = map(&object, ".data.namespace")?;
        to.update(&0u32.to_ne_bytes(), &namespace.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::of("BPF_MAP_UPDATE_ELEM"))?;
        let program = object.progs_mut().find(|p| p.name() == "trods_dying");
        let link = program.ok_or_else(|| missing("trods_dying"))?.attach();
        let link = link.map_err(Error::of("attaching to inet_sock_set_state"))?;
        Ok(Dying { link, _object: object })
    }
}

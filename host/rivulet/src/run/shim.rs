//! Finds the preloaded library of `rivulet run`.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Context, bail};

/// File name of the shim.
pub(super) const SHIM: &str = "librivulet_shim.so";
/// Environment variable with the path of the shim.
const SHIM_ENV: &str = "RIVULET_SHIM";

/// Looks beside this program, where cargo and packages put it.
pub(super) fn find_shim() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(SHIM_ENV) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("{SHIM_ENV} names {}, which is not a file", path.display());
        }
        return Ok(path);
    }
    let program = std::env::current_exe().context("where this program is")?;
    let folder = program.parent().context("the folder of this program")?;
    let places = ["", "deps", "../lib", "../lib/rivulet", "../deps"];
    let candidates = places.iter().map(|place| folder.join(place).join(SHIM));
    let found = candidates.into_iter().find(|path| path.is_file());
    let found = found.with_context(|| {
        format!(
            "{SHIM} is not beside {} (build it with `cargo build -p rivulet-shim`, or set {SHIM_ENV})",
            program.display()
        )
    })?;
    // The dynamic loader splits the list of preloaded libraries at colons and spaces.
    let found = found.canonicalize().unwrap_or(found);
    if OsStr::new(&found).to_string_lossy().contains([':', ' ']) {
        bail!("{}: a path with a colon or a space cannot be preloaded; set {SHIM_ENV}", found.display());
    }
    Ok(found)
}

//! Puts service addresses on a device of this host that is invisible outside.
//!
//! Added addresses are recorded in a file under `/run/rivulet`, or in systemd's
//! `RuntimeDirectory=`, so that the next process in the same network namespace removes those of a
//! process that was killed.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Name of the dummy device. If the kernel has none, `lo` is used, which does not announce
/// addresses either.
const DEVICE: &str = "rivulet0";
const LOOPBACK: &str = "lo";
/// Default folder of the files, without systemd.
const NOTES: &str = "/run/rivulet";

/// Addresses that were put on a device; removed when this is dropped.
#[derive(Debug, Default)]
pub struct ServiceAddresses {
    added: Vec<(IpAddr, String)>,
    /// Whether this process created the dummy device.
    device: bool,
    note: Option<PathBuf>,
}

impl ServiceAddresses {
    /// Makes sure that this host has every address. An address that it has already is left alone,
    /// unless a dead process of this program added it.
    pub fn ensure(&mut self, addresses: &[IpAddr]) -> anyhow::Result<()> {
        self.adopt();
        for address in addresses.iter().copied().filter(|a| !is_here(*a)) {
            let device = self.device()?;
            let text = with_prefix(address);
            let mut args = vec!["addr", "add", &text, "dev", device];
            if address.is_ipv6() {
                args.push("nodad");
            }
            ip(&args)?;
            self.added.push((address, device.to_owned()));
            self.write();
        }
        Ok(())
    }

    fn device(&mut self) -> anyhow::Result<&'static str> {
        if Path::new("/sys/class/net").join(DEVICE).exists() {
            return Ok(DEVICE);
        }
        if ip(&["link", "add", DEVICE, "type", "dummy"]).is_err() {
            return Ok(LOOPBACK);
        }
        self.device = true;
        self.write();
        ip(&["link", "set", DEVICE, "up"])?;
        Ok(DEVICE)
    }

    /// Takes over the addresses that dead processes recorded for this namespace.
    fn adopt(&mut self) {
        let Some(namespace) = namespace() else { return };
        let Ok(entries) = fs::read_dir(notes()) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(pid) = name.strip_prefix(&format!("{namespace}.")) else { continue };
            if Path::new("/proc").join(pid).exists() {
                continue;
            }
            for line in fs::read_to_string(&path).unwrap_or_default().lines() {
                match line.split_once(' ').map(|(a, device)| (a.parse(), device)) {
                    Some((Ok(address), device)) => self.added.push((address, device.to_owned())),
                    _ => self.device |= line == DEVICE,
                }
            }
            self.write();
            // The addresses are recorded in this process's own file from here on.
            let _ = fs::remove_file(path);
        }
    }

    /// Records the addresses to remove. If that fails, only `kill -9` leaves addresses behind.
    fn write(&mut self) {
        let Some(namespace) = namespace() else { return };
        let path = notes().join(format!("{namespace}.{}", std::process::id()));
        let mut text = String::new();
        for (address, device) in &self.added {
            text += &format!("{address} {device}\n");
        }
        if self.device {
            text += &format!("{DEVICE}\n");
        }
        let written = fs::create_dir_all(notes()).and_then(|()| fs::write(&path, text));
        match written {
            Ok(()) => self.note = Some(path),
            Err(e) => tracing::warn!(path = %path.display(), error = %e, "service addresses are not noted"),
        }
    }
}

impl Drop for ServiceAddresses {
    fn drop(&mut self) {
        for (address, device) in self.added.drain(..) {
            if let Err(e) = ip(&["addr", "del", &with_prefix(address), "dev", &device]) {
                tracing::debug!(error = %e, "address not removed");
            }
        }
        if std::mem::take(&mut self.device)
            && let Err(e) = ip(&["link", "del", DEVICE])
        {
            tracing::debug!(error = %e, "device not removed");
        }
        if let Some(note) = self.note.take() {
            // If removal fails, the next process finds that the addresses are gone already.
            let _ = fs::remove_file(note);
        }
    }
}

/// The folder of the files. A systemd unit's user may only write in RuntimeDirectory
/// (systemd.exec(5)).
fn notes() -> PathBuf {
    std::env::var_os("RUNTIME_DIRECTORY").unwrap_or_else(|| NOTES.into()).into()
}

/// Identifies this network namespace.
fn namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/net").ok().map(|meta| meta.ino())
}

fn with_prefix(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// Whether this host has the address: only then can a socket be bound to it.
fn is_here(address: IpAddr) -> bool {
    std::net::UdpSocket::bind((address, 0)).is_ok()
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    let out = Command::new("ip").args(args).output().context("cannot run ip (Debian package iproute2)")?;
    if !out.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

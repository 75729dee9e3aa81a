//! Service addresses on a device of this host that nobody else sees.

use std::net::IpAddr;
use std::process::Command;

use anyhow::{Context, bail};

/// Our dummy device.
const DEVICE: &str = "rivulet0";

/// Addresses that were put on a device; taken away when dropped.
#[derive(Debug, Default)]
pub struct ServiceAddresses {
    added: Vec<(IpAddr, &'static str)>,
    device_added: bool,
}

impl ServiceAddresses {
    /// Sees to it that every address stands on this host; one that is there already is left alone.
    pub fn ensure(&mut self, addresses: &[IpAddr]) -> anyhow::Result<()> {
        let missing: Vec<IpAddr> = addresses.iter().copied().filter(|a| !is_here(*a)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let device = self.device()?;
        for address in missing {
            let text = format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
            let mut args = vec!["addr", "add", &text, "dev", device];
            if address.is_ipv6() {
                args.push("nodad");
            }
            ip(&args)?;
            self.added.push((address, device));
        }
        Ok(())
    }

    /// The dummy device; `lo` on a kernel that has no dummy devices.
    fn device(&mut self) -> anyhow::Result<&'static str> {
        if ip(&["link", "show", DEVICE]).is_ok() {
            return Ok(DEVICE);
        }
        if ip(&["link", "add", DEVICE, "type", "dummy"]).is_err() {
            return Ok("lo");
        }
        self.device_added = true;
        ip(&["link", "set", DEVICE, "up"])?;
        Ok(DEVICE)
    }
}

impl Drop for ServiceAddresses {
    fn drop(&mut self) {
        for (address, device) in self.added.drain(..) {
            let text = format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
            if let Err(e) = ip(&["addr", "del", &text, "dev", device]) {
                tracing::debug!(error = %e, "address not removed");
            }
        }
        if std::mem::take(&mut self.device_added)
            && let Err(e) = ip(&["link", "del", DEVICE])
        {
            tracing::debug!(error = %e, "device not removed");
        }
    }
}

/// True if this host has the address: one can be bound that it has.
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

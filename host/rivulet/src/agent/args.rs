//! The flags of `rivulet agent`, and those with the controllers' addresses, which `rivulet serve`
//! has too.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use rivulet_agent::{Controllers, TlsFiles};

/// Addresses of the controllers, and the TLS files for connections to them.
#[derive(Args, Debug, Default)]
pub struct ControllerArgs {
    /// Controllers in the order in which they are tried: unix:PATH or HOST:PORT, several with commas
    #[arg(long = "controller", value_name = "ADDRESS,...", value_delimiter = ',')]
    pub controllers: Vec<String>,

    /// Certificate of the authority that signs the controllers' certificates (PEM); TCP requires mutual TLS
    #[arg(long, value_name = "FILE", requires_all = ["tls_certificate", "tls_key"])]
    pub tls_authority: Option<PathBuf>,

    /// This replica's certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_authority", "tls_key"])]
    pub tls_certificate: Option<PathBuf>,

    /// Private key of this replica's certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_authority", "tls_certificate"])]
    pub tls_key: Option<PathBuf>,
}

impl ControllerArgs {
    /// The controllers, with their addresses checked; `None` without `--controller`.
    pub fn controllers(&self) -> anyhow::Result<Option<Controllers>> {
        let tls = match (&self.tls_authority, &self.tls_certificate, &self.tls_key) {
            (Some(authority), Some(certificate), Some(key)) => Some(TlsFiles {
                authority: authority.clone(),
                certificate: certificate.clone(),
                key: key.clone(),
            }),
            _ => None,
        };
        if self.controllers.is_empty() {
            if tls.is_some() {
                bail!("--tls-... without --controller");
            }
            return Ok(None);
        }
        Controllers::new(&self.controllers, tls).context("--controller").map(Some)
    }
}

/// Registers this replica with the controllers and passes services and keys to its serving
/// processes.
///
/// Serving processes attach with `rivulet serve --controller unix:/run/rivulet/agent.sock`. They
/// get the keys from the agent at once, even while no controller answers.
#[derive(Args, Debug)]
pub struct AgentArgs {
    /// Name of this replica in the controller's configuration
    #[arg(long, value_name = "NAME")]
    pub name: String,

    /// Interface towards the ToR
    #[arg(long, short, value_name = "NAME")]
    pub interface: String,

    /// Addresses of the controllers, and the TLS files for connections to them
    #[command(flatten)]
    pub controller: ControllerArgs,

    /// Path of the socket for serving processes
    #[arg(long, value_name = "PATH", default_value = "/run/rivulet/agent.sock")]
    pub socket: PathBuf,

    /// User of the serving processes, by name or number: only this user, root and the agent's own user may open the socket
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// Keep services and keys in this file (mode 600), for an agent that starts while no controller answers
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,

    /// The kernel's TCP serves the services (with nginx, ...): send heartbeats while they accept
    /// connections and no serving process is attached
    #[arg(long)]
    pub plain_tcp: bool,

    /// With --plain-tcp: ready only while a GET of this path is answered with 2xx or 3xx
    #[arg(long, value_name = "PATH", requires = "plain_tcp")]
    pub health_path: Option<String>,

    /// With --plain-tcp, for services with `plain: trods`: the side that sends first after a
    /// replica has died. `client` is for comparison: a request is not acknowledged before its whole
    /// response is, so the client retransmits it
    #[arg(long, value_enum, default_value = "server", requires = "plain_tcp")]
    pub wake: Wake,

    /// With --plain-tcp: put the service addresses on a dummy device (`rivulet0`, else `lo`), and
    /// remove them at exit
    #[arg(long, requires = "plain_tcp")]
    pub setup_address: bool,
}

/// The side that sends first on a connection after its replica has died.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Wake {
    /// Another replica probes the client.
    Server,
    /// The client retransmits its request.
    Client,
}

impl From<Wake> for rivulet_trods::Wake {
    fn from(wake: Wake) -> Self {
        match wake {
            Wake::Server => rivulet_trods::Wake::Server,
            Wake::Client => rivulet_trods::Wake::Client,
        }
    }
}

/// The user ID of a user given by name or number.
pub(super) fn user(text: &str) -> anyhow::Result<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let name = std::ffi::CString::new(text).context("--user")?;
    let mut entry: libc::passwd = {
        // SAFETY: a structure of numbers and pointers; all zero is valid.
        unsafe { std::mem::zeroed() }
    };
    let (mut buffer, mut found) = (vec![0 as libc::c_char; 16 << 10], std::ptr::null_mut());
    // SAFETY: the name ends with a zero byte, and the buffer has the length passed with it.
    let error = unsafe {
        libc::getpwnam_r(name.as_ptr(), &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found)
    };
    if error != 0 {
        return Err(std::io::Error::from_raw_os_error(error)).context("--user");
    }
    if found.is_null() {
        bail!("--user {text}: there is no such user");
    }
    Ok(entry.pw_uid)
}

#[cfg(test)]
mod tests {
    #[test]
    fn user_is_found_by_name_or_number() {
        assert_eq!(super::user("0").unwrap(), 0);
        assert_eq!(super::user("root").unwrap(), 0);
        assert!(super::user("no such user").unwrap_err().to_string().contains("no such user"));
    }
}

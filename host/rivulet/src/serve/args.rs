//! The flags of `rivulet serve`.

use std::net::SocketAddr;
use std::path::{Component, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use rivulet_pktio::IoChoice;
use rivulet_server::BackEnd;
use rivulet_server::keys::KeySet;
use rivulet_server::service::{Member, Plain, Service, Tunnel};
use rivulet_transport::server::Congestion;

use crate::agent::ControllerArgs;
use crate::http::{Limits, Marks};

/// Serves the files of a directory over Rivulet and plain TCP, or what a back end answers over plain TCP.
///
/// Services and keys come from a controller (--controller, --name), or from flags and a key file
/// (--listen, --keys). Replicas that share keys and files serve each other's connections.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Directory with the files
    #[arg(required_unless_present = "back_end", conflicts_with = "back_end")]
    pub dir: Option<PathBuf>,

    /// Interface towards the clients or the ToR
    #[arg(long, short, value_name = "NAME")]
    pub interface: String,

    /// Addresses of controllers, which send services and keys, or of this host's agent
    /// (unix:/run/rivulet/agent.sock)
    #[command(flatten)]
    pub controller: ControllerArgs,

    /// Name of this replica in the controllers' configuration
    #[arg(long, value_name = "NAME", requires = "controllers")]
    pub name: Option<String>,

    /// Service address and port, without a controller; may be repeated (one port for all)
    #[arg(long, short, value_name = "ADDR:PORT", requires = "keys", conflicts_with = "controllers")]
    pub listen: Vec<SocketAddr>,

    /// Key file written by `rivulet keygen`, the same on all replicas
    #[arg(long, short, value_name = "FILE", requires = "listen", conflicts_with = "controllers")]
    pub keys: Option<PathBuf>,

    /// Send heartbeats for a pool and replica index to the ToR with this Ethernet address, and
    /// answers too
    #[arg(long, value_name = "POOL/REPLICA@MAC", requires = "keys")]
    pub member: Option<String>,

    /// ToR of another rack: it sends packets to this host's address in IP-in-IP or GUE and gets heartbeats by UDP; may be repeated
    #[arg(long, value_name = "ADDR@TOR", requires = "member", value_parser = tunnel)]
    pub tunnel: Vec<Tunnel>,

    /// Microseconds between two heartbeats
    #[arg(long, value_name = "US", default_value_t = 2000)]
    pub heartbeat_us: u64,

    /// The replica reports itself as not ready when its oldest waiting request is older than this,
    /// microseconds
    #[arg(long, value_name = "US", default_value_t = 20_000)]
    pub bound_us: u64,

    /// Trust what the ToR stamps into requests (only behind a ToR of one's own)
    #[arg(long, requires = "keys")]
    pub trust_tor: bool,

    /// Age up to which an ordinary request counts as fresh, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 4000)]
    pub horizon_ms: u64,

    /// How to serve clients of plain TCP: none, kernel, or stateless (small files, without
    /// connection state); with a controller, its configuration decides
    #[arg(long, value_name = "HOW", default_value_t, conflicts_with = "controllers")]
    pub plain: Plain,

    /// Instead of files, serve the answers of a program that uses UDP: dns://ADDR:PORT, or
    /// udp://ADDR:PORT for an HTTP request in one datagram and its answer in another; for services
    /// of stateless TCP
    #[arg(long, value_name = "URL", conflicts_with = "upload")]
    pub back_end: Option<BackEnd>,

    /// The back end gives the same bytes for a request each time and on each replica: answers may
    /// then have more than one segment, up to 15 kB
    #[arg(long, requires = "back_end")]
    pub deterministic: bool,

    /// Store what clients PUT and POST in this directory, which all replicas share (it may be DIR)
    #[arg(long, value_name = "DIR")]
    pub upload: Option<PathBuf>,

    /// Longest upload, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    pub upload_max: u64,

    /// Bytes of all unfinished uploads, over all replicas together
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 30)]
    pub upload_quota: u64,

    /// Time without new data after which an unfinished upload is removed, seconds
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..))]
    pub upload_expiry: u64,

    /// Put the client's address into the baseline JPEGs of this folder of DIR while they are sent (without a value: of all of DIR);
    /// other JPEGs there are not sent
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, require_equals = true, default_missing_value = ".", conflicts_with = "back_end")]
    pub watermark: Option<PathBuf>,

    /// Words before the client's address, which together have room for 40 letters
    #[arg(long, value_name = "WORDS", default_value = "", requires = "watermark")]
    pub watermark_text: String,

    /// Threads on the packet path, each with a share of the flows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,

    /// How packets are sent and received: af_packet, af_xdp, or auto (AF_XDP where the interface
    /// allows it)
    #[arg(long, value_name = "MECHANISM", default_value_t)]
    pub io: IoChoice,

    /// Congestion control of Rivulet connections: reno, or cubic (RFC 9438); should be equal on all
    /// replicas
    #[arg(long, value_name = "CONTROL", default_value_t)]
    pub congestion: Congestion,

    /// Send every continuation whole, not as the difference to what the client predicts (for measurements)
    #[arg(long)]
    pub no_delta: bool,

    /// Keep no record of stateless TCP's answers in flight: a lost segment is sent again only after
    /// the client retransmits (for measurements)
    #[arg(long)]
    pub no_ring: bool,

    /// Serve large files without connection state too, up to 1 GB each and 2 GB in total, which are
    /// kept in memory; must be equal on all replicas
    #[arg(long)]
    pub large: bool,

    /// Serve Prometheus metrics at this address
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,

    /// Put the service addresses on a dummy device (`rivulet0`, else `lo`), and remove them at exit
    #[arg(long)]
    pub setup_address: bool,
}

impl ServeArgs {
    /// The services that the flags describe; none with a controller.
    pub fn services(&self) -> anyhow::Result<Vec<Service>> {
        let Some(keys) = &self.keys else {
            return match self.controller.controllers.is_empty() {
                true => bail!("nothing to serve: give --listen and --keys, or --controller and --name"),
                false if self.name.is_none() => bail!("--controller needs --name"),
                false => Ok(Vec::new()),
            };
        };
        let file = keys;
        let keys = KeySet::read(file)?;
        if self.plain == Plain::Stateless && keys.usable_cookie == 0 {
            bail!(
                "{}: no usable cookie key, which --plain stateless needs (rivulet keygen writes one)",
                file.display()
            );
        }
        let port = self.listen.first().context("--listen is missing")?.port();
        if self.listen.iter().any(|a| a.port() != port) {
            bail!("all addresses of --listen have one port");
        }
        let service = Service {
            member: self.member.as_deref().map(|text| self.place(text)).transpose()?,
            trust_tor: self.trust_tor,
            horizon: Duration::from_millis(self.horizon_ms),
            tunnels: self.tunnel.clone(),
            ..Service::standalone(
                "files",
                self.listen.iter().map(SocketAddr::ip).collect(),
                port,
                keys,
                self.plain,
            )
        };
        service.check()?;
        Ok(vec![service])
    }

    /// The back end that is used instead of files.
    pub fn back_end(&self) -> anyhow::Result<Option<BackEnd>> {
        let Some(back_end) = self.back_end else { return Ok(None) };
        if self.keys.is_some() && self.plain != Plain::Stateless {
            bail!("--back-end answers clients of stateless TCP alone: give --plain stateless");
        }
        Ok(Some(BackEnd { deterministic: self.deterministic, ..back_end }))
    }

    /// Which pictures are marked for each client.
    pub fn marks(&self) -> anyhow::Result<Option<Marks>> {
        let (Some(folder), Some(dir)) = (&self.watermark, &self.dir) else { return Ok(None) };
        let inside = if folder.is_absolute() {
            folder.strip_prefix(dir).with_context(|| {
                format!("--watermark {} is not a folder of {}", folder.display(), dir.display())
            })?
        } else {
            folder
        };
        if !dir.join(inside).is_dir() || inside.components().any(|part| part == Component::ParentDir) {
            bail!("--watermark: {} is not a folder of {}", inside.display(), dir.display());
        }
        let name: Vec<_> = inside
            .components()
            .filter_map(|part| match part {
                Component::Normal(name) => Some(name.to_string_lossy()),
                _ => None,
            })
            .collect();
        Ok(Some(Marks::new(&name.join("/"), &self.watermark_text)))
    }

    /// Limits on uploads.
    pub fn limits(&self) -> Limits {
        let expiry = Duration::from_secs(self.upload_expiry);
        Limits { body: self.upload_max, unfinished: self.upload_quota, expiry }
    }

    fn place(&self, text: &str) -> anyhow::Result<Member> {
        let parsed = || {
            let (place, mac) = text.split_once('@')?;
            let (pool, replica) = place.split_once('/')?;
            let mut octets = mac.split(':').map(|octet| u8::from_str_radix(octet, 16));
            let mut tor_mac = [0; 6];
            for to in &mut tor_mac {
                *to = octets.next()?.ok()?;
            }
            octets.next().is_none().then_some(())?;
            Some((pool.parse().ok()?, replica.parse().ok()?, tor_mac))
        };
        let (pool, replica, tor_mac) = parsed().with_context(|| {
            format!("--member {text:?} is not POOL/REPLICA@MAC, such as 1/0@02:00:00:00:00:01")
        })?;
        Ok(Member {
            pool,
            replica,
            tor_mac,
            heartbeat: Duration::from_micros(self.heartbeat_us),
            bound: Duration::from_micros(self.bound_us),
        })
    }
}

fn tunnel(text: &str) -> Result<Tunnel, String> {
    let parsed = || {
        let (local, tor) = text.split_once('@')?;
        Some(Tunnel { local: local.parse().ok()?, tor: tor.parse().ok()? })
    };
    parsed().ok_or_else(|| "want two addresses, such as 10.0.2.1@10.0.3.254".into())
}

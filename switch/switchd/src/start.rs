//! Starts and stops the parts of the switch.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rivulet_engine::{Pipeline, Program, Switch, SwitchConfig};
use rivulet_link::poll::{now, signal_fd};
use rivulet_p4rt::{Listener, PacketInSender, PacketIns, Server, ServerConfig, Tls, packet_in_channel};
use rivulet_private_file::{SocketType, listen_at};
use rustix::process::{Signal, getpid, kill_process};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::metrics::{self, Sources};
use crate::options::{LogLevel, LogTarget, Options, TlsFiles};
use crate::ports::{Inbox, PortConfig, PortControl};
use crate::processor::{Forwarder, Processor};
use crate::trace_log::TraceLog;
use crate::worker::{Worker, WorkerConfig, WorkerCounters};

/// Packet-ins that can wait for the controller.
const PACKET_INS: usize = 4096;
/// Longest private key in PEM: an RSA key of 16,384 bits has 13 kB.
const MAX_KEY_BYTES: u64 = 64 << 10;
/// Longest wait for running requests at the end.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// Runs a switch until SIGINT or SIGTERM.
pub fn run(options: &Options) -> anyhow::Result<()> {
    // Before any thread starts, so that only the packet path receives the signals.
    let stop = signal_fd(&[Signal::INT.as_raw(), Signal::TERM.as_raw()])?;
    crate::log::init(&options.log, options.log_level).context("log file")?;
    for warning in &options.warnings {
        eprintln!("Warning: {warning}");
    }
    let (control, inboxes) = PortControl::new(PortConfig {
        io: options.io,
        pcap: options.pcap.clone(),
        cpu_port: options.cpu_port,
        drop_port: options.drop_port,
        max_ports: options.max_port_count,
        workers: options.workers,
    })?;
    for (port, interface) in &options.interfaces {
        let link = options.links.iter().find(|(p, _)| p == port).map(|(_, settings)| settings.clone());
        control.add(*port, interface, link).with_context(|| format!("-i {port}@{interface}"))?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if options.bare_forwarder {
        return forward(options, control, inboxes, stop.as_fd(), &runtime);
    }
    switch(options, control, inboxes, stop.as_fd(), &runtime)
}

/// The worker threads.
struct Workers<P>(Vec<Worker<P>>);

impl<P: Processor + Send> Workers<P> {
    fn new(
        processors: Vec<P>,
        inboxes: Vec<Inbox>,
        options: &Options,
        cpu: Option<&(u32, PacketInSender)>,
        counters: &Arc<WorkerCounters>,
    ) -> anyhow::Result<Self> {
        // BMv2 logs every step of a packet at these levels.
        let to_log = options.log != LogTarget::Stderr && options.log_level <= LogLevel::Debug;
        let trace = TraceLog::open(&options.trace, to_log).context("trace file")?;
        let start = now();
        let worker = |(i, (processor, inbox))| {
            let config = WorkerConfig {
                cpu: cpu.cloned(),
                dump_packet_data: options.dump_packet_data,
                trace: trace.clone(),
                counters: counters.clone(),
                start,
                quiet: i > 0,
            };
            Worker::new(processor, inbox, config)
        };
        Ok(Workers(processors.into_iter().zip(inboxes).enumerate().map(worker).collect::<Result<_, _>>()?))
    }

    /// Forwards packets until `stop` is readable or a worker fails.
    fn run(self, stop: BorrowedFd<'_>) -> anyhow::Result<()> {
        let mut workers = self.0.into_iter();
        let Some(mut first) = workers.next() else { bail!("no workers") };
        std::thread::scope(|scope| {
            let others: Vec<_> = workers
                .map(|mut worker| {
                    scope.spawn(move || {
                        let _end = EndAll;
                        worker.run(stop)
                    })
                })
                .collect();
            let result = {
                let _end = EndAll;
                first.run(stop)
            };
            for other in others {
                other.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
            }
            Ok(result?)
        })
    }
}

/// Ends all workers when one ends: the signal stays readable for the others.
struct EndAll;

impl Drop for EndAll {
    fn drop(&mut self) {
        // A signal to this process, which is blocked and read from a descriptor.
        let _ = kill_process(getpid(), Signal::TERM);
    }
}

/// Serves the metrics if configured.
fn start_metrics(options: &Options, sources: Sources, runtime: &Runtime) -> anyhow::Result<()> {
    let Some(addr) = &options.metrics_addr else { return Ok(()) };
    let listener = runtime
        .block_on(TcpListener::bind(addr.as_str()))
        .with_context(|| format!("--metrics-addr {addr}"))?;
    runtime.spawn(metrics::serve(listener, sources));
    Ok(())
}

fn forward(
    options: &Options,
    control: PortControl,
    inboxes: Vec<Inbox>,
    stop: BorrowedFd<'_>,
    runtime: &Runtime,
) -> anyhow::Result<()> {
    let numbers: Vec<u32> = options.interfaces.iter().map(|(n, _)| *n).collect();
    let pairs = numbers.chunks_exact(2).map(|p| (p[0], p[1])).collect();
    let counters = Arc::new(WorkerCounters::default());
    let sources = Sources { ports: control, switch: None, server: None, worker: counters.clone() };
    start_metrics(options, sources, runtime)?;
    println!("Forwarding without P4");
    let forwarders = vec![Forwarder { pairs }; options.workers];
    Workers::new(forwarders, inboxes, options, None, &counters)?.run(stop)
}

fn switch(
    options: &Options,
    control: PortControl,
    inboxes: Vec<Inbox>,
    stop: BorrowedFd<'_>,
    runtime: &Runtime,
) -> anyhow::Result<()> {
    let config = SwitchConfig {
        drop_port: options.drop_port,
        priority_queues: options.priority_queues,
        ..SwitchConfig::default()
    };
    let workers = NonZeroUsize::new(options.workers).unwrap_or(NonZeroUsize::MIN);
    let (switch, paths, events) = Switch::with_workers(config, workers);
    let (packet_in, packet_ins) = packet_in_channel(PACKET_INS);
    let tls = options.tls.as_ref().map(read_tls).transpose()?;
    let server_config = ServerConfig { device_id: options.device_id, tls, ..ServerConfig::default() };
    let server = Server::new(server_config, switch.clone(), Arc::new(control.clone()));

    let counters = Arc::new(WorkerCounters::default());
    let cpu = options.cpu_port.map(|port| (port, packet_in));
    let workers = Workers::new(paths, inboxes, options, cpu.as_ref(), &counters)?;
    install(options, &switch, &server)?;
    start_logs(events.logs)?;
    let sources =
        Sources { ports: control, switch: Some(switch), server: Some(server.clone()), worker: counters };
    start_metrics(options, sources, runtime)?;
    let grpc = Grpc::start(options, server, packet_ins, events.digests, runtime)?;
    let result = workers.run(stop);
    grpc.stop(runtime);
    result
}

/// Reads the TLS files; the server checks their content at its start.
fn read_tls(files: &TlsFiles) -> anyhow::Result<Tls> {
    let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
    Ok(Tls {
        certificate: read(&files.certificate)?,
        key: rivulet_private_file::read(&files.key, MAX_KEY_BYTES)
            .with_context(|| files.key.display().to_string())?,
        client_authority: files.client_authority.as_deref().map(read).transpose()?,
        client_required: files.client_required,
    })
}

/// Loads the program given on the command line.
fn install(options: &Options, switch: &Switch, server: &Server) -> anyhow::Result<()> {
    let Some(path) = &options.config else { return Ok(()) };
    let json = std::fs::read(path).with_context(|| path.display().to_string())?;
    match &options.p4info {
        Some(info) => {
            let text = std::fs::read(info).with_context(|| info.display().to_string())?;
            server.install(&text, json).with_context(|| path.display().to_string())?;
        }
        None => {
            let program = Program::from_json(&json).with_context(|| path.display().to_string())?;
            switch.commit(&Pipeline::new(program)).context("starting the program")?;
        }
    }
    Ok(())
}

/// Forwards the P4 program's log messages.
fn start_logs(logs: std::sync::mpsc::Receiver<String>) -> anyhow::Result<()> {
    let log = move || logs.iter().for_each(|text| tracing::info!("log_msg: {text}"));
    // The thread ends with the packet path.
    std::thread::Builder::new().name("log_msg".into()).spawn(log)?;
    Ok(())
}

/// Listens at an address: HOST:PORT, or unix:PATH, which works across network namespaces.
fn listen(addr: &str, runtime: &Runtime) -> anyhow::Result<Listener> {
    let listener = match addr.strip_prefix("unix:") {
        Some(path) => {
            let listener = listen_unix(Path::new(path), false, runtime)?;
            println!("Server listening on {addr}");
            listener
        }
        None => {
            let listener = runtime.block_on(TcpListener::bind(addr))?;
            println!("Server listening on {}", listener.local_addr()?);
            listener.into()
        }
    };
    Ok(listener)
}

/// Listens at a Unix socket: a private one for this user and root, others with the permissions of
/// the umask. Replaces a socket left by an earlier switch; any other file is an error.
fn listen_unix(path: &Path, is_private: bool, runtime: &Runtime) -> anyhow::Result<Listener> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            bail!("{} exists and is not a socket", path.display());
        }
        if UnixStream::connect(path).is_ok() {
            bail!("another process listens on {}", path.display());
        }
        std::fs::remove_file(path)?;
    }
    let listener =
        if is_private { listen_at(path, SocketType::STREAM)?.into() } else { UnixListener::bind(path)? };
    listener.set_nonblocking(true)?;
    let _context = runtime.enter();
    Ok(tokio::net::UnixListener::from_std(listener)?.into())
}

/// The running P4Runtime server.
struct Grpc {
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Grpc {
    fn start(
        options: &Options,
        server: Server,
        packet_ins: PacketIns,
        digests: std::sync::mpsc::Receiver<rivulet_engine::DigestSample>,
        runtime: &Runtime,
    ) -> anyhow::Result<Grpc> {
        let listener = listen(&options.grpc_addr, runtime)
            .with_context(|| format!("--grpc-server-addr {}", options.grpc_addr))?;
        let control = options.control_socket.as_deref();
        let control = control.map(|path| {
            let listener = listen_unix(path, true, runtime);
            listener.with_context(|| format!("--control-socket {}", path.display()))
        });
        let control = control.transpose()?;
        let (shutdown, end) = oneshot::channel();
        let task = runtime.spawn(async move {
            let end = async {
                // A dropped sender also ends the server.
                let _ = end.await;
            };
            if let Err(e) = server.serve(listener, control, packet_ins, digests, end).await {
                tracing::error!("P4Runtime: {e}; packets are still forwarded");
            }
        });
        Ok(Grpc { shutdown, task })
    }

    /// Ends streams and waits for running requests.
    fn stop(self, runtime: &Runtime) {
        let _ = self.shutdown.send(());
        if runtime.block_on(async { tokio::time::timeout(SHUTDOWN, self.task).await }).is_err() {
            tracing::warn!("P4Runtime: requests still running at the end");
        }
    }
}

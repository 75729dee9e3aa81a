//! Downloads the URLs, and writes the files and the reports.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use rivulet_client::{Config, Stack, Stream};

use super::args::GetArgs;
use super::failure::Failure;
use super::meter::Meter;
use super::patient::Patient;
use super::report::{Report, tell};
use super::response::{Buffer, Head};
use super::suspended::Suspended;
use super::url::Url;
use crate::process::stop_on_signals;

const BLOCK: usize = 256 << 10;
/// Limit on the received bytes of a stream that wait to be read: more than any path has in flight.
const RECEIVE_BUFFER: usize = 16 << 20;

/// A connection that may serve several URLs.
pub(super) struct Connection {
    pub stream: Stream,
    pub buffer: Buffer,
    pub remote: SocketAddr,
}

/// Downloads every URL; returns the exit code.
pub fn get(args: &GetArgs) -> anyhow::Result<u8> {
    let suspended = args.resume.as_deref().map(Suspended::read).transpose()?;
    let texts = suspended.as_ref().map_or_else(|| args.urls.clone(), |s| vec![s.position.url.clone()]);
    let urls: Vec<Url> = texts.iter().map(|u| Url::parse(u)).collect::<Result<_, _>>()?;
    if args.output.len() > urls.len() {
        anyhow::bail!("more outputs than URLs");
    }
    let config = Config { receive_buffer: RECEIVE_BUFFER, ..Config::default() };
    let stack = Stack::with_io(config, args.io)?;
    stack.remember_for_user();
    let bars = MultiProgress::new();
    let mut downloads: Vec<Download<'_>> = urls
        .iter()
        .enumerate()
        .map(|(i, url)| Download::new(args, &texts[i], url, args.output.get(i), &bars))
        .collect();
    if let Some(file) = &args.suspend {
        Download::check_suspension(args, file, &downloads)?;
        stop_on_signals();
    }
    let mut code = 0;
    let mut tell_all = |done: Vec<(Report, Option<Failure>, bool)>| -> anyhow::Result<()> {
        for (report, failure, to_stdout) in done {
            if let Some(failure) = failure {
                // The first failure determines the exit code.
                code = if code == 0 { failure.code() } else { code };
                eprintln!("rivulet get: {}: {}", report.url, failure.message());
            }
            tell(args, &report, to_stdout)?;
        }
        Ok(())
    };
    let same_server = urls.iter().all(|u| (&u.host, u.port) == (&urls[0].host, urls[0].port));
    if urls.len() > 1 && same_server && !args.one_by_one && args.output.iter().all(|o| o != Path::new("-")) {
        match parallel(&stack, &mut downloads) {
            Some(done) => {
                tell_all(done)?;
                return Ok(code);
            }
            // Plain TCP has only one stream.
            None => tracing::debug!("not in parallel"),
        }
    }
    let mut kept: Option<Connection> = None;
    for download in &mut downloads {
        let mut result = download.run(&stack, &mut kept, suspended.as_ref());
        let mut report = download.report(kept.as_ref().map(|c| &c.stream), result.as_ref().err());
        if let Err(Failure::Suspended(file)) = &result
            && let Err(e) = download.suspend(&stack, kept.take(), file)
        {
            let failure = Failure::Local(e);
            report.error = Some(failure.message());
            result = Err(failure);
        }
        if result.is_ok()
            && let Some(file) = &args.resume
        {
            std::fs::remove_file(file).with_context(|| file.display().to_string())?;
        }
        if result.is_err() {
            kept = None;
        }
        tell_all(vec![(report, result.err(), download.to_stdout())])?;
    }
    Ok(code)
}

/// Downloads all URLs at the same time, each on a separate stream of one connection (section 5.2).
/// `None`: the server does not support Rivulet, and nothing was downloaded.
fn parallel(stack: &Stack, downloads: &mut [Download<'_>]) -> Option<Vec<(Report, Option<Failure>, bool)>> {
    let failed = |downloads: &[Download<'_>], e: &anyhow::Error| {
        let done = downloads.iter().map(|d| {
            let failure = Failure::Connect(anyhow::anyhow!("{e:#}"));
            (d.report(None, Some(&failure)), Some(failure), d.to_stdout())
        });
        Some(done.collect())
    };
    let stream = match downloads[0].url.resolve().and_then(|remote| Ok(stack.connect(remote)?)) {
        Ok(stream) => stream,
        Err(e) => return failed(downloads, &e),
    };
    let mut subs = Vec::new();
    for download in downloads.iter() {
        let resume = download.resume_point();
        match stream.request(download.request(resume.as_ref()).as_bytes()) {
            Ok(sub) => subs.push((sub, resume)),
            Err(e) => return failed(downloads, &e.into()),
        }
    }
    // The first answer shows whether the server supports Rivulet.
    let patience = Duration::from_secs(downloads[0].args.stall_timeout);
    if let Err(e) = stream.connect_now(patience) {
        return failed(downloads, &e.into());
    }
    if stream.is_plain_tcp() {
        return None;
    }
    let stream = &stream;
    std::thread::scope(|scope| {
        let threads: Vec<_> = downloads
            .iter_mut()
            .zip(subs)
            .map(|(download, (sub, resume))| {
                scope.spawn(move || {
                    let read = |into: &mut [u8], until| sub.read_until(into, Some(until));
                    let mut from = Patient::new(&read, download.args);
                    let failure = download.receive(resume, &mut Buffer::default(), &mut from).err();
                    (download.report(Some(stream), failure.as_ref()), failure, download.to_stdout())
                })
            })
            .collect();
        // A thread that panicked has printed its message.
        Some(threads.into_iter().filter_map(|t| t.join().ok()).collect())
    })
}

/// The download of one URL into one file.
pub(super) struct Download<'a> {
    pub args: &'a GetArgs,
    /// The URL as the user wrote it.
    pub text: &'a str,
    bars: &'a MultiProgress,
    url: &'a Url,
    path: PathBuf,
    pub meter: Meter,
    pub status: Option<u16>,
    pub size: Option<u64>,
    pub etag: Option<String>,
    /// Bytes in the `.part` file.
    pub received: u64,
    /// Bytes of the response that follow; `None`: as many as come before the connection ends.
    pub left: Option<u64>,
    /// The rest of the `.part` file is requested.
    pub continues: bool,
}

impl<'a> Download<'a> {
    fn new(
        args: &'a GetArgs,
        text: &'a str,
        url: &'a Url,
        output: Option<&PathBuf>,
        bars: &'a MultiProgress,
    ) -> Download<'a> {
        let path = output.cloned().unwrap_or_else(|| url.file_name().into());
        let meter = Meter::new(Duration::from_millis(args.sample_ms));
        Download {
            args,
            text,
            bars,
            url,
            path,
            meter,
            status: None,
            size: None,
            etag: None,
            received: 0,
            left: None,
            continues: args.r#continue,
        }
    }

    pub(super) fn to_stdout(&self) -> bool {
        self.path == Path::new("-")
    }

    /// Whether the output is a device, a pipe or the like, which is written to rather than
    /// replaced.
    pub(super) fn to_device(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|there| !there.is_file() && !there.is_dir())
    }

    pub(super) fn part(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".part");
        name.into()
    }

    /// Path of the file with the entity tag of the `.part` file.
    pub(super) fn tag(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".part.etag");
        name.into()
    }

    fn run(
        &mut self,
        stack: &Stack,
        kept: &mut Option<Connection>,
        suspended: Option<&Suspended>,
    ) -> Result<(), Failure> {
        if let Some(suspended) = suspended
            && self.resume(stack, kept, suspended)?
        {
            return Ok(());
        }
        let resume = self.resume_point();
        let remote = self.url.resolve().map_err(Failure::Connect)?;
        if kept.as_ref().is_none_or(|c| c.remote != remote) {
            let stream = stack.connect(remote).map_err(|e| Failure::Connect(e.into()))?;
            *kept = Some(Connection { stream, buffer: Buffer::default(), remote });
        }
        let Some(connection) = kept.as_mut() else {
            return Err(Failure::Connect(anyhow::anyhow!("no connection")));
        };
        let request = self.request(resume.as_ref());
        (&connection.stream).write_all(request.as_bytes()).map_err(|e| self.connection_failed(e))?;
        let stream = &connection.stream;
        let read = |into: &mut [u8], until| stream.read_until(into, Some(until));
        let mut from = Patient::new(&read, self.args);
        let head = self.receive(resume, &mut connection.buffer, &mut from)?;
        if head.close || head.length.is_none() {
            // The connection is kept only for the report; the next URL gets another one.
            connection.remote = SocketAddr::from(([0, 0, 0, 0], 0));
        }
        Ok(())
    }

    /// Receives the head and the body of the response.
    fn receive(
        &mut self,
        resume: Option<(u64, String)>,
        buffer: &mut Buffer,
        from: &mut Patient<'_>,
    ) -> Result<Head, Failure> {
        let head = buffer.head(from).map_err(Failure::Connect)?;
        self.status = Some(head.status);
        self.body(&head, resume, buffer, from)?;
        Ok(head)
    }

    fn connection_failed(&self, e: io::Error) -> Failure {
        let failed = anyhow::Error::new(e).context(self.url.authority.clone());
        if self.meter.bytes() == 0 { Failure::Connect(failed) } else { Failure::Broken(failed) }
    }

    /// Length and entity tag of an interrupted download's file.
    fn resume_point(&self) -> Option<(u64, String)> {
        if !self.continues || self.to_stdout() || self.to_device() {
            return None;
        }
        let length = std::fs::metadata(self.part()).ok()?.len();
        let tag = std::fs::read_to_string(self.tag()).ok()?;
        (length > 0 && tag.starts_with('"')).then_some((length, tag))
    }

    fn request(&self, resume: Option<&(u64, String)>) -> String {
        let mut text = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: rivulet/{}\r\nAccept: */*\r\n",
            self.url.target,
            self.url.authority,
            env!("CARGO_PKG_VERSION")
        );
        if let Some((from, tag)) = resume {
            // Without If-Range, another content could be appended to the beginning of this one.
            text += &format!("Range: bytes={from}-\r\nIf-Range: {tag}\r\n");
        }
        text + "\r\n"
    }

    fn body(
        &mut self,
        head: &Head,
        resume: Option<(u64, String)>,
        buffer: &mut Buffer,
        from: &mut Patient<'_>,
    ) -> Result<(), Failure> {
        let start = match (head.status, &resume, head.range) {
            (200, ..) => 0,
            (206, Some((length, _)), Some((first, size))) if first == *length => {
                self.size = Some(size);
                first
            }
            // The interrupted download was complete.
            (416, Some((length, _)), _) => {
                self.size = Some(*length);
                self.drain(head, buffer, from).ok();
                return self.complete();
            }
            _ => {
                self.drain(head, buffer, from).ok();
                return Err(Failure::Status(head.status, head.reason.clone()));
            }
        };
        if head.status == 200 {
            self.size = head.length;
        }
        self.transfer(start, head.length, head.etag.as_deref(), buffer, from)
    }

    /// Reads a body, of which `start` bytes are in the `.part` file and `length` follow.
    pub(super) fn transfer(
        &mut self,
        start: u64,
        length: Option<u64>,
        etag: Option<&str>,
        buffer: &mut Buffer,
        from: &mut Patient<'_>,
    ) -> Result<(), Failure> {
        let mut sink = self.sink(start, etag).map_err(Failure::Local)?;
        (self.received, self.left, self.etag) = (start, length, etag.map(str::to_owned));
        let bar = self.bar(start);
        let mut block = vec![0; BLOCK];
        while self.left != Some(0) {
            let most = self.left.unwrap_or(u64::MAX).min(BLOCK as u64) as usize;
            let n = match buffer.read(from, &mut block[..most]) {
                Ok(0) => {
                    let Some(left) = self.left else { break };
                    bar.abandon();
                    return Err(Failure::Broken(anyhow::anyhow!("the connection ended {left} bytes early")));
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                    bar.abandon();
                    return Err(Failure::Suspended(self.args.suspend.clone().unwrap_or_default()));
                }
                Err(e) => {
                    bar.abandon();
                    let e = anyhow::Error::new(e).context(format!("after {} bytes", self.meter.bytes()));
                    return Err(Failure::Broken(e));
                }
            };
            self.meter.take(n);
            sink.write_all(&block[..n])
                .with_context(|| self.path.display().to_string())
                .map_err(Failure::Local)?;
            bar.inc(n as u64);
            self.received += n as u64;
            self.left = self.left.map(|left| left - n as u64);
        }
        bar.finish_and_clear();
        sink.flush().with_context(|| self.path.display().to_string()).map_err(Failure::Local)?;
        drop(sink);
        self.complete()
    }

    /// Reads a body that is not wanted, so that the connection can be used again.
    fn drain(&self, head: &Head, buffer: &mut Buffer, from: &mut Patient<'_>) -> io::Result<()> {
        let mut left = head.length.unwrap_or(0).min(1 << 20);
        let mut block = [0; 4096];
        while left > 0 {
            let most = left.min(block.len() as u64) as usize;
            match buffer.read(from, &mut block[..most])? {
                0 => break,
                n => left -= n as u64,
            }
        }
        Ok(())
    }

    fn sink(&self, start: u64, etag: Option<&str>) -> anyhow::Result<Box<dyn Write>> {
        if self.to_stdout() {
            return Ok(Box::new(io::stdout()));
        }
        if self.to_device() {
            let device = OpenOptions::new().write(true).open(&self.path);
            return Ok(Box::new(device.with_context(|| self.path.display().to_string())?));
        }
        let part = self.part();
        let context = || part.display().to_string();
        let mut file: File = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(start == 0)
            .open(&part)
            .with_context(context)?;
        file.seek(SeekFrom::Start(start)).with_context(context)?;
        if let Some(etag) = etag {
            std::fs::write(self.tag(), etag).with_context(|| self.tag().display().to_string())?;
        }
        Ok(Box::new(file))
    }

    /// Renames the complete `.part` file to its final name.
    fn complete(&self) -> Result<(), Failure> {
        if self.to_stdout() || self.to_device() {
            return Ok(());
        }
        std::fs::rename(self.part(), &self.path)
            .with_context(|| self.path.display().to_string())
            .map_err(Failure::Local)?;
        // If this fails, the next download overwrites the file.
        let _ = std::fs::remove_file(self.tag());
        Ok(())
    }

    fn bar(&self, start: u64) -> ProgressBar {
        if self.args.quiet || self.args.json {
            return ProgressBar::hidden();
        }
        let bar = match self.size {
            Some(size) => ProgressBar::new(size),
            None => ProgressBar::no_length(),
        };
        let style =
            ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}");
        let bar = self.bars.add(bar);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(start);
        bar
    }

    fn report(&self, stream: Option<&Stream>, failure: Option<&Failure>) -> Report {
        let tcp = stream.is_some_and(Stream::is_plain_tcp);
        Report {
            url: self.text.to_owned(),
            ok: failure.is_none(),
            error: failure.map(Failure::message),
            status: self.status,
            file: (!self.to_stdout()).then(|| self.path.clone()),
            size: self.size,
            transport: if tcp { "tcp" } else { "rivulet" },
            local: stream.map(Stream::local_addr),
            remote: stream.map(Stream::peer_addr),
            reading: self.meter.reading(),
            smoothed_rtt_us: stream.and_then(Stream::smoothed_rtt).map(|rtt| rtt.as_micros() as u64),
            counts: stream.filter(|_| !tcp).map(|s| s.statistics().into()),
        }
    }
}

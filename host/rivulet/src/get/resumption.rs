//! How a download is suspended into a file, and resumed from one.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rivulet_client::{ResumptionError, Stack};

use super::args::GetArgs;
use super::failure::Failure;
use super::fetch::{Connection, Download};
use super::patient::Patient;
use super::response::Buffer;
use super::suspended::{Position, Suspended, digest_of};

/// A server without the keys of a suspended connection cannot answer it. After this time the rest is requested on a new one.
const RESUMPTION_TIMEOUT: Duration = Duration::from_secs(5);

impl Download<'_> {
    /// Refuses what cannot be suspended before anything is downloaded.
    pub(super) fn check_suspension(
        args: &GetArgs,
        file: &Path,
        downloads: &[Download<'_>],
    ) -> anyhow::Result<()> {
        let flag = format!("--suspend {}", file.display());
        match downloads {
            [one] if !one.to_stdout() && !one.to_device() => {}
            [_] => anyhow::bail!("{flag}: the download must go to a file (-o)"),
            _ => anyhow::bail!("{flag}: one URL at a time"),
        }
        if args.resume.as_deref() != Some(file) && file.exists() {
            anyhow::bail!("{flag}: the file exists; resume it, or delete it");
        }
        Ok(())
    }

    /// Goes on with a suspended download on its connection. False: the server does not take the connection, and the rest
    /// is to be requested on a new one.
    pub(super) fn resume(
        &mut self,
        stack: &Stack,
        kept: &mut Option<Connection>,
        suspended: &Suspended,
    ) -> Result<bool, Failure> {
        suspended.check_part(&self.part()).map_err(Failure::Local)?;
        let Position { received, left, size, etag, .. } = &suspended.position;
        if let Some(etag) = etag {
            let tag = self.tag();
            std::fs::write(&tag, etag).with_context(|| tag.display().to_string()).map_err(Failure::Local)?;
        }
        self.continues = true;
        if suspended.connection.is_empty() {
            return Ok(false);
        }
        let stream = stack.resume(&suspended.connection).map_err(|error| match error {
            ResumptionError::Damaged(e) => Failure::Local(e.into()),
            ResumptionError::Connect(e) => Failure::Connect(e.into()),
        })?;
        let remote = stream.peer_addr();
        let connection = kept.insert(Connection { stream, buffer: Buffer::default(), remote });
        let stream = &connection.stream;
        let read = |into: &mut [u8], until| stream.read_until(into, Some(until));
        let before = stream.statistics().responses;
        let has_answered = || stream.statistics().responses > before;
        let mut from = Patient::new(&read, self.args);
        from.has_answered = &has_answered;
        from.wait = RESUMPTION_TIMEOUT.min(from.stall);
        (self.status, self.size) = (Some(200), *size);
        match self.transfer(*received, *left, etag.as_deref(), &mut connection.buffer, &mut from) {
            Err(Failure::Broken(e)) if !has_answered() => {
                tracing::info!("the connection cannot be resumed, the rest is requested on a new one: {e:#}");
                *kept = None;
                Ok(false)
            }
            result => result.map(|()| true),
        }
    }

    /// Writes the download and its connection to a file.
    pub(super) fn suspend(&self, stack: &Stack, kept: Option<Connection>, file: &Path) -> anyhow::Result<()> {
        // Plain TCP ends here, and the rest is requested at the resumption.
        let connection = kept.and_then(|kept| stack.suspend(kept.stream)).unwrap_or_default();
        let part = self.part();
        let digest = File::open(&part).and_then(|part| digest_of(&part, self.received));
        let position = Position {
            url: self.text.to_owned(),
            received: self.received,
            left: self.left,
            size: self.size,
            etag: self.etag.clone(),
            digest: digest.with_context(|| part.display().to_string())?,
        };
        Suspended { position, connection }.write(file)
    }
}

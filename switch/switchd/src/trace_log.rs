//! Writes packet traces; workers share it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rivulet_engine::Trace;

use crate::options::TraceOptions;

/// Destinations of traces, for one or several workers.
#[derive(Clone)]
pub struct TraceLog(Arc<Mutex<Files>>);

/// Each destination is closed when writing to it fails.
struct Files {
    text: Vec<Box<dyn Write + Send>>,
    json: Option<Box<dyn Write + Send>>,
    /// Also log at level debug.
    to_log: bool,
}

impl TraceLog {
    /// Opens the configured destinations; `None` if there are none.
    pub fn open(options: &TraceOptions, to_log: bool) -> io::Result<Option<TraceLog>> {
        if !options.any() && !to_log {
            return Ok(None);
        }
        let mut text: Vec<Box<dyn Write + Send>> = Vec::new();
        if options.console {
            text.push(Box::new(BufWriter::new(io::stdout())));
        }
        if let Some(path) = &options.text {
            text.push(Box::new(BufWriter::new(File::create(path)?)));
        }
        let json = match &options.json {
            Some(path) => Some(Box::new(BufWriter::new(File::create(path)?)) as Box<dyn Write + Send>),
            None => None,
        };
        Ok(Some(TraceLog(Arc::new(Mutex::new(Files { text, json, to_log })))))
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one packet's trace.
    pub fn write(&self, trace: &Trace) {
        self.files().write(trace);
    }

    /// Flushes the buffers.
    pub fn flush(&self) {
        self.files().flush();
    }
}

impl Files {
    fn write(&mut self, trace: &Trace) {
        if self.to_log {
            tracing::debug!("{trace}");
        }
        self.text.retain_mut(|out| is_written(write!(out, "{trace}")));
        if let Some(out) = &mut self.json {
            let line = serde_json::to_string(trace).unwrap_or_default();
            if !is_written(writeln!(out, "{line}")) {
                self.json = None;
            }
        }
    }

    fn flush(&mut self) {
        self.text.retain_mut(|out| is_written(out.flush()));
        if self.json.as_mut().is_some_and(|out| !is_written(out.flush())) {
            self.json = None;
        }
    }
}

fn is_written(result: io::Result<()>) -> bool {
    if let Err(e) = &result {
        tracing::error!("trace: {e}; this trace is closed");
    }
    result.is_ok()
}

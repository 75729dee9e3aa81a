//! Logging, as configured by BMv2's flags.

use std::fs::{File, rename};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tracing::level_filters::LevelFilter;

use crate::options::{LogLevel, LogTarget};

/// Sets up the process's logging; call it once.
pub fn init(target: &LogTarget, level: LogLevel) -> io::Result<()> {
    let filter = match level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Off => LevelFilter::OFF,
    };
    let builder = tracing_subscriber::fmt().with_ansi(false).with_target(false);
    match target {
        LogTarget::Stderr => {
            builder.with_max_level(filter.min(LevelFilter::WARN)).with_writer(io::stderr).init();
        }
        LogTarget::Console => builder.with_max_level(filter).with_writer(io::stdout).init(),
        LogTarget::File { path, flush, max_size, max_files } => {
            let file = Rotating::open(path, *flush, *max_size, *max_files)?;
            builder.with_max_level(filter).with_writer(Mutex::new(file)).init();
        }
    }
    Ok(())
}

/// `NAME.txt`, then `NAME.1.txt` and so on, with older files at higher numbers.
struct Rotating {
    path: PathBuf,
    file: io::BufWriter<File>,
    size: u64,
    flush: bool,
    max_size: u64,
    max_files: usize,
}

impl Rotating {
    fn open(path: &Path, flush: bool, max_size: u64, max_files: usize) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        let size = file.metadata()?.len();
        Ok(Rotating { path: path.into(), file: io::BufWriter::new(file), size, flush, max_size, max_files })
    }

    fn numbered(&self, n: usize) -> PathBuf {
        if n == 0 { self.path.clone() } else { self.path.with_extension(format!("{n}.txt")) }
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file.flush()?;
        for n in (0..self.max_files).rev() {
            // Some of the files may not exist yet.
            let _ = rename(self.numbered(n), self.numbered(n + 1));
        }
        self.file = io::BufWriter::new(File::create(&self.path)?);
        self.size = 0;
        Ok(())
    }
}

impl Write for Rotating {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.size > 0 && self.size + data.len() as u64 > self.max_size {
            self.rotate()?;
        }
        self.file.write_all(data)?;
        self.size += data.len() as u64;
        if self.flush {
            self.file.flush()?;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_rotate_and_the_oldest_goes() {
        let dir = std::env::temp_dir().join(format!("rivulet-switch-log-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("s1.txt");
        let mut log = Rotating::open(&path, true, 10, 2).unwrap();
        for line in ["first 1\n", "second 2\n", "third 3\n", "fourth 4\n"] {
            log.write_all(line.as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
        assert_eq!(read("s1.txt").unwrap(), "fourth 4\n");
        assert_eq!(read("s1.1.txt").unwrap(), "third 3\n");
        assert_eq!(read("s1.2.txt").unwrap(), "second 2\n");
        assert_eq!(read("s1.3.txt"), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

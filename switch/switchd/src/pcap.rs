//! pcap files with simple_switch's names: `INTERFACE_in.pcap` and `INTERFACE_out.pcap`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Magic number of files with nanosecond timestamps, in host byte order.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;
const SNAPLEN: u32 = 262_144;

/// One file. After an error (such as a full disk) it logs once and writes no more.
pub struct PcapFile {
    path: PathBuf,
    out: Option<BufWriter<File>>,
}

impl PcapFile {
    /// Creates the file, replacing an existing one.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(64 << 10, File::create(path)?);
        out.write_all(&MAGIC_NANOSECONDS.to_ne_bytes())?;
        out.write_all(&2u16.to_ne_bytes())?;
        out.write_all(&4u16.to_ne_bytes())?;
        out.write_all(&[0; 8])?;
        out.write_all(&SNAPLEN.to_ne_bytes())?;
        out.write_all(&ETHERNET.to_ne_bytes())?;
        Ok(PcapFile { path: path.into(), out: Some(out) })
    }

    /// Appends a frame in two parts, with the time of day.
    pub fn write(&mut self, head: &[u8], rest: &[u8]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = ((head.len() + rest.len()) as u32).to_ne_bytes();
        let seconds = (now.as_secs() as u32).to_ne_bytes();
        let nanoseconds = now.subsec_nanos().to_ne_bytes();
        self.attempt(|out| {
            out.write_all(&seconds)?;
            out.write_all(&nanoseconds)?;
            out.write_all(&len)?;
            out.write_all(&len)?;
            out.write_all(head)?;
            out.write_all(rest)
        });
    }

    /// Flushes the buffer.
    pub fn flush(&mut self) {
        self.attempt(|out| out.flush());
    }

    fn attempt(&mut self, f: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        if let Some(out) = &mut self.out
            && let Err(e) = f(out)
        {
            tracing::error!("{}: {e}; no more packets are written to it", self.path.display());
            // The buffered data cannot be written either.
            if let Some(out) = self.out.take() {
                drop(out.into_parts());
            }
        }
    }
}

/// The two files of a port.
pub struct PortPcap {
    /// Received frames.
    pub input: PcapFile,
    /// Sent frames.
    pub output: PcapFile,
}

impl PortPcap {
    /// Creates both files in a directory.
    pub fn create(dir: &Path, interface: &str) -> io::Result<Self> {
        // The name of an interface in another namespace contains the namespace's path.
        let name = interface.replace(['/', ':'], "_");
        Ok(PortPcap {
            input: PcapFile::create(&dir.join(format!("{name}_in.pcap")))?,
            output: PcapFile::create(&dir.join(format!("{name}_out.pcap")))?,
        })
    }

    /// Flushes both buffers.
    pub fn flush(&mut self) {
        self.input.flush();
        self.output.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_header_and_records() {
        let path = std::env::temp_dir().join(format!("rivulet-switch-{}.pcap", std::process::id()));
        let mut file = PcapFile::create(&path).unwrap();
        file.write(&[1, 2, 3], &[4]);
        file.write(&[5; 60], &[]);
        file.flush();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(bytes.len(), 24 + 16 + 4 + 16 + 60);
        assert_eq!(bytes[..4], MAGIC_NANOSECONDS.to_ne_bytes());
        assert_eq!(bytes[32..40], [4u32.to_ne_bytes(), 4u32.to_ne_bytes()].concat());
        assert_eq!(bytes[40..44], [1, 2, 3, 4]);
    }

    #[test]
    fn a_full_disk_ends_the_file_and_not_the_switch() {
        let Ok(file) = File::options().write(true).open("/dev/full") else { return };
        let mut full = PcapFile { path: "/dev/full".into(), out: Some(BufWriter::new(file)) };
        full.write(&[0; 20_000], &[]);
        full.flush();
        assert!(full.out.is_none());
        full.write(&[0; 100], &[]);
    }
}

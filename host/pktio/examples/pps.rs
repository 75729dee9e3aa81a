//! Measures the highest rate without loss from one interface to another, through whatever connects
//! them.
//!
//! `pps ns1:veth1 ns2:veth2 --size 64` sends frames into the first interface, counts them at the
//! second (and at any further ones), and bisects between a rate without loss and one with loss.
//! Prints one line of JSON.
//!
//! A device that drops repeated packets needs distinct frames: `--count-at 44,58 --checksum-at 50`
//! writes a 16-bit counter at these offsets, keeps the Internet checksum right, and takes the next
//! frame of the file after 65,536.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use rivulet_pktio::{AfPacket, Config, Interface, IoError, PacketIo, TxFrame};

#[derive(Parser)]
struct Options {
    /// Interface that frames are sent into
    from: Interface,
    /// Interfaces where they arrive
    #[arg(required = true)]
    to: Vec<Interface>,
    /// Bytes of a frame, if no file is given
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// File of frames to send in rotation, one a line, in hexadecimal
    #[arg(long)]
    frames: Option<std::path::PathBuf>,
    /// Even offsets of 16-bit fields, 0 in the file, that count up from frame to frame
    #[arg(long, value_delimiter = ',', requires = "checksum_at")]
    count_at: Vec<usize>,
    /// Offset of the Internet checksum that covers them
    #[arg(long)]
    checksum_at: Option<usize>,
    /// Seconds of each attempt.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Least number of frames in an attempt, so that frames still queued at its end matter little
    #[arg(long, default_value_t = 0)]
    frames_at_least: u64,
    /// Expected rate, where the search starts
    #[arg(long)]
    near: Option<u64>,
    /// Highest rate tried, frames a second.
    #[arg(long, default_value_t = 2_000_000)]
    highest: u64,
    /// Lost frames per million that still count as no loss
    #[arg(long, default_value_t = 0)]
    tolerance: u64,
    /// Send at this rate once instead of searching.
    #[arg(long)]
    rate: Option<u64>,
}

/// Frames sent in one call.
const BURST: usize = 32;
/// Rate of the warm-up that fills tables, caches and neighbour entries.
const WARM: u64 = 1000;
/// Longest attempt in seconds, however few frames it sends.
const LONGEST: f64 = 5.0;
/// Wait for frames in flight at the end of an attempt.
const DRAIN: Duration = Duration::from_millis(40);

/// Result of one attempt.
struct Attempt {
    sent: u64,
    received: u64,
    /// Frames a second that were actually sent.
    rate: f64,
}

impl Attempt {
    fn without_loss(&self, tolerance: u64) -> bool {
        self.sent > 0 && self.sent.saturating_sub(self.received) * 1_000_000 <= self.sent * tolerance
    }
}

/// The frames to send: the list in rotation, or each one 65,536 times with a counter in it.
struct Source {
    frames: Vec<Vec<u8>>,
    count_at: Vec<usize>,
    checksum_at: usize,
    /// Frames sent in all attempts.
    sent: u64,
    /// Frames with their counters, each with the index of its original.
    burst: Vec<(usize, Vec<u8>)>,
}

impl Source {
    fn new(options: &Options) -> Result<Self, Box<dyn std::error::Error>> {
        let frames = frames(options)?;
        let shortest = frames.iter().map(Vec::len).min().unwrap_or(0);
        let fields = options.count_at.iter().chain(&options.checksum_at);
        if let Some(at) = fields.copied().find(|at| at % 2 != 0 || *at > shortest.saturating_sub(2)) {
            return Err(format!("no field at offset {at}: odd, or behind the end of a frame").into());
        }
        let burst = vec![(usize::MAX, Vec::new()); BURST];
        let checksum_at = options.checksum_at.unwrap_or(0);
        Ok(Source { frames, count_at: options.count_at.clone(), checksum_at, sent: 0, burst })
    }

    /// The next frames; `sent` determines the first one.
    fn next(&mut self) -> [TxFrame<'_>; BURST] {
        let Source { frames, count_at, checksum_at, sent, burst } = self;
        if count_at.is_empty() {
            return std::array::from_fn(|i| TxFrame::new(&frames[(*sent as usize + i) % frames.len()]));
        }
        for (number, (of, copy)) in (*sent..).zip(burst.iter_mut()) {
            let which = (number >> 16) as usize % frames.len();
            let frame = &frames[which];
            if *of != which {
                copy.clone_from(frame);
                *of = which;
            }
            let count = number as u16;
            for at in count_at.iter() {
                copy[*at..at + 2].copy_from_slice(&count.to_be_bytes());
            }
            // RFC 1624: HC' = ~(~HC + m'), the fields having been 0.
            let old = u16::from_be_bytes([frame[*checksum_at], frame[*checksum_at + 1]]);
            let mut sum = u64::from(!old) + u64::from(count) * count_at.len() as u64;
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            copy[*checksum_at..*checksum_at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
        std::array::from_fn(|i| TxFrame::new(&burst[i].1))
    }
}

fn frames(options: &Options) -> Result<Vec<Vec<u8>>, Box<dyn std::error::Error>> {
    let Some(path) = &options.frames else {
        let mut frame = vec![0; options.size.max(14)];
        // A broadcast of a local experimental EtherType.
        frame[..6].fill(0xff);
        frame[6] = 2;
        frame[12..14].copy_from_slice(&[0x88, 0xb6]);
        return Ok(vec![frame]);
    };
    let mut all = Vec::new();
    for line in std::fs::read_to_string(path)?.lines().filter(|l| !l.trim().is_empty()) {
        let digits: Vec<char> = line.trim().chars().collect();
        let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16);
        all.push(digits.chunks(2).map(byte).collect::<Result<Vec<u8>, _>>()?);
    }
    if all.is_empty() { Err("no frames".into()) } else { Ok(all) }
}

fn attempt(
    from: &mut AfPacket,
    to: &mut [AfPacket],
    source: &mut Source,
    rate: u64,
    seconds: f64,
) -> Result<Attempt, IoError> {
    for one in to.iter_mut() {
        while one.recv()? > 0 {}
    }
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let (sent, taken) = std::thread::scope(|scope| {
        let counter = scope.spawn(|| -> Result<(), IoError> {
            while !stop.load(Ordering::Relaxed) {
                let mut n = 0;
                for one in to.iter_mut() {
                    n += one.recv()? as u64;
                }
                received.fetch_add(n, Ordering::Relaxed);
                if n == 0 {
                    // The receive queue holds far more than arrives in this time.
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            Ok(())
        });
        let start = Instant::now();
        let mut sent = 0u64;
        let mut result = Ok(());
        while start.elapsed().as_secs_f64() < seconds {
            let due = (start.elapsed().as_secs_f64() * rate as f64) as u64;
            if due < sent + BURST as u64 {
                std::thread::sleep(Duration::from_micros(20));
                continue;
            }
            match from.send(&source.next()) {
                Ok(n) => {
                    sent += n as u64;
                    source.sent += n as u64;
                }
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        let taken = start.elapsed();
        let mut last = 0;
        // Until no more frames arrive.
        while received.load(Ordering::Relaxed) < sent && last != received.load(Ordering::Relaxed) {
            last = received.load(Ordering::Relaxed);
            std::thread::sleep(DRAIN);
        }
        std::thread::sleep(DRAIN);
        stop.store(true, Ordering::Relaxed);
        match counter.join() {
            Ok(counted) => counted.and(result).map(|()| (sent, taken)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    let rate = sent as f64 / taken.as_secs_f64();
    Ok(Attempt { sent, received: received.into_inner(), rate })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let mut source = Source::new(&options)?;
    let config = Config { rx_bytes: 256 << 20, tx_bytes: 16 << 20, ..Config::default() };
    let mut from = AfPacket::open(&options.from, config.clone())?;
    let mut to =
        options.to.iter().map(|one| AfPacket::open(one, config.clone())).collect::<Result<Vec<_>, _>>()?;
    let size: usize = source.frames.iter().map(Vec::len).sum::<usize>() / source.frames.len();
    let mut run = |rate: u64, frames: u64| {
        // Long enough for the least number of frames, within bounds.
        let seconds = options.seconds.max((frames as f64 / rate as f64).min(LONGEST));
        attempt(&mut from, &mut to, &mut source, rate, seconds)
    };
    if let Some(rate) = options.rate {
        let a = run(rate, 0)?;
        println!(
            "{{\"size\":{size},\"rate\":{:.0},\"sent\":{},\"received\":{}}}",
            a.rate, a.sent, a.received
        );
        return Ok(());
    }
    // This fills tables, caches and neighbour entries.
    run(WARM, 0)?;
    let (mut good, mut bad) = (0.0f64, options.highest as f64);
    // The last element is tried first.
    let mut probes: Vec<f64> = options.near.iter().flat_map(|n| [1.1 * *n as f64, 0.9 * *n as f64]).collect();
    while bad - good > good.max(10_000.0) * 0.02 {
        let middle = probes.pop().filter(|p| *p > good && *p < bad).unwrap_or((good + bad) / 2.0);
        let a = run(middle as u64, options.frames_at_least)?;
        if a.without_loss(options.tolerance) {
            // The sender may not reach this rate: then it is the upper limit.
            if a.rate < 0.95 * middle {
                bad = middle;
            }
            good = good.max(a.rate);
        } else {
            bad = a.rate.min(middle).max(good);
        }
    }
    println!(
        "{{\"size\":{size},\"pps\":{good:.0},\"seconds\":{},\"tolerance\":{}}}",
        options.seconds, options.tolerance
    );
    Ok(())
}

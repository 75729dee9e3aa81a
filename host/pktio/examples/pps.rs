//! The highest rate without loss from one interface to another, through whatever joins them.
//!
//! `pps ns1:veth1 ns2:veth2 --size 64` sends frames into the first interface, counts them at the second
//! (and at any more that are named), and halves the interval between a rate that lost nothing and one that did.
//! Prints one line of JSON.
//!
//! What drops repeated packets needs frames that all differ: `--count-at 44,58 --checksum-at 50` counts in 16 bits
//! at these offsets, keeps the Internet checksum right, and takes the next frame of the file after 65,536.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use rivulet_pktio::{AfPacket, Config, Interface, IoError, PacketIo, TxFrame};

#[derive(Parser)]
struct Options {
    /// Where frames go in.
    from: Interface,
    /// Where they come out.
    #[arg(required = true)]
    to: Vec<Interface>,
    /// Octets of a frame, if none are given.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// A file of frames to be sent in turn, one a line, in hexadecimal.
    #[arg(long)]
    frames: Option<std::path::PathBuf>,
    /// Even offsets of 16-bit fields, 0 in the file, that are counted up from frame to frame.
    #[arg(long, value_delimiter = ',', requires = "checksum_at")]
    count_at: Vec<usize>,
    /// Offset of the Internet checksum that covers them.
    #[arg(long)]
    checksum_at: Option<usize>,
    /// Seconds of each attempt.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Frames of an attempt at least, so that what waits in queues at its end counts little.
    #[arg(long, default_value_t = 0)]
    frames_at_least: u64,
    /// A rate that is expected: the search begins around it.
    #[arg(long)]
    near: Option<u64>,
    /// Highest rate tried, frames a second.
    #[arg(long, default_value_t = 2_000_000)]
    highest: u64,
    /// Lost frames in a million that still count as none.
    #[arg(long, default_value_t = 0)]
    tolerance: u64,
    /// Send at this rate once instead of searching.
    #[arg(long)]
    rate: Option<u64>,
}

/// Frames sent at a time.
const BURST: usize = 32;
/// Rate at which tables, caches and neighbours are warmed.
const WARM: u64 = 1000;
/// Seconds of an attempt at most, however few frames it is.
const LONGEST: f64 = 5.0;
/// What is still under way at the end of an attempt gets this long.
const DRAIN: Duration = Duration::from_millis(40);

/// What one attempt saw.
struct Attempt {
    sent: u64,
    received: u64,
    /// Frames a second that were really sent.
    rate: f64,
}

impl Attempt {
    fn without_loss(&self, tolerance: u64) -> bool {
        self.sent > 0 && self.sent.saturating_sub(self.received) * 1_000_000 <= self.sent * tolerance
    }
}

/// What is sent: the frames in turn, or each 65,536 times with a count in it.
struct Source {
    frames: Vec<Vec<u8>>,
    count_at: Vec<usize>,
    checksum_at: usize,
    /// Frames that were sent in all attempts.
    sent: u64,
    /// Frames with their counts, and which frame each is a copy of.
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

    /// The next frames; `sent` says how many of them went.
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
                    // The receive queue holds far more than comes in this time.
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
        // Until nothing more comes.
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
        // As long as so many frames take, within bounds.
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
    // Tables, caches and neighbours are warm afterwards.
    run(WARM, 0)?;
    let (mut good, mut bad) = (0.0f64, options.highest as f64);
    // The last is tried first.
    let mut probes: Vec<f64> = options.near.iter().flat_map(|n| [1.1 * *n as f64, 0.9 * *n as f64]).collect();
    while bad - good > good.max(10_000.0) * 0.02 {
        let middle = probes.pop().filter(|p| *p > good && *p < bad).unwrap_or((good + bad) / 2.0);
        let a = run(middle as u64, options.frames_at_least)?;
        if a.without_loss(options.tolerance) {
            // Perhaps the sender was not as fast as asked for: then this is as far as it goes.
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

//! `rivulet inspect`: packets of ours, decoded field by field.

mod capture;
mod describe;
mod printer;

use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use capture::Capture;

/// Decodes Rivulet packets of a capture (pcap or pcapng), or one packet in hexadecimal digits.
///
/// Packets that are not Rivulet's are passed over; malformed ones are shown with what is wrong and where, and of those
/// that the capture has only the beginning of, that beginning.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Capture file; `-` for standard input
    #[arg(required_unless_present = "hex")]
    pub file: Option<PathBuf>,

    /// One packet in hexadecimal digits, from the Ethernet or the IP header on
    #[arg(long, value_name = "DIGITS", conflicts_with = "file")]
    pub hex: Option<String>,

    /// One line a packet
    #[arg(long, short)]
    pub brief: bool,

    /// Stop after so many packets of ours
    #[arg(long, short = 'c', value_name = "COUNT")]
    pub count: Option<u64>,
}

/// Decodes to standard output; gives the exit code, 1 if something was malformed.
pub fn inspect(args: &InspectArgs) -> anyhow::Result<u8> {
    let out = io::stdout();
    match run(args, &mut BufWriter::new(out.lock())) {
        // Whoever reads has seen enough.
        Err(e) if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) => {
            Ok(0)
        }
        result => result,
    }
}

fn run(args: &InspectArgs, out: &mut impl Write) -> anyhow::Result<u8> {
    if let Some(hex) = &args.hex {
        let packet = digits(hex)?;
        let Some(text) = describe::packet(&packet, packet.len(), args.brief) else {
            bail!("not a packet of Rivulet")
        };
        write!(out, "{}", text.text)?;
        out.flush()?;
        return Ok(u8::from(text.malformed));
    }
    let path = args.file.as_deref().unwrap_or(Path::new("-"));
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(path).with_context(|| path.display().to_string())?)
    };
    let mut capture = Capture::open(input).with_context(|| path.display().to_string())?;
    let (mut index, mut ours, mut cut, mut malformed) = (0u64, 0u64, 0u64, false);
    while let Some(record) =
        capture.next().with_context(|| format!("{}: packet {}", path.display(), index + 1))?
    {
        index += 1;
        let Some(found) = describe::packet(&record.data, record.length, args.brief) else {
            cut += u64::from(record.length > record.data.len());
            continue;
        };
        ours += 1;
        malformed |= found.malformed;
        write!(out, "{index} {}.{:06} {}", record.micros / 1_000_000, record.micros % 1_000_000, found.text)?;
        if args.count.is_some_and(|count| ours >= count) {
            break;
        }
    }
    writeln!(out, "{ours} packets of Rivulet among {index}")?;
    if cut > 0 {
        writeln!(
            out,
            "{cut} others were cut short before their TCP options end, if they have any, and cannot be told (tcpdump -s 0)"
        )?;
    }
    out.flush()?;
    Ok(u8::from(malformed))
}

fn digits(text: &str) -> anyhow::Result<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace() && *b != b':').collect();
    if !digits.len().is_multiple_of(2) {
        bail!("an odd number of digits");
    }
    let octet = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(|pair| octet(pair).context("not hexadecimal digits")).collect()
}

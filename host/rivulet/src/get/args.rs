//! The flags of `rivulet get`.

use std::path::PathBuf;

use clap::Args;
use rivulet_client::IoChoice;

/// Downloads over Rivulet; a server that speaks plain TCP only is served by plain TCP.
///
/// Exit codes: 0 all came; 1 wrong flags or a local file; 2 no connection; 3 the server said no;
/// 4 a connection broke and could not be continued; 5 suspended.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// URLs to download: http://HOST[:PORT]/PATH
    #[arg(required_unless_present = "resume")]
    pub urls: Vec<String>,

    /// Where to write, `-` for standard output, also a device or a pipe; once for each URL, in their order [default: the URL's last part]
    #[arg(long, short, value_name = "FILE")]
    pub output: Vec<PathBuf>,

    /// Continue an interrupted download (FILE.part)
    #[arg(long, short = 'c')]
    pub r#continue: bool,

    /// On SIGINT or SIGTERM (Ctrl-C), write the download and its connection to FILE, for --resume; one URL alone
    #[arg(long, value_name = "FILE")]
    pub suspend: Option<PathBuf>,

    /// Go on with the download that --suspend wrote to FILE, here or on another machine that has FILE and the .part file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["urls", "continue"])]
    pub resume: Option<PathBuf>,

    /// Print the result as one JSON object for each URL, to standard output (with `-o -`: to
    /// standard error)
    #[arg(long)]
    pub json: bool,

    /// No progress bar and no summary
    #[arg(long, short)]
    pub quiet: bool,

    /// How packets are sent and received: af_packet, af_xdp, or auto (AF_XDP where the interface
    /// allows it)
    #[arg(long, value_name = "MECHANISM", default_value_t)]
    pub io: IoChoice,

    /// Download several URLs of one server one after the other, instead of in parallel on one
    /// connection
    #[arg(long)]
    pub one_by_one: bool,

    /// Milliseconds between two samples of progress in the JSON
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub sample_ms: u64,

    /// Give up after this many seconds without data
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub stall_timeout: u64,
}

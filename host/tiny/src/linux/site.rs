//! The served pages, and the report about memory.

use core::fmt::Write;

use arrayvec::ArrayString;
use rivulet_tiny::{Counters, Page, Report, Site, TEXT_BYTES};

use crate::memory;

const PAGE: Page = Page {
    path: "/",
    media_type: "text/html; charset=utf-8",
    content: include_bytes!("../../site/index.html"),
};
const PICTURE: Page = Page {
    path: "/failover.png",
    media_type: "image/png",
    content: include_bytes!("../../../../docs/pictures/failover.png"),
};
const DRAWING: Page = Page {
    path: "/rack.svg",
    media_type: "image/svg+xml",
    content: include_bytes!("../../../../docs/pictures/rack.svg"),
};

pub const SITE: Site =
    Site { pages: &[PAGE, PICTURE, DRAWING], report: Some(Report { path: "/memory", make: report }) };

/// One line for people and tests: `requests 12, ...`.
fn report(counters: &Counters) -> ArrayString<TEXT_BYTES> {
    let Counters { frames, requests, responses, refused } = *counters;
    let mut text = ArrayString::new();
    // The figures have fewer digits than the text has room for.
    let _ = writeln!(
        text,
        "{}, frames {frames}, requests {requests}, responses {responses}, refused {refused}",
        memory::Figures
    );
    text
}

//! HTTP/1.1 as pure functions, so that the file server keeps nothing between two packets.
//!
//! A request head is parsed line by line into [`Head`], a small state that fits into a
//! continuation. A whole request becomes an [`Answer`], which is small, too, and every byte of the
//! response is a function of (answer, offset). So with the answer's encoding any replica can
//! produce any part of the response at any time. The same functions serve plain TCP clients.

mod answer;
mod codec;
mod desk;
mod guard;
mod head;
mod lookup;
mod marked;
mod marks;
mod object;
mod objects;
mod read_error;
mod session;
mod stamp;
mod tags;
mod upload;

pub(crate) use answer::content_type;
pub use answer::{Answer, MAX_ANSWER};
pub use codec::Malformed;
pub use head::{BodyKind, Fed, Head, Method, Query, Request};
pub use lookup::Lookup;
pub use marks::Marks;
pub use object::{Identity, Object};
pub use objects::{MAX_NAME, Objects};
pub use read_error::ReadError;
pub use rivulet_http::RangeSpec;
pub use session::{Input, Progress, Promise, Reads, Session, Site};
pub use tags::Tags;
pub use upload::{Limits, Upload, Uploads, Written};

/// A status code, with this server's text for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

impl Status {
    /// The reason phrase (RFC 9110 section 15).
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self.0 {
            100 => "Continue",
            200 => "OK",
            201 => "Created",
            204 => "No Content",
            206 => "Partial Content",
            301 => "Moved Permanently",
            304 => "Not Modified",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            411 => "Length Required",
            412 => "Precondition Failed",
            413 => "Content Too Large",
            414 => "URI Too Long",
            415 => "Unsupported Media Type",
            416 => "Range Not Satisfiable",
            431 => "Request Header Fields Too Large",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            505 => "HTTP Version Not Supported",
            507 => "Insufficient Storage",
            _ => "Unknown",
        }
    }

    /// The body of an error response; empty for statuses without content.
    #[must_use]
    pub fn page(self) -> &'static str {
        match self.0 {
            301 => "moved permanently\n",
            400 => "400 bad request\n",
            403 => "403 forbidden\n",
            404 => "404 not found\n",
            405 => "405 method not allowed\n",
            411 => "411 length required\n",
            412 => "412 precondition failed\n",
            413 => "413 content too large\n",
            414 => "414 URI too long\n",
            415 => "415 unsupported media type\n",
            416 => "416 range not satisfiable\n",
            431 => "431 request header fields too large\n",
            500 => "500 internal server error\n",
            501 => "501 not implemented\n",
            503 => "503 service unavailable\n",
            505 => "505 HTTP version not supported\n",
            507 => "507 insufficient storage\n",
            _ => "",
        }
    }
}

//! `rivulet get`: downloads, and reports on them.

mod args;
mod failure;
mod fetch;
mod meter;
mod response;
mod url;

pub use args::GetArgs;
pub use fetch::get;

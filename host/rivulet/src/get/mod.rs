//! `rivulet get`: downloads, and reports on them.

mod args;
mod failure;
mod fetch;
mod meter;
mod patient;
mod report;
mod response;
mod resumption;
mod suspended;
mod url;

pub use args::GetArgs;
pub use fetch::get;

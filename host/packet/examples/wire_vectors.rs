//! Writes docs/wire-vectors.json: `cargo run -p rivulet-packet --example wire_vectors`.

#[path = "../tests/it/support/mod.rs"]
mod support;

fn main() -> std::io::Result<()> {
    std::fs::write(support::vectors_path(), support::render(&support::vectors()))
}

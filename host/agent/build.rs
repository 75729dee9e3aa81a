//! Compiles the agents' protocol without protoc.

use std::path::PathBuf;

fn main() {
    if let Err(message) = run() {
        println!("cargo::error={message}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), String> {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    let root = here.join("../../controller/proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let set =
        protox::compile([root.join("rivulet/agent/v1/agent.proto")], [&root]).map_err(|e| e.to_string())?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .compile_fds(set)
        .map_err(|e| format!("generating code: {e}"))
}

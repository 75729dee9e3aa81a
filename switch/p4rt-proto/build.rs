//! Compiles the P4Runtime definitions, which `make protos` fetched, and our own; this needs no protoc.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// An environment variable with the folder of the definitions, if it is not `build/protos` of the checkout.
const OVERRIDE: &str = "RIVULET_P4RUNTIME_PROTOS";

fn main() {
    println!("cargo::rerun-if-env-changed={OVERRIDE}");
    if let Err(message) = run() {
        // Cargo prints a `cargo::error` line first and without a backtrace.
        println!("cargo::error={message}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), String> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let fetched = env::var_os(OVERRIDE).map_or_else(|| here.join("../../build/protos"), PathBuf::from);
    let own = here.join("proto");
    let p4runtime = fetched.join("p4/v1/p4runtime.proto");
    println!("cargo::rerun-if-changed={}", p4runtime.display());
    println!("cargo::rerun-if-changed={}", own.display());
    if !p4runtime.is_file() {
        return Err(format!(
            "the P4Runtime definitions are not at {}: run `make protos` in the checkout's root, or set {OVERRIDE}",
            normal(&fetched).display()
        ));
    }
    let set = protox::compile([&p4runtime, &own.join("rivulet_switch.proto")], [&fetched, &own])
        .map_err(|e| format!("{e}"))?;
    // Kept for reading P4Info in text format, which needs the descriptors when running.
    fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&set))
        .map_err(|e| format!("writing the descriptors: {e}"))?;
    tonic_prost_build::configure()
        .btree_map(".")
        .emit_rerun_if_changed(false)
        .compile_fds(set)
        .map_err(|e| format!("generating code: {e}"))
}

fn normal(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

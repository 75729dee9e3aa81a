//! The library's name for the programs linked to it: its interface is that of version 0.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcm.so.0");
}

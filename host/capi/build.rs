//! Sets the shared library's SONAME; the C interface has version 0.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librivulet_msk.so.0");
}

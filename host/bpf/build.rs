//! Compiles every `src/bpf/*.c` with clang into `OUT_DIR/*.o`, which the modules of this crate
//! include. Compiles the C files of the integration tests for this machine, to compare them with
//! Rust code.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR"));
    let mut sources: Vec<PathBuf> = fs::read_dir("src/bpf")
        .expect("src/bpf")
        .map(|entry| entry.expect("src/bpf").path())
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .collect();
    sources.sort();
    for source in sources {
        let object = out.join(source.file_stem().expect("a file name")).with_extension("o");
        if let Err(why) = compile(&source, &object) {
            eprintln!("\nerror: {why}\n");
            std::process::exit(1);
        }
    }
    for name in ["macroflow", "share"] {
        let object = out.join(format!("native-{name}.o"));
        if let Err(why) = natively(&Path::new("tests/it").join(name).with_extension("c"), &object) {
            eprintln!("\nerror: {why}\n");
            std::process::exit(1);
        }
        println!("cargo:rustc-link-arg-tests={}", object.display());
    }
}

/// Compiles a C file for this machine. An undefined symbol fails the build.
fn natively(source: &Path, object: &Path) -> Result<(), String> {
    println!("cargo:rerun-if-changed={}", source.display());
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let out = Command::new(&clang)
        .args(["-O2", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror", "-I", "src/bpf"])
        .args(["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"])
        .arg(format!("-ffile-prefix-map={}=host/bpf", env::var("CARGO_MANIFEST_DIR").unwrap_or_default()))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|e| format!("cannot run {clang} ({e})"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!("{clang} refuses {}:\n{}", source.display(), String::from_utf8_lossy(&out.stderr)))
}

fn compile(source: &Path, object: &Path) -> Result<(), String> {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    // The headers of the libbpf that is linked.
    let libbpf = env::var("DEP_BPF_INCLUDE").map_err(|_| "libbpf-sys does not say where its headers are")?;
    let out = Command::new(&clang)
        // JMP32 and 32-bit arithmetic (v3): Linux 5.1.
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-ffile-prefix-map={}=host/bpf", env::var("CARGO_MANIFEST_DIR").unwrap_or_default()))
        .args(["-I", &libbpf, &format!("-ffile-prefix-map={libbpf}=libbpf")])
        // linux/*.h include asm/*.h, which lie in the folder of the architecture.
        .args(["-idirafter", &format!("/usr/include/{arch}-linux-gnu")])
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|e| {
            format!("cannot run {clang} ({e}): it compiles the BPF programs; Debian packages clang and linux-libc-dev")
        })?;
    if out.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    let headers = text.contains("linux/") && text.contains("file not found");
    let hint = if headers { "\nthe kernel's headers are missing: Debian package linux-libc-dev" } else { "" };
    Err(format!("{clang} refuses {}:\n{text}{hint}", source.display()))
}

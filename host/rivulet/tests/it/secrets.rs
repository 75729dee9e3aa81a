//! Key files: created readable for their owner only, and refused when other users can read them.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::rig::RIVULET;

#[test]
fn keygen_makes_files_that_only_their_owner_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.toml");
    let keygen = |file: &std::path::Path| Command::new(RIVULET).arg("keygen").arg(file).output().unwrap();
    let made = keygen(&path);
    assert!(made.status.success() && made.stdout.is_empty(), "{made:?}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let keys = fs::read(&path).unwrap();
    let again = keygen(&path);
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists"), "{again:?}");
    assert!(fs::read(&path).unwrap() == keys, "keys in use are not replaced");
    // A shell's `>` creates a file that others can read.
    let open = dir.path().join("open");
    let file = File::create(&open).unwrap();
    file.set_permissions(Permissions::from_mode(0o644)).unwrap();
    let out = Command::new(RIVULET).arg("keygen").stdout(file).output().unwrap();
    assert!(!out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains("rivulet keygen FILE"), "{out:?}");
    assert_eq!(fs::metadata(&open).unwrap().len(), 0, "no keys in it");
}

#[test]
fn server_refuses_keys_that_others_can_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.toml");
    assert!(Command::new(RIVULET).arg("keygen").arg(&path).status().unwrap().success());
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let mut command = Command::new(RIVULET);
    command.arg("serve").arg(dir.path()).args(["-i", "lo", "--listen", "192.0.2.1:80", "--keys"]);
    let out = command.arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("chmod 600"), "{said}");
}

use super::*;

fn found(objects: &Objects, path: &str) -> Arc<Object> {
    for _ in 0..3000 {
        match objects.lookup(path.as_bytes()) {
            Lookup::Found(object) => return object,
            Lookup::Pending => std::thread::sleep(Duration::from_millis(10)),
            other => panic!("{path}: {other:?}"),
        }
    }
    panic!("{path} was never hashed");
}

#[test]
fn identity_is_content_not_inode() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&a, &b] {
        std::fs::write(dir.path().join("x"), vec![3; 3 << 20]).unwrap();
    }
    let (a, b) = (Objects::open(a.path()).unwrap(), Objects::open(b.path()).unwrap());
    let object = found(&a, "/x");
    assert_eq!(object.identity(), found(&b, "/x").identity());
    let mut out = [0; 10];
    assert!(object.read((3 << 20) - 10, &mut out) && out == [3; 10]);
    assert!(!object.read((3 << 20) - 9, &mut out));
    assert!(!object.read(u64::MAX, &mut out));
}

#[test]
fn changed_file_gets_a_new_identity() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, vec![1; 200_000]).unwrap();
    let objects = Objects::open(dir.path()).unwrap();
    let first = found(&objects, "/x");
    File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
    let mut out = [0; 10];
    assert!(!first.read(199_000, &mut out), "the file no longer has this");
    std::thread::sleep(Duration::from_micros(RECHECK + 1000));
    assert_eq!(found(&objects, "/x").identity().size, 10);
}

/// A thread's own table sees a change as soon as the common one, whichever of them noticed it.
#[test]
fn thread_cache_sees_changes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, "old").unwrap();
    let objects = Objects::open(dir.path()).unwrap();
    let (one, two) = (objects.for_thread(), objects.for_thread());
    let old = found(&one, "/x");
    assert!(Arc::ptr_eq(&old, &found(&two, "/x")) && Arc::ptr_eq(&old, &found(&one, "/x")));
    std::fs::write(&path, "newer").unwrap();
    std::thread::sleep(Duration::from_micros(RECHECK + 1000));
    let mut new = found(&two, "/x");
    // On a busy machine the threads that check files may be late.
    while new.identity().size != 5 {
        std::thread::sleep(Duration::from_millis(5));
        new = found(&two, "/x");
    }
    assert!(Arc::ptr_eq(&new, &found(&one, "/x")), "it was found to have changed here too");
    assert!(Arc::ptr_eq(&new, &found(&objects, "/x")), "and the new one was not forgotten for it");
    for n in 0..3 * MAX_NEAR {
        std::fs::write(dir.path().join(n.to_string()), "x").unwrap();
        found(&one, &format!("/{n}"));
    }
    assert!(one.near.as_ref().unwrap().lock().len() <= MAX_NEAR);
}

fn content(objects: &Objects, path: &str, identity: Identity) -> Option<Arc<Object>> {
    for _ in 0..3000 {
        match objects.lookup_content(path.as_bytes(), identity) {
            Lookup::Found(object) => return Some(object),
            Lookup::Pending => std::thread::sleep(Duration::from_millis(10)),
            _ => return None,
        }
    }
    panic!("{path} was never hashed");
}

#[test]
fn growing_log_is_served_with_its_former_length() {
    for size in [1000, 200_000] {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let text: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
        for dir in [&a, &b] {
            std::fs::write(dir.path().join("log"), &text).unwrap();
        }
        let (one, two) = (Objects::open(a.path()).unwrap(), Objects::open(b.path()).unwrap());
        let begun = found(&one, "/log").identity();
        for dir in [&a, &b] {
            let mut log = File::options().append(true).open(dir.path().join("log")).unwrap();
            std::io::Write::write_all(&mut log, b"another line\n").unwrap();
        }
        std::thread::sleep(Duration::from_micros(STALE + 1000));
        assert_eq!(found(&one, "/log").identity().size, size + 13);
        // A second replica serves the former length as well, although it has only seen the longer
        // file.
        for objects in [&one, &two] {
            let object = content(objects, "/log", begun).unwrap();
            let mut out = vec![0; text.len()];
            assert!(object.read(0, &mut out) && out == text);
        }
        std::fs::write(a.path().join("log"), vec![7; text.len() + 100]).unwrap();
        let three = Objects::open(a.path()).unwrap();
        assert!(content(&three, "/log", begun).is_none(), "it begins otherwise");
    }
}

#[test]
fn files_outside_the_root_are_unreachable() {
    let outer = tempfile::tempdir().unwrap();
    std::fs::write(outer.path().join("secret"), "s").unwrap();
    let dir = outer.path().join("www");
    std::fs::create_dir(&dir).unwrap();
    std::fs::create_dir(dir.join("sub")).unwrap();
    std::os::unix::fs::symlink("../secret", dir.join("link")).unwrap();
    std::os::unix::fs::symlink("sub", dir.join("inner")).unwrap();
    let objects = Objects::open(&dir).unwrap();
    for path in ["/../secret", "/sub/../../secret", "/link", "/nothing"] {
        assert!(matches!(objects.lookup(path.as_bytes()), Lookup::Missing), "{path}");
    }
    assert!(matches!(objects.lookup(b"/sub"), Lookup::Directory));
    assert!(matches!(objects.lookup(b"/inner"), Lookup::Directory));
    assert!(matches!(objects.lookup(b"/sub/"), Lookup::Missing), "no index.html");
}

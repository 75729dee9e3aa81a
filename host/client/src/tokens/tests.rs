use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn at(n: u32) -> SocketAddr {
    SocketAddr::from((n.to_be_bytes(), 80))
}

fn source() -> IpAddr {
    [10, 0, 0, 1].into()
}

fn token(n: u32) -> (SocketAddr, Token) {
    (at(n), Token::new(source(), n.to_be_bytes().into()).unwrap())
}

/// A temporary folder, and the path of the store's file in it.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(FILE);
    (dir, file)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_next_process_finds_a_token_once() {
    let (dir, file) = folder();
    let inner = dir.path().join("a/b");
    Store::open(&inner).unwrap().put(vec![token(1), token(2)]);
    assert_eq!((mode(&inner), mode(&inner.join(FILE))), (0o700, 0o600));
    assert!(!file.exists());
    // Two stores, as in two processes: each has a separate descriptor, so flock(2) excludes them.
    let (a, b) = (Store::open(&inner).unwrap(), Store::open(&inner).unwrap());
    assert_eq!(a.take(source(), at(1)), Some(1u32.to_be_bytes().into()));
    assert_eq!((a.take(source(), at(1)), b.take(source(), at(1))), (None, None));
    // A token is valid only for the address that received it; for another address it stays stored.
    assert_eq!(b.take([10, 0, 0, 2].into(), at(2)), None);
    a.put(vec![(at(2), Token { bytes: vec![9], ..token(2).1 }), token(3)]);
    assert_eq!((b.take(source(), at(2)), b.take(source(), at(3)).is_some()), (Some(vec![9]), true));
    let six: SocketAddr = "[2001:db8::1]:443".parse().unwrap();
    let from: IpAddr = "2001:db8::2".parse().unwrap();
    a.put(vec![(six, Token::new(from, vec![7; 255]).unwrap())]);
    assert_eq!(b.take(from, six), Some(vec![7; 255]));
}

/// Fails without either lock: between one thread's read and write another changes the file.
#[test]
fn concurrent_takes_neither_duplicate_nor_lose_tokens() {
    let (dir, _) = folder();
    Store::open(dir.path()).unwrap().put((0..64).map(token).collect());
    let stores: Vec<Store> = (0..4).map(|_| Store::open(dir.path()).unwrap()).collect();
    let taken = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let (store, taken) = (&stores[thread % 4], &taken);
            scope.spawn(move || {
                for n in 0..64 {
                    let got = store.take(source(), at(n));
                    taken.fetch_add(got.is_some().into(), std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    let left = (0..64).filter(|n| stores[0].take(source(), at(*n)).is_some()).count();
    assert_eq!(taken.into_inner() + left, 64);
}

#[test]
fn foreign_file_is_reported_and_left_unchanged() {
    let good = format!("{HEADER}\n10.0.0.1:80 10.0.0.2 5 0a0b\n");
    let too_many: String = (0..=MAX).map(|_| "10.0.0.1:80 10.0.0.2 5 0a0b\n").collect();
    let contents = [
        "something else".to_owned(),
        "rivulet tokens 2\n".to_owned(),
        good[..good.len() - 1].to_owned(),
        good[..good.len() - 2].to_owned() + "\n",
        good.replace(" 5 ", " x "),
        good.replace("0a0b", ""),
        good.replace("0a0b", "+a0b"),
        good.replace("0a0b", "0a 0b"),
        good.replace("0a0b", &"ab".repeat(256)),
        good.clone() + "\n",
        format!("{HEADER}\n{too_many}"),
        " ".repeat(MAX_FILE as usize + 1),
    ];
    for content in contents {
        let (dir, file) = folder();
        let store = Store::open(dir.path()).unwrap();
        std::fs::write(&file, &content).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let head = &content[..content.len().min(60)];
        let e = Store::open(dir.path()).unwrap_err();
        assert!(matches!(&e, RememberError::Foreign(at) if *at == file), "{head}: {e}");
        assert!(e.to_string().contains("remove it"), "{e}");
        // The file may also be replaced after the store was opened.
        store.put(vec![token(1)]);
        assert_eq!(store.take([10, 0, 0, 2].into(), "10.0.0.1:80".parse().unwrap()), None);
        assert!(std::fs::read(&file).unwrap() == content.as_bytes(), "{head}: changed");
        std::fs::remove_file(&file).unwrap();
        store.put(vec![token(1)]);
        assert!(store.take(source(), at(1)).is_some());
    }
}

#[test]
fn file_open_to_other_users_is_refused() {
    let (dir, file) = folder();
    let set = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    Store::open(dir.path()).unwrap().put(vec![token(1)]);
    set(&file, 0o640);
    assert!(matches!(Store::open(dir.path()), Err(RememberError::Foreign(_))));
    set(&file, 0o600);
    set(dir.path(), 0o770);
    assert!(matches!(Store::open(dir.path()), Err(RememberError::NotOwn(_))));
    set(dir.path(), 0o700);
    // Symbolic links are not followed, and a FIFO does not block.
    let elsewhere = dir.path().join("elsewhere");
    std::fs::rename(&file, &elsewhere).unwrap();
    symlink(&elsewhere, &file).unwrap();
    assert!(matches!(Store::open(dir.path()), Err(RememberError::Foreign(_))));
    std::fs::remove_file(&file).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert!(matches!(Store::open(dir.path()), Err(RememberError::Foreign(_))));
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    assert!(matches!(Store::open(&link), Err(RememberError::Io(..))));
    assert!(matches!(Store::open(&elsewhere), Err(RememberError::Io(..))), "a file");
}

#[test]
fn the_file_is_bounded_and_the_newest_stay() {
    let (dir, file) = folder();
    let store = Store::open(dir.path()).unwrap();
    let aged = |n: u32, age| (at(n), Token { earned: now() - age, bytes: vec![1; 255], ..token(n).1 });
    store.put((0..3 * MAX as u32).map(|n| aged(n, u64::from(n))).collect());
    assert!(std::fs::metadata(&file).unwrap().len() <= MAX_FILE);
    assert!(store.take(source(), at(0)).is_some() && store.take(source(), at(1000)).is_some());
    assert_eq!(store.take(source(), at(2000)), None);
    store.put(vec![aged(1, LIFETIME), aged(2, LIFETIME - 60)]);
    assert_eq!((store.take(source(), at(1)), store.take(source(), at(2)).is_some()), (None, true));
    // A token from the future is not used: the clock was set back.
    store.put(vec![(at(5), Token { earned: now() + 3600, ..token(5).1 })]);
    assert_eq!(store.take(source(), at(5)), None);
    assert_eq!(Token::new(source(), vec![0; 256]), None);
}

/// A power failure leaves an empty file, a kill a partial temporary file, and a stopped process
/// holds the lock.
#[test]
fn store_works_after_an_interrupted_process() {
    let (dir, file) = folder();
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(dir.path().join(NEW), "half").unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.put(vec![token(1)]);
    assert_eq!(mode(&file), 0o600);
    let stopped = File::open(dir.path()).unwrap();
    rustix::fs::flock(&stopped, FlockOperation::LockExclusive).unwrap();
    assert_eq!(store.take(source(), at(1)), None);
    store.put(vec![token(2)]);
    drop(stopped);
    assert!(store.take(source(), at(1)).is_some(), "it is there still");
}

use super::*;
use proptest::prelude::*;

const PART: Option<Written> = Some(Written::Partly);
const WHOLE: Option<Written> = Some(Written::Completely { replaced: false });

fn upload(length: u64, path: &str) -> Upload {
    Upload { id: [7; 16], path: path.into(), length, start: 100, date: 1, close: false, create: false }
}

proptest! {
    /// Pieces in any order, some twice, are written through two replicas. The file appears,
    /// complete, only with the last piece, and every repetition gets the same answer.
    #[test]
    fn pieces_in_any_order_make_the_file(
        order in Just((0..40u64).collect::<Vec<_>>()).prop_shuffle(),
        again in prop::collection::vec(0usize..40, 0..10),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let replicas = [(); 2].map(|()| Uploads::open(dir.path(), Limits::default()).unwrap());
        let content: Vec<u8> = (0..39 * 100 + 17).map(|i| (i * 7 % 251) as u8).collect();
        let upload = upload(content.len() as u64, "/a/b/file");
        let piece = |n: u64| &content[n as usize * 100..(n as usize * 100 + 100).min(content.len())];
        for (i, n) in order.iter().enumerate() {
            let written = replicas[i % 2].write(&upload, n * 100, piece(*n)).unwrap();
            let last = i + 1 == order.len();
            prop_assert_eq!(written == WHOLE, last);
            prop_assert_eq!(dir.path().join("a/b/file").exists(), last);
            if let Some(j) = again.get(i).filter(|j| **j <= i) {
                let n = order[*j];
                let written = replicas[(i + 1) % 2].write(&upload, n * 100, piece(n)).unwrap();
                prop_assert_eq!(written == WHOLE, last);
            }
        }
        prop_assert_eq!(std::fs::read(dir.path().join("a/b/file")).unwrap(), content);
    }
}

#[test]
fn uploads_cannot_leave_the_storage_through_links() {
    let outer = tempfile::tempdir().unwrap();
    let (outside, dir) = (outer.path().join("outside"), outer.path().join("storage"));
    std::fs::create_dir(&outside).unwrap();
    std::fs::create_dir_all(dir.join("inside")).unwrap();
    std::fs::write(outside.join("file"), "theirs").unwrap();
    let link = |to: &Path, name| std::os::unix::fs::symlink(to, dir.join(name)).unwrap();
    link(Path::new("../outside"), "up");
    link(&outside, "absolute");
    link(Path::new("inside"), "within");
    link(&outside.join("file"), "last");
    link(Path::new("/proc/self/cwd"), "magic");
    let uploads = Uploads::open(&dir, Limits::default()).unwrap();
    let mut id = 0;
    let mut put = |path: &str| {
        id += 1;
        uploads.write(&Upload { id: [id; 16], ..upload(4, path) }, 0, b"ours")
    };
    for path in ["/up/file", "/up/new", "/up/a/b/new", "/absolute/a/new", "/magic/a/new", "/inside/../up/x/y"]
    {
        let error = put(path).unwrap_err();
        let refused =
            error.kind() == ErrorKind::PermissionDenied || error.raw_os_error() == Some(libc::ELOOP);
        assert!(refused, "{path}: {error}");
    }
    // A symbolic link at the file's path is replaced, and counts as an existing file.
    assert_eq!(put("/last").unwrap(), Some(Written::Completely { replaced: true }));
    assert_eq!(put("/within/a/new").unwrap(), WHOLE);
    assert_eq!(std::fs::read(dir.join("inside/a/new")).unwrap(), b"ours");
    assert!(!std::fs::symlink_metadata(dir.join("last")).unwrap().is_symlink());
    let names: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["file"], "nothing was made outside");
    assert_eq!(std::fs::read(outside.join("file")).unwrap(), b"theirs");
}

#[test]
fn upload_with_if_none_match_replaces_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let uploads = Uploads::open(dir.path(), Limits::default()).unwrap();
    let create = |id: u8| Upload { id: [id; 16], create: true, ..upload(3, "/new") };
    assert_eq!(uploads.write(&create(1), 0, b"one").unwrap(), WHOLE);
    assert_eq!(uploads.write(&create(2), 0, b"two").unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(uploads.write(&create(1), 0, b"one").unwrap(), WHOLE, "its client may ask again");
    assert_eq!(std::fs::read(dir.path().join("new")).unwrap(), b"one");
}

#[test]
fn upload_is_finished_after_death_during_rename() {
    let dir = tempfile::tempdir().unwrap();
    let uploads = Uploads::open(dir.path(), Limits { body: 100, ..Limits::default() }).unwrap();
    let upload = upload(4, "/file");
    assert_eq!(uploads.write(&upload, 0, b"ab").unwrap(), PART);
    // The state after the death of the process that had the last piece: before the rename, and
    // after it.
    let at = |end: &str| dir.path().join(format!("{FOLDER}/{:032x}.{end}", u128::from_be_bytes([7; 16])));
    for renamed in [false, true] {
        std::fs::write(if renamed { dir.path().join("file") } else { at("data") }, "abcd").unwrap();
        std::fs::write(at("map"), [&MOVING[..], &[0; 8]].concat()).unwrap();
        let _ = std::fs::remove_file(at("done"));
        // The client repeats the last piece, and then an early one.
        assert_eq!(uploads.write(&upload, 2, b"cd").unwrap(), WHOLE);
        assert_eq!(uploads.write(&upload, 0, b"ab").unwrap(), WHOLE);
        assert!(at("done").exists() && !at("map").exists() && !at("data").exists());
        assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"abcd");
    }
}

/// Sets the file's modification time to `seconds` ago.
fn age(path: &Path, seconds: u64) {
    let then = SystemTime::now() - Duration::from_secs(seconds);
    File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
}

fn left(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir.join(FOLDER)).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != totals::TOTALS);
    names.sort();
    names
}

#[test]
fn start_removes_only_expired_uploads() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { expiry: Duration::from_secs(1000), ..Limits::default() };
    let uploads = Uploads::open(dir.path(), limits).unwrap();
    for (id, length) in [(1, 10), (2, 10), (3, 2), (4, 2)] {
        let upload = Upload { id: [id; 16], ..upload(length, &format!("/{id}")) };
        uploads.write(&upload, 0, b"ab").unwrap();
    }
    let file = |id: u8, kind: &str| {
        dir.path().join(FOLDER).join(format!("{}.{kind}", format!("{id:02x}").repeat(16)))
    };
    std::fs::write(file(5, "data"), "nobody's").unwrap();
    for (path, seconds) in [
        (file(1, "map"), 1100),
        (file(2, "map"), 900),
        (file(3, "done"), 700),
        (file(4, "done"), 500),
        (file(5, "data"), 1100),
    ] {
        age(&path, seconds);
    }
    drop(uploads);
    let _uploads = Uploads::open(dir.path(), limits).unwrap();
    let want = [file(2, "data"), file(2, "map"), file(4, "done")];
    assert_eq!(left(dir.path()), want.map(|p| p.file_name().unwrap().to_str().unwrap().to_owned()));
    assert_eq!(std::fs::read(dir.path().join("3")).unwrap(), b"ab", "what is finished stays");
}

#[test]
fn unfinished_uploads_are_bounded_across_replicas() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { unfinished: 100, expiry: Duration::from_secs(1000), ..Limits::default() };
    let replicas = [(); 2].map(|()| Uploads::open(dir.path(), limits).unwrap());
    let named = |id: u8, length| Upload { id: [id; 16], ..upload(length, &format!("/{id}")) };
    assert_eq!(replicas[0].write(&named(1, 60), 0, b"ab").unwrap(), PART);
    let refused = replicas[1].write(&named(2, 41), 0, b"ab").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded);
    assert_eq!(left(dir.path()).len(), 2, "nothing is left of it");
    assert_eq!(replicas[1].write(&named(3, 40), 0, b"ab").unwrap(), PART);
    assert_eq!(replicas[1].write(&named(1, 60), 2, b"ab").unwrap(), PART, "one that was admitted goes on");
    // Finished and abandoned uploads make room for new ones.
    assert_eq!(replicas[0].write(&named(3, 40), 2, &[0; 38]).unwrap(), WHOLE);
    replicas[0].store.sweep(SystemTime::now() + Duration::from_secs(1100)).unwrap();
    assert_eq!(replicas[0].write(&named(4, 100), 0, b"ab").unwrap(), PART);
}

#[test]
fn number_of_unfinished_uploads_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let uploads = Uploads::open(dir.path(), Limits::default()).unwrap();
    let named = |id: u32| {
        let mut long = [0; 16];
        long[..4].copy_from_slice(&id.to_be_bytes());
        Upload { id: long, ..upload(2, &format!("/{id}")) }
    };
    // Maps of two-byte uploads, as other replicas made them. Damaged maps count too, but do not
    // block others below the limit.
    let folder = dir.path().join(FOLDER);
    std::fs::write(folder.join("damaged.map"), b"rv").unwrap();
    for id in 0..MAX_UNFINISHED - 3 {
        std::fs::write(folder.join(format!("{id}.map")), [&OPEN[..], &2u64.to_be_bytes()].concat()).unwrap();
    }
    uploads.store.recount().unwrap();
    assert_eq!(uploads.write(&named(0), 0, b"a").unwrap(), PART);
    assert_eq!(uploads.write(&named(1), 0, b"a").unwrap(), PART);
    assert_eq!(uploads.write(&named(2), 0, b"a").unwrap_err().kind(), ErrorKind::QuotaExceeded);
    assert_eq!(uploads.write(&named(0), 1, b"b").unwrap(), WHOLE, "one that was admitted goes on");
    assert_eq!(uploads.write(&named(5000), 0, b"a").unwrap(), PART, "and makes room");
}

#[test]
fn upload_replaces_an_existing_file() {
    let dir = tempfile::tempdir().unwrap();
    let uploads = Uploads::open(dir.path(), Limits::default()).unwrap();
    for (id, replaced) in [(1, false), (2, true)] {
        let upload = Upload { id: [id; 16], ..upload(1, "/file") };
        for _ in 0..2 {
            let written = uploads.write(&upload, 0, b"a").unwrap();
            assert_eq!(written, Some(Written::Completely { replaced }), "whoever comes again");
        }
    }
}

#[test]
fn forbidden_upload_targets_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
    let uploads = Uploads::open(dir.path(), Limits { body: 100, ..Limits::default() }).unwrap();
    for (path, length, status) in [
        ("/../x", 1, Some(403)),
        ("/", 1, Some(403)),
        ("/a//b", 1, Some(403)),
        ("/.rivulet-uploads/x", 1, Some(403)),
        ("/x", 101, Some(413)),
        ("/x", 100, None),
    ] {
        assert_eq!(uploads.refuses(path, length), status, "{path}");
    }
    assert!(uploads.write(&upload(1, "/link/x"), 0, b"a").is_err());
    assert!(!outside.path().join("x").exists());
    let other = Upload { id: [8; 16], ..upload(3, "/y") };
    assert!(uploads.write(&other, 2, b"ab").is_err(), "beyond the end");
}

#[test]
fn overlapping_and_adjacent_ranges_are_merged() {
    let mut ranges = Vec::new();
    for (start, end) in [(10, 20), (30, 40), (20, 30), (5, 6), (0, 50), (60, 60)] {
        insert(&mut ranges, start, end).unwrap();
    }
    assert_eq!(ranges, [(0, 50)]);
    for i in 0..MAX_RANGES as u64 - 2 {
        insert(&mut ranges, 100 + 2 * i, 101 + 2 * i).unwrap();
    }
    assert!(insert(&mut ranges, 1 << 40, 2 << 40).is_err(), "bounded");
}

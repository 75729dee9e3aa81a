//! A slow disk: uploads to it and files that are not in memory delay only their own clients. Needs
//! root and FUSE; skipped if namespaces cannot be created.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    FileAttr, FileType, Filesystem, MountOption, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow,
};
use rivulet_client::Stack;
use rivulet_packet::Heartbeat;
use rivulet_pktio::{PacketIo, in_netns};

use crate::rig::{Rig, SERVICE, request, url};

/// How long the slow disk takes for each open, read, write or sync.
const NAP: Duration = Duration::from_millis(250);
/// Lifetime of file attributes in the kernel's cache: none, so each use requests them.
const TTL: Duration = Duration::ZERO;
/// The replica's liveness bound; one piece of an upload takes the disk longer.
const BOUND: Duration = Duration::from_secs(1);

/// A FUSE file system that passes everything to the folder below it, with a pause.
struct Slow {
    /// Paths by inode number, from 1 on.
    paths: Vec<PathBuf>,
    open: HashMap<u64, File>,
    handles: u64,
}

/// Number of pauses so far.
static NAPS: AtomicU64 = AtomicU64::new(0);

fn nap() {
    NAPS.fetch_add(1, Ordering::Relaxed);
    std::thread::sleep(NAP);
}

fn errno(e: &std::io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

impl Slow {
    fn path(&self, parent: u64, name: &OsStr) -> PathBuf {
        self.paths[parent as usize - 1].join(name)
    }

    fn number(&mut self, path: &Path) -> u64 {
        let at = self.paths.iter().position(|p| p == path).unwrap_or_else(|| {
            self.paths.push(path.to_owned());
            self.paths.len() - 1
        });
        at as u64 + 1
    }

    fn attributes(&mut self, path: &Path) -> std::io::Result<FileAttr> {
        let meta = fs::symlink_metadata(path)?;
        let modified = meta.modified()?;
        let kind = if meta.is_dir() { FileType::Directory } else { FileType::RegularFile };
        Ok(FileAttr {
            ino: self.number(path),
            size: meta.len(),
            blocks: meta.blocks(),
            atime: modified,
            mtime: modified,
            ctime: modified,
            crtime: modified,
            kind,
            perm: (meta.mode() & 0o777) as u16,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn entry(&mut self, path: &Path, reply: ReplyEntry) {
        match self.attributes(path) {
            Ok(attributes) => reply.entry(&TTL, &attributes, 0),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn opened(&mut self, path: &Path, create: bool) -> std::io::Result<u64> {
        nap();
        let file = OpenOptions::new().read(true).write(true).create(create).open(path)?;
        self.handles += 1;
        self.open.insert(self.handles, file);
        Ok(self.handles)
    }
}

fn done(result: std::io::Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(&e)),
    }
}

impl Filesystem for Slow {
    fn lookup(&mut self, _: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        let path = self.path(parent, name);
        self.entry(&path, reply);
    }

    fn getattr(&mut self, _: &Request<'_>, ino: u64, _: Option<u64>, reply: ReplyAttr) {
        let path = self.paths[ino as usize - 1].clone();
        match self.attributes(&path) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn setattr(
        &mut self,
        request: &Request<'_>,
        ino: u64,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<u64>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<u32>,
        reply: ReplyAttr,
    ) {
        if let Some(size) = size {
            let file = OpenOptions::new().write(true).open(&self.paths[ino as usize - 1]);
            if let Err(e) = file.and_then(|file| file.set_len(size)) {
                return reply.error(errno(&e));
            }
        }
        self.getattr(request, ino, fh, reply);
    }

    fn mkdir(&mut self, _: &Request<'_>, parent: u64, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let path = self.path(parent, name);
        match fs::create_dir(&path) {
            Ok(()) => self.entry(&path, reply),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn unlink(&mut self, _: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        done(fs::remove_file(self.path(parent, name)), reply);
    }

    fn rename(
        &mut self,
        _: &Request<'_>,
        parent: u64,
        name: &OsStr,
        to: u64,
        new: &OsStr,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (self.path(parent, name), self.path(to, new));
        let result = fs::rename(&from, &to);
        self.paths.iter_mut().filter(|p| **p == from).for_each(|p| p.clone_from(&to));
        done(result, reply);
    }

    fn open(&mut self, _: &Request<'_>, ino: u64, _: i32, reply: ReplyOpen) {
        let path = self.paths[ino as usize - 1].clone();
        match self.opened(&path, false) {
            Ok(handle) => reply.opened(handle, 0),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn create(
        &mut self,
        _: &Request<'_>,
        parent: u64,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let path = self.path(parent, name);
        match self.opened(&path, true).and_then(|handle| Ok((handle, self.attributes(&path)?))) {
            Ok((handle, attributes)) => reply.created(&TTL, &attributes, 0, handle, 0),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn read(
        &mut self,
        _: &Request<'_>,
        _: u64,
        fh: u64,
        offset: i64,
        size: u32,
        _: i32,
        _: Option<u64>,
        reply: ReplyData,
    ) {
        nap();
        let mut data = vec![0; size as usize];
        match self.open[&fh].read_at(&mut data, offset as u64) {
            Ok(n) => reply.data(&data[..n]),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn write(
        &mut self,
        _: &Request<'_>,
        _: u64,
        fh: u64,
        offset: i64,
        data: &[u8],
        _: u32,
        _: i32,
        _: Option<u64>,
        reply: ReplyWrite,
    ) {
        nap();
        match self.open[&fh].write_all_at(data, offset as u64) {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn fsync(&mut self, _: &Request<'_>, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        nap();
        reply.ok();
    }

    fn readdir(&mut self, _: &Request<'_>, ino: u64, _: u64, offset: i64, mut reply: ReplyDirectory) {
        let entries = fs::read_dir(&self.paths[ino as usize - 1]).unwrap().flatten();
        for (at, entry) in entries.enumerate().skip(offset as usize) {
            let kind = if entry.path().is_dir() { FileType::Directory } else { FileType::RegularFile };
            if reply.add(1, at as i64 + 1, kind, entry.file_name()) {
                break;
            }
        }
        reply.ok();
    }
}

/// Ends the listening thread on drop.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Downloads of a file in memory and of one that is not, and uploads, all at once: all get their
/// bytes, and no heartbeat is late or not ready.
#[test]
#[ignore = "long: the disk sleeps for most of 18 s"]
fn slow_disk_excludes_no_replica() {
    let Some(rig) = Rig::new() else { return };
    let (disk, storage) = (rig.dir.path().join("disk"), rig.dir.path().join("storage"));
    for folder in [&disk, &storage] {
        fs::create_dir(folder).unwrap();
    }
    let slow = Slow { paths: vec![storage.clone()], open: HashMap::new(), handles: 0 };
    let mounted = fuser::spawn_mount2(slow, &disk, &[MountOption::FSName("slow".into())]).expect("FUSE");
    let cold: Vec<u8> = (0..60_000u32).map(|i| (i * 31 % 251) as u8).collect();
    fs::write(storage.join("cold"), &cold).unwrap();
    fs::write(storage.join("warm"), "warm").unwrap();
    let (bound, disk_text) = (BOUND.as_micros().to_string(), disk.to_str().unwrap().to_owned());
    let flags = ["--member", &rig.member(), "--bound-us", &bound, "--upload", &disk_text, "--plain", "none"];
    let server = rig.serve_dir(&disk, &flags);
    let mut heartbeats = rig.heartbeats();
    let until = Instant::now() + Duration::from_secs(60);
    while !Rig::read_heartbeats(&mut heartbeats).last().is_some_and(|beat| beat.ready) {
        assert!(Instant::now() < until, "never ready");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (over, naps) = (AtomicBool::new(false), NAPS.load(Ordering::Relaxed));
    let ask = |text: &[u8]| {
        in_netns(Some(rig.client.name()), || {
            let stack = Stack::start().unwrap();
            let mut stream = stack.connect(format!("{SERVICE}:80").parse().unwrap()).unwrap();
            stream.write_all(text).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            answer
        })
        .unwrap()
    };
    let body = vec![b'x'; 3000];
    let upload = |name: &str| {
        let head =
            format!("PUT /{name} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3000\r\n\r\n");
        let answer = ask(&[head.as_bytes(), &body].concat());
        assert!(answer.starts_with(b"HTTP/1.1 201 "), "{}", String::from_utf8_lossy(&answer));
        assert!(fs::read(storage.join(name)).unwrap() == body, "{name}");
    };
    std::thread::scope(|scope| {
        // Ends the thread even if the test fails, because the scope waits for it.
        let _ends = Ends(&over);
        let listener = scope.spawn(|| {
            // The kernel notes when each heartbeat arrived, because this thread may be late itself.
            heartbeats.set_stamps(true);
            let (mut all, mut unready, mut last, mut longest) = (0, 0, None::<u64>, 0);
            while !over.load(Ordering::Relaxed) {
                let count = heartbeats.recv().unwrap();
                for i in 0..count {
                    let frame = heartbeats.frame(i);
                    let beat = Heartbeat::parse(&frame.data[14..]).unwrap();
                    (all, unready) = (all + 1, unready + u64::from(!beat.ready));
                    if let Some(came) = frame.came {
                        longest = longest.max(came.saturating_sub(last.replace(came).unwrap_or(came)));
                    }
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            assert!(last.is_some(), "stamps");
            (all, unready, Duration::from_micros(longest))
        });
        let uploads = ["one", "two"].map(|name| {
            let upload = &upload;
            scope.spawn(move || upload(name))
        });
        let asking = scope.spawn(|| {
            for _ in 0..10 {
                assert!(ask(request("warm").as_bytes()).ends_with(b"warm"));
            }
        });
        // Twice: while the file is hashed, and while it is read from a mapping without its pages.
        for _ in 0..2 {
            let out = rig.get(&["-q", "-o"]).arg(rig.out()).arg(url("cold")).output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            assert!(fs::read(rig.out()).unwrap() == cold);
            let file = File::open(disk.join("cold")).unwrap();
            // SAFETY: a plain call on an open descriptor: the page cache drops the file.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
        asking.join().unwrap();
        for upload in uploads {
            upload.join().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        let (all, unready, longest) = listener.join().unwrap();
        let naps = NAPS.load(Ordering::Relaxed) - naps;
        println!("{all} heartbeats, the longest pause {longest:?}; the disk slept {naps} times");
        assert!(naps > 20, "the disk was slow: {naps}");
        assert_eq!(unready, 0, "of {all} heartbeats");
        assert!(longest < BOUND, "silent for {longest:?}: excluded");
    });
    drop(server);
    drop(mounted);
}

//! Pictures with a mark of each client's own, served by `rivulet serve`. Needs root; skipped where namespaces cannot be made.

use std::sync::atomic::{AtomicBool, Ordering};

use rivulet_pktio::Interface;
use rivulet_pktio::testing::eventually;
use rivulet_watermark::Picture;

use crate::rig::{Rig, SERVICE, url};

#[path = "../../examples/watermark.rs"]
#[allow(dead_code, reason = "the test calls what main calls")]
mod example;
#[path = "../../../watermark/tests/it/random.rs"]
#[allow(dead_code, reason = "its own tests use the rest")]
mod random;

/// Slow enough that a process dies in the middle of a download.
const RATE: &str = "8mbit";

/// A picture of noise in a folder of the served directory.
fn picture(rig: &Rig, name: &str, width: u16, height: u16) -> Vec<u8> {
    let recipe = random::Recipe {
        width,
        height,
        factors: vec![(2, 2), (1, 1), (1, 1)],
        interval: 0,
        is_split: false,
        categories: 9,
        quantizer: 2,
        seed: 11,
    };
    let file = recipe.file();
    let path = rig.www().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, &file).unwrap();
    file
}

/// The bytes that a client is to get.
fn marked(file: &[u8], text: &str) -> Vec<u8> {
    let picture = Picture::read(file).unwrap();
    let places = picture.mark(text.as_bytes());
    let mut out = vec![0; places.len() as usize];
    let read = |at: u64, out: &mut [u8]| {
        out.copy_from_slice(&file[at as usize..at as usize + out.len()]);
        Ok::<_, ()>(())
    };
    picture.read_marked(&places, 0, &mut out, read).unwrap();
    out
}

/// kill -9 of the serving process, three times, in the middle of one download. Each successor continues a marked picture
/// that it did not begin.
#[test]
fn marked_download_survives_kills_byte_for_byte() {
    let Some(rig) = Rig::new() else { return };
    let file = picture(&rig, "file", 6000, 6000);
    let whole = marked(&file, "10.88.0.1");
    assert!(whole.len() > 1_700_000 && whole.len() != file.len(), "{} {}", whole.len(), file.len());
    let mut server = rig.serve(&["--watermark"]);
    let alone = rig.get(&["-q", "-o"]).arg(rig.out()).arg(url("file")).status().unwrap();
    assert!(alone.success() && std::fs::read(rig.out()).unwrap() == whole, "what one replica sends");
    std::fs::remove_file(rig.out()).unwrap();
    rig.server.shape("s0", RATE);
    let download = rig.download(&[]);
    for wanted in [300_000, 800_000, 1_300_000] {
        rig.progress(wanted);
        drop(server);
        server = rig.serve(&["--watermark"]);
    }
    let report = rig.finished(download, &whole);
    assert_eq!(report["bytes"], whole.len());
    assert!(report["longest_gap_ms"].as_f64().unwrap() > 50.0, "it did die: {}", report["longest_gap_ms"]);
}

#[test]
fn each_client_gets_a_mark_of_its_own() {
    let Some(rig) = Rig::new() else { return };
    rig.client.ip("addr add 10.88.0.77/24 dev c0");
    let file = picture(&rig, "marked/file.jpg", 640, 480);
    picture(&rig, "free.jpg", 640, 480);
    let text = rig.file("marked-not", 30_000);
    std::fs::write(rig.www().join("marked/text"), &text).unwrap();
    let mut progressive = file.clone();
    let at = progressive.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap() + 1;
    progressive[at] = 0xc2;
    std::fs::write(rig.www().join("marked/progressive.jpg"), &progressive).unwrap();
    let get = |path: &str| {
        let status = rig.get(&["-q", "-o"]).arg(rig.out()).arg(url(path)).status().unwrap();
        assert!(status.success(), "{path}");
        std::fs::read(rig.out()).unwrap()
    };
    let curl = |client: &str, flags: &str, path: &str| {
        let out = rig.out();
        let flags = format!("--retry 5 --retry-connrefused --interface {client} {flags}");
        let code =
            rig.client.run(&format!("curl -sS {flags} -o {} -w %{{http_code}} {}", out.display(), url(path)));
        (code.trim().to_owned(), std::fs::read(out).unwrap())
    };
    // The longest path with its mark fits into a continuation.
    let long = format!("marked/{0}/{0}/{0}.jpg", "a".repeat(225));
    let of_long = picture(&rig, &long, 640, 480);
    for plain in ["kernel", "stateless"] {
        let server = rig.serve(&["--watermark=marked", "--watermark-text", "acme", "--plain", plain]);
        let (first, second) = (marked(&file, "acme 10.88.0.1"), marked(&file, "acme 10.88.0.77"));
        assert!(first != second && get("marked/file.jpg") == first, "by Rivulet");
        assert!(get(&long) == marked(&of_long, "acme 10.88.0.1"), "a long path");
        assert_eq!(curl("10.88.0.1", "", "marked/file.jpg"), ("200".into(), first.clone()), "{plain}");
        assert_eq!(curl("10.88.0.77", "", "marked/file.jpg"), ("200".into(), second), "{plain}");
        let range = curl("10.88.0.1", "-r 5000-9999", "marked/file.jpg");
        assert_eq!(range, ("206".into(), first[5000..10_000].to_vec()), "{plain}");
        assert!(get("free.jpg") == file && get("marked/text") == text, "no pictures of that folder");
        assert_eq!(curl("10.88.0.1", "", "marked/progressive.jpg").0, "500");
        // Each client's picture has an entity tag of its own.
        let tag = |client: &str| {
            let head = rig.client.run(&format!("curl -sSI --interface {client} {}", url("marked/file.jpg")));
            head.lines().find_map(|line| line.strip_prefix("ETag: ")).unwrap().trim().to_owned()
        };
        let (mine, other) = (tag("10.88.0.1"), tag("10.88.0.77"));
        assert_ne!(mine, other);
        for (tag, code) in [(&mine, "304"), (&other, "200")] {
            let mut command = rig.client.command("curl");
            command.args(["-sS", "--interface", "10.88.0.1", "-o", "/dev/null", "-w", "%{http_code}", "-H"]);
            command.arg(format!("If-None-Match: {tag}")).arg(url("marked/file.jpg"));
            let got = String::from_utf8(command.output().unwrap().stdout).unwrap();
            assert_eq!(got.trim(), code, "{plain}");
        }
        server.stop();
    }
    let mut wrong = rig.serve_command(&rig.www(), &["--watermark=none"]);
    let refused = wrong.output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--watermark: none is not a folder of"));
}

/// The example application: three servers, each with state of its own, continue one download.
#[test]
fn example_application_continues_downloads_of_others() {
    let Some(rig) = Rig::new() else { return };
    let file = picture(&rig, "file", 4000, 3000);
    let whole = marked(&file, "10.88.0.1");
    rig.server.shape("s0", RATE);
    let (address, keys) = (format!("{SERVICE}:80").parse().unwrap(), rig.dir.path().join("keys.toml"));
    let serve_until = |stopped: &AtomicBool| {
        let interface = Interface::new(Some(rig.server.name()), "s0").unwrap();
        example::serve(&rig.www(), interface, address, &keys, || stopped.load(Ordering::Acquire)).unwrap();
    };
    let download = rig.download(&[]);
    for wanted in [150_000, 350_000, u64::MAX] {
        let stopped = AtomicBool::new(false);
        let is_last = wanted == u64::MAX;
        std::thread::scope(|scope| {
            let server = scope.spawn(|| serve_until(&stopped));
            let part = rig.dir.path().join("out.part");
            let ended = || rig.out().exists();
            let came = || std::fs::metadata(&part).is_ok_and(|m| m.len() >= wanted);
            eventually("progress", || server.is_finished() || if is_last { ended() } else { came() });
            stopped.store(true, Ordering::Release);
        });
    }
    rig.finished(download, &whole);
}

//! Downloads between network namespaces, byte for byte: `rivulet get`, unmodified programs, and
//! plain TCP in both directions. Needs root; skipped if namespaces cannot be created.

use std::os::unix::fs::FileTypeExt;

use crate::rig::{self, Rig, SERVICE, url};
use rivulet_client::IoChoice;
use rivulet_pktio::testing::eventually;

#[test]
fn files_of_every_size_are_downloaded() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    for size in [0, 1, 10_000, 500_000, 20_000_000] {
        let content = rig.file("file", size);
        let out = rig.get(&["--json", "-o"]).arg(rig.out()).arg(url("file")).output().unwrap();
        assert!(out.status.success(), "{size}: {}", String::from_utf8_lossy(&out.stderr));
        assert!(std::fs::read(rig.out()).unwrap() == content, "{size} octets: other content");
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(report["bytes"], size);
        assert_eq!(report["transport"], "rivulet");
        // The server notices a changed file within this time.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // The client's kernel sends no segment.
    rig.read_quietly(IoChoice::AfPacket, 20_000_000);
    assert_eq!(rig.server.counter("TcpOutRsts"), 0);
    assert_eq!(rig.server.counter("TcpPassiveOpens"), 0);
}

#[test]
fn one_connection_carries_several_files_and_an_error() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let (a, b) = (rig.file("a", 3000), rig.file("b", 1_000_000));
    let (out_a, out_b) = (rig.dir.path().join("oa"), rig.dir.path().join("ob"));
    // In parallel (section 5.2), then one after the other.
    for flags in [&["--json"][..], &["--json", "--one-by-one"]] {
        let mut command = rig.get(flags);
        command.arg("-o").arg(&out_a).arg("-o").arg(&out_b).args([url("a"), url("b"), url("none")]);
        let out = command.current_dir(rig.dir.path()).output().unwrap();
        assert_eq!(out.status.code(), Some(3), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(std::fs::read(&out_a).unwrap() == a && std::fs::read(&out_b).unwrap() == b);
        let reports: Vec<serde_json::Value> =
            String::from_utf8_lossy(&out.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(reports[0]["local"], reports[1]["local"], "one connection");
        assert_eq!(reports[2]["status"], 404);
        std::fs::remove_file(&out_a).unwrap();
        std::fs::remove_file(&out_b).unwrap();
    }
}

/// A download to /dev/null leaves the device in place.
#[test]
fn download_to_device_does_not_replace_it() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let content = rig.file("file", 30_000);
    let (device, pipe) = (rig.dir.path().join("null"), rig.dir.path().join("pipe"));
    rig.client.run(&format!("mknod {} c 1 3", device.display()));
    rig.client.run(&format!("mkfifo {}", pipe.display()));
    let get = |to: &std::path::Path| rig.get(&["-q", "-c", "-o"]).arg(to).arg(url("file")).output().unwrap();
    let is_null = || std::fs::metadata(&device).unwrap().file_type().is_char_device();
    assert!(is_null() && get(&device).status.success() && is_null());
    let got = std::thread::scope(|scope| {
        let reader = scope.spawn(|| std::fs::read(&pipe).unwrap());
        assert!(get(&pipe).status.success());
        reader.join().unwrap()
    });
    assert!(got == content);
    let left = std::fs::read_dir(rig.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.filter(|name| name.to_string_lossy().contains(".part")).count(), 0);
}

#[test]
fn interrupted_download_resumes() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let content = rig.file("file", 400_000);
    let out = rig.out();
    let get = |flags: &[&str]| rig.get(flags).arg("-o").arg(&out).arg(url("file")).output().unwrap();
    assert!(get(&["-q"]).status.success());
    let etag = rig.client.run(&format!("curl -sI {}", url("file")));
    let etag = etag.lines().find_map(|l| l.strip_prefix("ETag: ")).unwrap().trim().to_owned();

    let part = rig.dir.path().join("out.part");
    let resume = |tag: &str, octets: &[u8]| {
        std::fs::write(&part, octets).unwrap();
        std::fs::write(rig.dir.path().join("out.part.etag"), tag).unwrap();
        let result = get(&["-c", "--json"]);
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        assert!(std::fs::read(&out).unwrap() == content);
        serde_json::from_slice::<serde_json::Value>(&result.stdout).unwrap()
    };
    assert_eq!(resume(&etag, &content[..150_000])["bytes"], 250_000);
    // The partial file belongs to another content, so everything is downloaded again.
    assert_eq!(resume("\"0123456789abcdef0123456789abcdef\"", &[0; 1000])["bytes"], 400_000);
    assert_eq!(resume(&etag, &content)["bytes"], 0);
}

#[test]
fn unmodified_programs_download_through_run() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&["--plain", "none"]);
    let content = rig.file("file", 3_000_000);
    let out = rig.out();
    let path = out.to_str().unwrap();
    let python = format!(
        "import urllib.request,sys; r=urllib.request.urlopen('{0}'); open('{path}','wb').write(r.read()); \
         import socket; s=socket.create_connection(('{SERVICE}',80)); print(s.getpeername()[0], s.family.name)",
        url("file")
    );
    let forked = format!("curl -sS {} | cat > {path}", url("file"));
    let programs: [&[&str]; 4] = [
        &["curl", "-sS", "-o", path, &url("file")],
        &["wget", "-q", "-O", path, &url("file")],
        &["python3", "-c", &python],
        &["sh", "-c", &forked],
    ];
    for program in programs {
        let _ = std::fs::remove_file(&out);
        let result = rig.run(program);
        let told = format!("{program:?}: {}", String::from_utf8_lossy(&result.stderr));
        assert!(result.status.success(), "{told}");
        assert!(std::fs::read(&out).unwrap() == content, "{told}: other content");
        if program[0] == "python3" {
            assert_eq!(String::from_utf8_lossy(&result.stdout).trim(), format!("{SERVICE} AF_INET"));
        }
    }
    assert_eq!(rig.run(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(rig.run(&["/no/such/program"]).status.code(), Some(127));
    assert_eq!(rig.client.counter("TcpActiveOpens"), 0, "none of it was the kernel's TCP");
}

#[test]
fn plain_clients_are_served_by_the_kernel() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let content = rig.file("file", 1_000_000);
    let out = rig.out();
    rig.client.run(&format!("curl -sS --retry 5 --retry-connrefused -o {} {}", out.display(), url("file")));
    assert!(std::fs::read(out).unwrap() == content);
    assert!(rig.server.counter("TcpPassiveOpens") >= 1);
}

/// Fallback (section 2.6) on the same handshake: the server sees one connection and no reset.
#[test]
fn client_falls_back_to_plain_tcp() {
    let Some(rig) = Rig::new() else { return };
    let content = rig.file("file", 2_000_000);
    rig.server.ip(&format!("addr add {SERVICE}/32 dev lo"));
    let _python = rig.plain_server();
    eventually("python listens", || rig.server.run("ss -Hltn").contains(":80 "));
    rig.get_plainly(&[], &content);

    let path = rig.out();
    let result = rig.run(&["curl", "-sS", "-o", path.to_str().unwrap(), &url("file")]);
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    assert!(std::fs::read(rig.out()).unwrap() == content);

    // The stack remembers that the server uses plain TCP: the first connection of a run is taken
    // over by the kernel, the next one is the kernel's from the start.
    for (n, by) in (1..).zip(["shim", "auto"]) {
        let before = rig.client.counter("TcpActiveOpens");
        assert_eq!(before, n - 1, "nothing else was the kernel's");
        let twice = format!("curl -sSf -o {0} {1} && curl -sSf -o {0} {1}", path.display(), url("file"));
        let mut command = rig.client.command(rig::RIVULET);
        command.env("RIVULET_SHIM", rig::shim()).args(["run", "--by", by, "--", "sh", "-c", &twice]);
        let result = command.output().unwrap();
        assert!(result.status.success(), "{by}: {}", String::from_utf8_lossy(&result.stderr));
        assert!(std::fs::read(rig.out()).unwrap() == content);
        assert_eq!(rig.client.counter("TcpActiveOpens"), before + 1, "{by}");
    }

    // No server listens there: the error is clear, and comes soon.
    let refused = format!("http://{SERVICE}:81/file");
    let out = rig.get(&["-q", "-o"]).arg(rig.out()).arg(refused).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("refused"));
}

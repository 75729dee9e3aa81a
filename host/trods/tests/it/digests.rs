//! A connection resumes only on a server that has the same bytes, even if entity tags and lengths
//! are equal. Uses real web servers; needs root, and is skipped if namespaces cannot be created.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{Netns, Process, eventually};
use rivulet_trods::record::Body;
use rivulet_trods::store::load;
use rivulet_trods::testing::keys;
use rivulet_trods::{Settings, Unknown};

use crate::support::{CLOSED, nginx_with};
use crate::survive::{Plan, Rig, SERVICE, Start};

const SIZE: usize = 8_000_000;
const COMPARES: Settings = Settings { unknown: Unknown::Reset, ..CLOSED };

/// Content of a replica's file. Contents of two numbers are equal before `from`, and differ after
/// it.
fn content(number: u8, from: usize) -> Vec<u8> {
    (0..SIZE).map(|n| (n * 7 + n / 251) as u8 ^ if n < from { 0 } else { number }).collect()
}

/// Writes a file with a fixed modification time, which all files of these tests share.
fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::create_dir_all(folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    assert!(Command::new("touch").args(["-d", "@1700000000"]).arg(path).status().unwrap().success());
}

/// Starts nginx with a separate folder.
fn nginx(ns: &Netns, service: &str, root: &Path, dir: &Path) -> Process {
    let (shared, own) = (root.join("www").display().to_string(), dir.join("www").display().to_string());
    nginx_with(ns, service, root, dir, &|text| text.replace(&shared, &own))
}

/// Starts lighttpd with a separate folder, and entity tags without inodes.
fn lighttpd(ns: &Netns, service: &str, _root: &Path, dir: &Path) -> Process {
    let (address, port) = service.rsplit_once(':').unwrap();
    let own = dir.join("www").display().to_string();
    let text = format!(
        "server.document-root = \"{own}\"\nserver.port = {port}\nserver.bind = \"{address}\"\n\
         etag.use-inode = \"disable\"\nmimetype.assign = (\"\" => \"text/plain\")\n"
    );
    fs::write(dir.join("conf"), text).unwrap();
    let mut command = ns.command("lighttpd");
    let process =
        Process(command.arg("-D").arg("-f").arg(dir.join("conf")).stderr(Stdio::null()).spawn().unwrap());
    let service: std::net::SocketAddr = service.parse().unwrap();
    eventually("lighttpd listens", || {
        in_netns(Some(ns.name()), || std::net::TcpStream::connect(service).is_ok()).unwrap()
    });
    process
}

/// A function that starts a server after `files` has filled its folder, given the replica's number.
fn with_files<'a>(
    server: Start<'a>,
    files: &'a dyn Fn(u8, &Path),
) -> impl Fn(&Netns, &str, &Path, &Path) -> Process + 'a {
    let count = Cell::new(0);
    move |ns, service, root, dir| {
        count.set(count.get() + 1);
        files(count.get(), &dir.join("www"));
        server(ns, service, root, dir)
    }
}

/// Number of digests in the first replica's records.
fn digests(rig: &Rig) -> usize {
    let read = || load(&rig.servers(), "www.r1.1", &keys(), Duration::from_secs(1));
    let records = in_netns(Some(rig.router.name()), read).unwrap().records;
    let bodies = records.iter().flat_map(|(_, record)| &record.responses).map(|response| &response.body);
    bodies.filter(|body| matches!(body, Body::Object { digest: Some(_), .. })).count()
}

fn got(rig: &Rig) -> Vec<u8> {
    fs::read(rig.files.path().join("got")).unwrap()
}

fn kill(rig: &Rig) {
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    rig.tell(1, 1);
}

/// Reproducible builds, `cp -p` and `rsync` after an edit leave files of equal time and length with
/// different bytes.
#[test]
fn other_bytes_under_the_same_tag_are_never_mixed() {
    let servers: [(&str, Start<'_>); 2] = [("nginx", &nginx), ("lighttpd", &lighttpd)];
    for (name, server) in servers {
        if Command::new(name).arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            eprintln!("SKIPPED: no {name}");
            continue;
        }
        for from in [0, 1_000_000] {
            let files = |n: u8, folder: &Path| write(folder, "large", &content(n, from));
            let server = with_files(server, &files);
            // The second replica learns within a second which objects it has to read.
            let plan = Plan { rate: "10mbit", settings: COMPARES, server: &server, ..Plan::default() };
            let Some(rig) = Rig::new(&plan) else { return };
            let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
            eventually("both have compared it", || {
                digests(&rig) == 1 && rig.hosts[1].replica.counts().digests == 1
            });
            eventually("some of it", || rig.got() > 1_200_000);
            kill(&rig);
            assert_eq!(curl.0.wait().unwrap().code(), Some(56), "{name} {from}: it was reset");
            let got = got(&rig);
            assert!(got.len() < SIZE && got == content(1, from)[..got.len()], "{name} {from}");
            let counts = || rig.hosts[1].replica.counts();
            eventually("it is counted", || counts().refused == 1);
            assert_eq!(counts().refusals, [("content", 1)].into(), "{name} {from}");
        }
    }
}

/// S3 clients sign `Range` with the rest of their request, and a server refuses any other range
/// with that signature.
#[test]
fn download_with_signed_range_resumes() {
    let files = |n: u8, folder: &Path| write(folder, "large", &content(n, SIZE));
    let signed = |ns: &Netns, service: &str, root: &Path, dir: &Path| {
        let (shared, own) = (root.join("www").display().to_string(), dir.join("www").display().to_string());
        let refuse = "if ($http_range != $http_x_signed_range) { return 403; }";
        nginx_with(ns, service, root, dir, &|text| {
            text.replace(&format!("root {shared};"), &format!("root {own}; {refuse}"))
        })
    };
    let server = with_files(&signed, &files);
    let plan = Plan { rate: "10mbit", settings: COMPARES, server: &server, ..Plan::default() };
    let Some(rig) = Rig::new(&plan) else { return };
    let fields = rig.files.path().join("fields");
    let authorization =
        "AWS4-HMAC-SHA256 Credential=k/20260101/r/s3/aws4_request, SignedHeaders=host;range, Signature=0";
    let range = "bytes=1000000-5999999";
    fs::write(
        &fields,
        format!(
            "header = \"Authorization: {authorization}\"\nheader = \"Range: {range}\"\nheader = \"X-Signed-Range: {range}\"\n"
        ),
    )
    .unwrap();
    let mut curl = rig.curl(&format!("-K {} http://{SERVICE}/large", fields.display()));
    eventually("the part is compared", || digests(&rig) == 1);
    eventually("some of it", || rig.got() > 1_200_000);
    kill(&rig);
    let status = curl.0.wait().unwrap();
    let counts = || rig.hosts[1].replica.counts();
    assert!(status.success(), "{status}: {:?}", counts());
    assert!(got(&rig) == content(1, SIZE)[1_000_000..6_000_000]);
    eventually("it is counted", || counts().adopted == 1);
    assert_eq!((counts().refused, counts().trusted, counts().digests, counts().read_through), (0, 0, 1, 1));
}

/// Before the digests are known, the checksum of the first flight must find the difference,
/// although nginx sends the head in a separate segment.
#[test]
fn first_flight_is_compared_without_digests() {
    let files = |n: u8, folder: &Path| write(folder, "large", &content(n, 0));
    let server = with_files(&secretive, &files);
    let Some(rig) = Rig::new(&Plan { server: &server, ..Plan::default() }) else { return };
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("some of it", || rig.got() > 1_200_000);
    kill(&rig);
    assert_eq!(curl.0.wait().unwrap().code(), Some(56));
    let got = got(&rig);
    assert!(got == content(1, 0)[..got.len()]);
    eventually("it is counted", || rig.hosts[1].replica.counts().refusals == [("content", 1)].into());
}

/// Starts an nginx that refuses the agent's requests, so that no digest is known.
fn secretive(ns: &Netns, service: &str, root: &Path, dir: &Path) -> Process {
    let (shared, own) = (root.join("www").display().to_string(), dir.join("www").display().to_string());
    nginx_with(ns, service, root, dir, &|text| {
        text.replace(&shared, &own).replace("server {", "deny 10.8.9.9; server {")
    })
}

#[test]
fn object_of_unknown_digest_is_reset_or_trusted() {
    for unknown in [Unknown::Reset, Unknown::Trust] {
        let files = |_: u8, folder: &Path| write(folder, "large", &content(0, 0));
        let (server, settings) = (with_files(&secretive, &files), Settings { unknown, ..CLOSED });
        let Some(rig) = Rig::new(&Plan { settings, server: &server, ..Plan::default() }) else { return };
        let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
        eventually("some of it", || rig.got() > 1_200_000);
        kill(&rig);
        let status = curl.0.wait().unwrap();
        let counts = || rig.hosts[1].replica.counts();
        eventually("it is counted", || counts().refused + counts().trusted == 1);
        match unknown {
            Unknown::Reset => {
                assert_eq!((status.code(), counts().refusals), (Some(56), [("unknown", 1)].into()));
            }
            Unknown::Trust => {
                assert!(status.success() && got(&rig) == content(0, 0));
                assert_eq!((counts().trusted, counts().refused), (1, 0));
            }
        }
    }
}

#[test]
fn download_resumes_after_equal_digests() {
    let files = |_: u8, folder: &Path| write(folder, "large", &content(0, 0));
    let server = with_files(&nginx, &files);
    let Some(rig) = Rig::new(&Plan { settings: COMPARES, server: &server, ..Plan::default() }) else {
        return;
    };
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("it is in the record", || digests(&rig) == 1);
    kill(&rig);
    assert!(curl.0.wait().unwrap().success() && got(&rig) == content(0, 0));
    let counts = || rig.hosts[1].replica.counts();
    eventually("it is counted", || counts().adopted == 1);
    assert_eq!((counts().refused, counts().trusted), (0, 0));
}

/// Starts an nginx with two sites that have files of equal path, time and length.
fn sites(ns: &Netns, service: &str, root: &Path, dir: &Path) -> Process {
    let www = root.join("www");
    let site = |name: &str, number: u8| {
        write(&www.join(name), "large", &content(number, 0));
        format!("server {{ listen {service}; server_name {name}; root {}/{name}; }}", www.display())
    };
    let sites = format!("{} {} server {{", site("one.example", 1), site("two.example", 2));
    let list = "http://one.example:8080/large\nhttp://two.example:8080/large\n/large\n";
    fs::write(www.join("list"), list).unwrap();
    fs::write(www.join("one.example/list"), list).unwrap();
    nginx_with(ns, service, root, dir, &|text| text.replacen("server {", &sites, 1))
}

#[test]
fn client_never_gets_bytes_of_another_site() {
    // Once protected by timestamps alone, once by records.
    for (named, stores) in [(true, 0), (false, 1)] {
        let plan = Plan { settings: COMPARES, server: &sites, named, stores, ..Plan::default() };
        let Some(rig) = Rig::new(&plan) else { return };
        let service: std::net::SocketAddr = SERVICE.parse().unwrap();
        if named {
            let versions = || rig.hosts.iter().map(|host| host.replica.table(&service)).collect::<Vec<_>>();
            eventually("both have the same table", || matches!(versions()[..], [a, b] if a != 0 && a == b));
        }
        let curl = |site: &str| {
            let mut command = rig.client.command("curl");
            command.args(["-sS", "-m", "60", "-H", &format!("Host: {site}:8080"), "-o"]);
            command.arg(rig.files.path().join(site)).arg(format!("http://{SERVICE}/large"));
            Process(command.spawn().unwrap())
        };
        let got = |site: &str| fs::read(rig.files.path().join(site)).unwrap_or_default();
        let sites = [("one.example", 1), ("two.example", 2)];
        let mut clients = sites.map(|(site, number)| (curl(site), site, number));
        eventually("some of both", || sites.iter().all(|(site, _)| got(site).len() > 1_000_000));
        if named {
            rig.router.ip("link set x1 down");
            rig.tell_named(1, 1);
            rig.steer("replace", 2);
        } else {
            eventually("they are compared", || digests(&rig) == 2);
            kill(&rig);
        }
        for (client, site, number) in &mut clients {
            let status = client.0.wait().unwrap();
            let got = got(site);
            assert!(got == content(*number, 0)[..got.len()], "{site}: bytes of another one");
            assert!(status.success(), "{site}: {status}, {} bytes", got.len());
        }
        eventually("they are counted", || rig.hosts[1].replica.counts().adopted == 2);
        assert_eq!(rig.hosts[0].replica.counts().protected, 2, "both were protected");
    }
}

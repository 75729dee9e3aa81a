//! Unmodified web servers: which of their answers outlive the replica, and why others do not. Each
//! server runs on two replicas, and the one that serves a download is cut off. Servers that are not
//! installed are skipped.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{Netns, Process, eventually};

use crate::support::nginx_with;
use crate::survive::{Plan, Rig, SERVICE};

/// What becomes of a download after its replica's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The download continues at the other replica.
    Protected,
    /// The connection was not protected, for this reason.
    Unprotected(&'static str),
}

/// Name, program, arguments, configuration, and the fate of its downloads. `{}` in the command are
/// its address, port, and folder of files; a configuration is written into a file, which becomes
/// the last argument.
const SERVERS: [(&str, &str, &[&str], &str, Fate); 10] = [
    ("nginx", "nginx", &[], "", Fate::Protected),
    ("nginx, gzip_static", "nginx", &["gzip_static"], "", Fate::Protected),
    (
        "lighttpd without inodes in its tags",
        "lighttpd",
        &["-D", "-f"],
        "server.document-root = \"{www}\"\nserver.port = {port}\nserver.bind = \"{address}\"\n\
         etag.use-inode = \"disable\"\nmimetype.assign = (\"\" => \"text/plain\")\n",
        Fate::Protected,
    ),
    (
        "lighttpd, files without a type",
        "lighttpd",
        &["-D", "-f"],
        "server.document-root = \"{www}\"\nserver.port = {port}\nserver.bind = \"{address}\"\n",
        Fate::Unprotected("dynamic"),
    ),
    (
        "Apache",
        "apache2",
        &["-X", "-f"],
        "ServerRoot {dir}\nServerName localhost\nPidFile {dir}/pid\nErrorLog {dir}/log\nListen {address}:{port}\n\
         LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so\n\
         LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\nDocumentRoot {www}\n",
        Fate::Protected,
    ),
    ("busybox", "busybox", &["httpd", "-f", "-p", "{address}:{port}", "-h", "{www}"], "", Fate::Protected),
    (
        "Python",
        "python3",
        &["-m", "http.server", "-b", "{address}", "-d", "{www}", "{port}"],
        "",
        Fate::Unprotected("dynamic"),
    ),
    (
        "Caddy",
        "caddy",
        &["file-server", "--listen", "{address}:{port}", "--root", "{www}"],
        "",
        Fate::Protected,
    ),
    (
        "Node's streams",
        "node",
        &[
            "-e",
            "require('http').createServer((q, r) => require('fs').createReadStream('{www}' + q.url).pipe(r))\
             .listen({port}, '{address}')",
        ],
        "",
        Fate::Unprotected("dynamic"),
    ),
    ("Go's http.FileServer", "go", &["{address}:{port}", "{www}"], "", Fate::Unprotected("dynamic")),
];

/// A web server from Go's library; its arguments are the address and the folder.
const GO: &str = "package main\nimport (\n\"net/http\"\n\"os\"\n)\n\
                  func main() { http.ListenAndServe(os.Args[1], http.FileServer(http.Dir(os.Args[2]))) }\n";

/// Builds the Go program in a folder.
fn build_go(dir: &Path) -> PathBuf {
    fs::write(dir.join("serve.go"), GO).unwrap();
    let built = Command::new("go").args(["build", "-o", "serve", "serve.go"]).current_dir(dir).status();
    assert!(built.unwrap().success());
    dir.join("serve")
}

fn start(
    (_, program, arguments, text, _): &(&str, &str, &[&str], &str, Fate),
    ns: &Netns,
    service: &str,
    root: &Path,
    dir: &Path,
) -> Process {
    if *program == "nginx" {
        let gzip = if arguments.is_empty() { "" } else { "gzip_static on; " };
        return nginx_with(ns, service, root, dir, &|text| {
            text.replace("sendfile on;", &format!("sendfile on; {gzip}"))
        });
    }
    let (address, port) = service.rsplit_once(':').unwrap();
    let fill = |text: &str| {
        let www = root.join("www").display().to_string();
        let dir = dir.display().to_string();
        text.replace("{www}", &www)
            .replace("{dir}", &dir)
            .replace("{address}", address)
            .replace("{port}", port)
    };
    let built = (*program == "go").then(|| build_go(dir));
    let mut command = ns.command(built.as_deref().map_or(*program, |path| path.to_str().unwrap()));
    command.args(arguments.iter().map(|argument| fill(argument)));
    if !text.is_empty() {
        fs::write(dir.join("conf"), fill(text)).unwrap();
        command.arg(dir.join("conf"));
    }
    let process = Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let service: SocketAddr = service.parse().unwrap();
    eventually("it listens", || in_netns(Some(ns.name()), || TcpStream::connect(service).is_ok()).unwrap());
    process
}

#[test]
fn download_from_each_web_server_survives_as_listed() {
    for server in &SERVERS {
        let (name, program, .., fate) = server;
        let found =
            Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: no {program}");
            continue;
        }
        let start =
            |ns: &Netns, service: &str, root: &Path, dir: &Path| start(server, ns, service, root, dir);
        let Some(rig) = Rig::new(&Plan { server: &start, ..Plan::default() }) else { return };
        let content = rig.file("large.bin", 8_000_000);
        let www = rig.files.path().join("www");
        fs::write(www.join("large.bin.gz"), &content).unwrap();
        // Apache makes the entity tag weak if the file was changed within the last second.
        let touched = Command::new("touch").args(["-d", "@1700000000"]).arg(www.join("large.bin")).status();
        assert!(touched.unwrap().success());
        let mut curl = rig.curl(&format!("-H Accept-Encoding:gzip http://{SERVICE}/large.bin"));
        eventually("some of it", || rig.got() > 1_200_000);
        rig.router.ip("link set x1 down");
        rig.steer("replace", 2);
        rig.tell(1, 1);
        let (one, two) = (&rig.hosts[0].replica, &rig.hosts[1].replica);
        match fate {
            Fate::Protected => {
                let status = curl.0.wait().unwrap();
                assert!(status.success(), "{name}: {status}, {:?} {:?}", one.counts(), two.counts());
                assert!(fs::read(rig.files.path().join("got")).unwrap() == content, "{name}");
                eventually("it is counted", || two.counts().adopted == 1);
                // busybox serves `.gz` files without ranges, too.
                let has_ranges = !name.contains("gzip_static") && *program != "busybox";
                assert_eq!(two.counts().read_through, u64::from(!has_ranges), "{name}");
            }
            Fate::Unprotected(reason) => {
                let unprotected = || one.counts().unprotected.get(reason).copied();
                eventually("it is counted", || unprotected() == Some(1));
                curl.0.kill().unwrap();
            }
        }
    }
}

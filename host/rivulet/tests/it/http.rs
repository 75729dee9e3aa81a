//! Sends the same bytes to the file server and to nginx, and compares the answers. The rows are in
//! `tests/requests/`. Where nginx differs, the row names the clause of the RFC by which the file
//! server is right.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rivulet_cli::http::{Limits, Objects, Site, Uploads};
use rivulet_cli::serve::plain::listen;
use rivulet_client::{Config, Stack};
use rivulet_pktio::in_netns;
use rivulet_pktio::testing::Process;

use crate::exchange::{
    Connect, Duplex, Row, answers, parts, rows, store, store_hostile_names, tag, transcript,
};
use crate::rig::{Rig, SERVICE, url};

/// Requests that change nothing.
const REQUESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/requests/requests.txt");
/// Requests for names that break servers.
const NAMES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/requests/names.txt");
/// Requests that store something, in the order in which they are sent.
const UPLOADS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/requests/uploads.txt");
/// Removes the rights of root, which may read everything: tests run as root.
const BOUNDED: [&str; 2] =
    ["--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"];

fn nginx(dir: &Path, www: &Path) -> Process {
    let path = dir.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {path}/{what};\n"))
        .concat();
    let text = format!(
        "daemon off; master_process off; user root; pid {path}/pid; error_log {path}/log;\nevents {{}}\nhttp {{\n{temporary}\
         access_log off; default_type text/plain; absolute_redirect off;\nserver {{ listen unix:{path}/socket;\n\
         root {}; location / {{ dav_methods PUT; }} }}\n}}\n",
        www.display()
    );
    fs::write(dir.join("conf"), text).unwrap();
    let mut command = Command::new("setpriv");
    command.args(BOUNDED).arg("nginx").arg("-p").arg(dir).arg("-c").arg(dir.join("conf"));
    let process = command.arg("-e").arg(dir.join("log")).stderr(Stdio::null()).spawn();
    let process = Process(process.expect("nginx (scripts/setup.sh --test)"));
    let patience = Instant::now() + Duration::from_secs(20);
    while UnixStream::connect(dir.join("socket")).is_err() {
        assert!(Instant::now() < patience, "{}", fs::read_to_string(dir.join("log")).unwrap_or_default());
        std::thread::sleep(Duration::from_millis(20));
    }
    process
}

/// Starts a server in the server's namespace, with its user's read permissions only.
fn serve(rig: &Rig, flags: &[&str]) -> Process {
    let whole = rig.serve_command(&rig.www(), flags);
    let mut command = Command::new("setpriv");
    command.args(BOUNDED).arg(whole.get_program()).args(whole.get_args());
    rig.started(Process(command.spawn().unwrap()))
}

/// A connection of the kernel's TCP from the client's namespace.
fn by_tcp(rig: &Rig) -> Box<dyn Duplex + Send> {
    let to: SocketAddr = format!("{SERVICE}:80").parse().unwrap();
    Box::new(in_netns(Some(rig.client.name()), || TcpStream::connect(to)).unwrap().unwrap())
}

fn stack(rig: &Rig) -> Stack {
    in_netns(Some(rig.client.name()), || Stack::with_config(Config::default())).unwrap().unwrap()
}

fn by_rivulet(rig: &Rig, stack: &Stack) -> Box<dyn Duplex + Send> {
    let to = format!("{SERVICE}:80").parse().unwrap();
    Box::new(in_netns(Some(rig.client.name()), || stack.connect(to)).unwrap().unwrap())
}

fn by_nginx(dir: &Path) -> Box<dyn Duplex + Send> {
    Box::new(UnixStream::connect(dir.join("socket")).unwrap())
}

#[test]
fn requests_get_the_same_answers_as_nginx() {
    same_answers(REQUESTS, 300, &store);
}

#[test]
fn hostile_names_get_the_same_answers_as_nginx() {
    same_answers(NAMES, 200, &store_hostile_names);
}

/// Sends the requests of a table to the file server in its modes, and to nginx, each with its own
/// folder.
fn same_answers(table: &str, at_least: usize, store: &dyn Fn(&Path)) {
    let (Some(kernel), Some(stateless)) = (Rig::new(), Rig::new()) else { return };
    let theirs = tempfile::tempdir().unwrap();
    for www in [kernel.www(), stateless.www(), theirs.path().join("www")] {
        store(&www);
    }
    let _kernel = serve(&kernel, &["--plain", "kernel"]);
    let _stateless = serve(&stateless, &["--plain", "stateless"]);
    let _nginx = nginx(theirs.path(), &theirs.path().join("www"));
    let stack = stack(&stateless);
    let servers: [(&str, &Connect<'_>); 4] = [
        ("kernel", &|| by_tcp(&kernel)),
        ("stateless", &|| by_tcp(&stateless)),
        ("Rivulet", &|| by_rivulet(&stateless, &stack)),
        ("nginx", &|| by_nginx(theirs.path())),
    ];
    let text = fs::read_to_string(table).unwrap();
    let table = rows(&text);
    assert!(table.len() >= at_least);
    let tags = servers.map(|(_, connect)| tag(connect));
    let requests: Vec<Vec<_>> =
        table.iter().map(|row| tags.iter().map(|tag| parts(row.text, tag)).collect()).collect();
    check(&servers, &table, &answers(&servers, &requests));
}

/// Checks that the file server's answers equal the row's, and nginx's the row's column for it.
fn check(servers: &[(&str, &Connect<'_>)], table: &[Row<'_>], all: &[Vec<String>]) {
    let mut wrong = Vec::new();
    for (row, all) in table.iter().zip(all) {
        let (nginx, ours) = all.split_last().unwrap();
        if ours.iter().any(|ours| ours != row.want)
            || nginx != row.nginx
            || nginx == row.want && !row.clause.is_empty()
        {
            let names = servers.iter().zip(all).map(|((name, _), said)| format!("\n  {name}: {said}"));
            wrong.push(format!("{}\n  want: {}{}", row.text, row.want, names.collect::<String>()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), table.len(), wrong.join("\n"));
}

#[test]
fn uploads_get_the_same_answers_as_nginx() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&ours, &theirs] {
        store(&dir.path().join("www"));
    }
    let www = ours.path().join("www");
    let limits = Limits { body: 1000, ..Limits::default() };
    let uploads = Some(Uploads::open(&www, limits).unwrap());
    let site = Site { objects: Objects::open(&www).unwrap(), uploads };
    let address = listen("127.0.0.1:0".parse().unwrap(), site).unwrap();
    let _nginx = nginx(theirs.path(), &theirs.path().join("www"));
    let by_kernel = || Box::new(TcpStream::connect(address).unwrap()) as Box<dyn Duplex + Send>;
    let servers: [(&str, &Connect<'_>); 2] = [("kernel", &by_kernel), ("nginx", &|| by_nginx(theirs.path()))];
    let text = fs::read_to_string(UPLOADS).unwrap();
    let table = rows(&text);
    let tags = servers.map(|(_, connect)| tag(connect));
    // In order, because a request may see the file that an earlier one stored.
    let one = |row: &Row<'_>| {
        servers
            .iter()
            .zip(&tags)
            .map(|((_, connect), tag)| transcript(connect(), parts(row.text, tag)))
            .collect()
    };
    let all: Vec<Vec<String>> = table.iter().map(one).collect();
    check(&servers, &table, &all);
    assert_eq!(fs::read(www.join("ten.txt")).unwrap(), b"0123456789", "what was refused left it as it was");
}

#[test]
fn growing_log_is_sent_with_its_former_length() {
    let Some(rig) = Rig::new() else { return };
    let begun = rig.file("log", 20_000_000);
    let path = rig.www().join("log");
    let _server = rig.serve(&["--plain", "none"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut log = fs::File::options().append(true).open(&path).unwrap();
            while !stop.load(Ordering::Relaxed) {
                log.write_all(b"another line of the log\n").unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let out = rig.get(&[]).arg("-o").arg(rig.out()).arg(url("log")).output();
        stop.store(true, Ordering::Relaxed);
        let out = out.unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    });
    let (got, now) = (fs::read(rig.out()).unwrap(), fs::read(&path).unwrap());
    assert!(got.len() >= begun.len() && now.starts_with(&got), "{} bytes of {}", got.len(), now.len());
}

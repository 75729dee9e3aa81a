//! Unmodified clients download while the replica with their TLS connection is cut off and killed;
//! another process continues from the sealed state. Client, router and two replicas are network
//! namespaces, with nginx on each replica.

mod rack;
mod replica;

use std::{fs, path::Path, process::Command};

use rack::Rack;
use replica::{load, stored_at};
use rivulet_pktio::testing::{Process, eventually};

use crate::clients::SUITES;

const SIZE: usize = 20_000_000;

/// Most bytes that the first replica sends beyond the position at which it is to die, so that some
/// segments are in flight then.
const AHEAD: u64 = 1 << 20;

/// The process of the first replica: this test program, run again.
#[test]
#[ignore = "is run by other tests"]
fn first_replica() {
    let Ok(folder) = std::env::var("TLS_REPLICA") else { return };
    let number = |name| std::env::var(name).unwrap().parse().unwrap();
    replica::serve(Path::new(&folder), number("TLS_SUITE") as usize, number("TLS_LIMIT"));
}

/// A random number (SplitMix64).
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*seed ^ *seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ z >> 29
}

/// Downloads a large and a small object over one connection; its replica dies at several positions
/// of the large one. In the arguments, `{ca}`, `{big}`, `{small}`, `{folder}` and `{url}` are
/// replaced by files, their folder, and the service's address.
fn survive(program: &str, arguments: &[&str], places: usize) {
    if Command::new(program).arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no {program}");
        return;
    }
    let Some(mut rack) = Rack::new() else { return };
    let mut seed = 42;
    let big: Vec<u8> = (0..SIZE / 8).flat_map(|_| random(&mut seed).to_be_bytes()).collect();
    fs::write(rack.www().join("big"), &big).unwrap();
    fs::write(rack.www().join("small"), &big[..30_000]).unwrap();
    let (folder, _servers) = (rack.folder().to_owned(), rack.start_servers());
    for round in 0..places {
        let place = random(&mut seed) % (SIZE as u64 - 3 * AHEAD);
        let what = format!("{program}, round {round}, killed behind {place} bytes");
        let mut first = rack.start_first(round % SUITES.len(), place + AHEAD);
        let [got, small] = ["big", "small"].map(|name| folder.join(name));
        for file in [&got, &small] {
            let _ = fs::remove_file(file);
        }
        let names = [
            ("{ca}", folder.join("ca.pem").display().to_string()),
            ("{big}", got.display().to_string()),
            ("{folder}", folder.display().to_string()),
            ("{small}", small.display().to_string()),
            ("{url}", format!("https://{}", replica::SERVICE.trim_end_matches(":443"))),
        ];
        let mut command = rack.client().command(program);
        command.args(arguments.iter().map(|argument| {
            names.iter().fold((*argument).to_owned(), |text, (name, value)| text.replace(name, value))
        }));
        let connections = rack.client().counter("TcpActiveOpens");
        let mut client = Process(command.env("NO_PROXY", "*").env("no_proxy", "*").spawn().unwrap());
        eventually(&format!("the first part: {what}"), || {
            fs::metadata(&got).is_ok_and(|file| file.len() >= place) && stored_at(&folder).exists()
        });
        rack.cut();
        first.0.kill().unwrap();
        first.0.wait().unwrap();
        let state = load(&stored_at(&folder));
        let second = rack.adopt(state);
        eventually(&format!("the end: {what}"), || !client.lives());
        assert!(client.0.wait().unwrap().success(), "{what}");
        second.join().unwrap();
        assert!(fs::read(&got).unwrap() == big, "{what}: other bytes");
        assert!(fs::read(&small).unwrap() == big[..30_000], "{what}: other bytes of the second answer");
        assert_eq!(rack.client().counter("TcpActiveOpens"), connections + 1, "{what}: another connection");
        rack.mend();
    }
}

#[test]
fn curl_download_survives_death_at_any_position() {
    survive(
        "curl",
        &[
            "-q",
            "-sS",
            "-m",
            "60",
            "--cacert",
            "{ca}",
            "-o",
            "{big}",
            "{url}/big",
            "-o",
            "{small}",
            "{url}/small",
        ],
        20,
    );
}

#[test]
fn python_download_survives_death_of_replica() {
    const SCRIPT: &str = "
import http.client, shutil, ssl, sys
ca, url, big, small = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
connection = http.client.HTTPSConnection(url.removeprefix('https://'), context=context, timeout=60)
for path, name in ('/big', big), ('/small', small):
    connection.request('GET', path)
    with open(name, 'wb') as file:
        shutil.copyfileobj(connection.getresponse(), file)
    assert connection.sock, 'the connection was kept'
";
    survive("python3", &["-c", SCRIPT, "{ca}", "{url}", "{big}", "{small}"], 3);
}

#[test]
fn wget_download_survives_death_of_replica() {
    survive(
        "wget",
        &["-q", "-t", "1", "-T", "60", "--ca-certificate={ca}", "-P", "{folder}", "{url}/big", "{url}/small"],
        3,
    );
}

//! Real TLS clients.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use crate::backend::content;
use crate::{Rig, write_private};

const LENGTHS: [usize; 3] = [1, 100_000, 3_000_000];

/// Runs a program; `None` if it is not installed.
fn run(program: &str, arguments: &[String]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(arguments).env("NO_PROXY", "*").env("no_proxy", "*").stdin(Stdio::null());
    match command.output() {
        Ok(output) => Some(output),
        Err(_) => {
            eprintln!("SKIPPED: there is no {program}");
            None
        }
    }
}

/// Makes a program fetch several lengths over one connection; `{ca}`, `{url}` and the URLs for
/// `{urls}` are replaced.
fn fetch_with(program: &str, arguments: &[&str], connections: usize) {
    let rig = Rig::new();
    let url = format!("https://{}", rig.address());
    let ca = rig.authority();
    let mut all = Vec::new();
    for argument in arguments {
        if *argument == "{urls}" {
            all.extend(LENGTHS.map(|length| format!("{url}/{length}")));
        } else {
            all.push(argument.replace("{ca}", ca.to_str().unwrap()).replace("{url}", &url));
        }
    }
    let Some(output) = run(program, &all) else { return };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {errors}");
    assert!(output.stdout == LENGTHS.map(content).concat(), "{program} got other bytes");
    assert_eq!(rig.count("rivulet_tls_handshakes_total{version=\"1.3\"}"), connections as u64);
}

#[test]
fn curl_keeps_its_connection() {
    fetch_with("curl", &["-q", "-sS", "--max-time", "60", "--cacert", "{ca}", "{urls}"], 1);
}

#[test]
fn wget_keeps_its_connection() {
    fetch_with("wget", &["-q", "-t", "1", "-T", "60", "--ca-certificate={ca}", "-O", "-", "{urls}"], 1);
}

#[test]
fn python_keeps_its_connection() {
    const SCRIPT: &str = "
import http.client, ssl, sys
from urllib.parse import urlsplit
urls = [urlsplit(url) for url in sys.argv[2:]]
context = ssl.create_default_context(cafile=sys.argv[1])
connection = http.client.HTTPSConnection(urls[0].netloc, context=context, timeout=60)
for url in urls:
    connection.request('GET', url.path)
    sys.stdout.buffer.write(connection.getresponse().read())
";
    fetch_with("python3", &["-c", SCRIPT, "{ca}", "{urls}"], 1);
}

#[test]
fn node_keeps_its_connection() {
    const SCRIPT: &str = "
const https = require('https'), fs = require('fs');
const [ca, ...urls] = process.argv.slice(1);
const agent = new https.Agent({keepAlive: true, maxSockets: 1, ca: fs.readFileSync(ca)});
const next = () => {
  if (!urls.length) return agent.destroy();
  https.get(urls.shift(), {agent}, response => {
    response.on('data', data => fs.writeSync(1, data));
    response.on('end', () => setImmediate(next));
  });
};
next();
";
    fetch_with("node", &["-e", SCRIPT, "{ca}", "{urls}"], 1);
}

#[test]
fn go_keeps_its_connection() {
    const PROGRAM: &str = r#"package main

import ("crypto/tls"; "crypto/x509"; "io"; "net/http"; "os")

func main() {
	pem, _ := os.ReadFile(os.Args[1])
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	for _, url := range os.Args[2:] {
		response, err := client.Get(url)
		if err != nil { panic(err) }
		if _, err := io.Copy(os.Stdout, response.Body); err != nil { panic(err) }
		response.Body.Close()
	}
}
"#;
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("get.go"), folder.path().join("get"));
    fs::write(&source, PROGRAM).unwrap();
    let arguments = ["build", "-o", program.to_str().unwrap(), source.to_str().unwrap()].map(str::to_owned);
    let Some(output) = run("go", &arguments) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fetch_with(program.to_str().unwrap(), &["{ca}", "{urls}"], 1);
}

#[test]
fn curl_uploads_with_a_length_and_in_chunks() {
    let rig = Rig::new();
    let file = rig.folder.path().join("upload");
    fs::write(&file, content(2_000_000)).unwrap();
    let ca = rig.authority().to_str().unwrap().to_owned();
    for how in ["-XPOST", "-HTransfer-Encoding: chunked"] {
        let arguments = [
            "-q",
            "-sS",
            "--max-time",
            "60",
            "--cacert",
            &ca,
            how,
            "-HExpect: 100-continue",
            "--data-binary",
            &format!("@{}", file.display()),
            &format!("https://{}/echo", rig.address()),
        ]
        .map(str::to_owned);
        let Some(output) = run("curl", &arguments) else { return };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        if how == "-XPOST" {
            assert!(output.stdout == content(2_000_000));
        } else {
            // The server sends back the received coding.
            assert!(output.stdout.len() > 2_000_000 && output.stdout.ends_with(b"\r\n0\r\n\r\n"));
        }
    }
}

/// The output of `openssl s_client`; `None` without openssl.
fn s_client(rig: &Rig, arguments: &[&str]) -> Option<String> {
    let address = rig.address().to_string();
    let all = [&["s_client", "-connect", &address], arguments].concat();
    let output = run("openssl", &all.iter().map(|&a| a.to_owned()).collect::<Vec<_>>())?;
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn protocols_and_ciphers_match_documentation() {
    let rig = Rig::new();
    let Some(modern) = s_client(&rig, &["-alpn", "h2,http/1.1"]) else { return };
    assert!(modern.contains("TLSv1.3") && modern.contains("ALPN protocol: http/1.1"), "{modern}");
    assert!(s_client(&rig, &["-tls1_2"]).unwrap().contains("Secure Renegotiation IS supported"));
    for (arguments, cipher) in [
        (&["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"][..], "TLS_AES_128_GCM_SHA256"),
        (&["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"], "TLS_CHACHA20_POLY1305_SHA256"),
        (&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"], "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ] {
        let text = s_client(&rig, arguments).unwrap();
        assert!(text.contains(&format!("Cipher is {cipher}")), "{text}");
    }
    for refused in [
        &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"][..],
        &["-tls1", "-cipher", "ALL:@SECLEVEL=0"],
        // Cipher suites without forward secrecy, and with CBC.
        &["-tls1_2", "-cipher", "AES128-GCM-SHA256"],
        &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA256"],
        &["-tls1_2", "-cipher", "ECDHE-ECDSA-NULL-SHA:@SECLEVEL=0"],
    ] {
        let text = s_client(&rig, refused).unwrap();
        assert!(text.contains("Cipher is (NONE)"), "{refused:?}: {text}");
    }
    let text = s_client(&rig, &["-alpn", "h2"]).unwrap();
    assert!(text.contains("alert no application protocol"), "{text}");
}

/// Sends each command to `openssl s_client` once its output contains the text before the command.
/// Returns all output.
fn talk(rig: &Rig, arguments: &[&str], talk: &[(&str, &str)]) -> Option<String> {
    // openssl prints the results of commands on standard error.
    let mut client = Command::new("sh")
        .args(["-c", "exec openssl s_client \"$@\" 2>&1", "sh", "-connect", &rig.address().to_string()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let (mut input, mut output) = (client.stdin.take()?, client.stdout.take()?);
    let (mut text, mut block) = (String::new(), [0; 4096]);
    let mut seen = 0;
    for (awaited, command) in talk {
        while !text[seen..].contains(awaited) {
            let count = output.read(&mut block).unwrap();
            if count == 0 {
                return Some(text);
            }
            text += &String::from_utf8_lossy(&block[..count]);
        }
        seen = text.len();
        input.write_all(command.as_bytes()).unwrap();
    }
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).unwrap();
    let _ = client.wait();
    Some(text + &String::from_utf8_lossy(&rest))
}

const GET: &str = "GET /head HTTP/1.1\r\nHost: h\r\n\r\n";
const LAST: &str = "GET /head HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

#[test]
fn renegotiation_is_refused() {
    let rig = Rig::new();
    let steps = [("---\n", GET), ("GET /head", "R\n")];
    let Some(text) = talk(&rig, &["-tls1_2"], &steps) else { return };
    assert!(text.contains("no renegotiation"), "{text}");
    assert_eq!(rig.count("rivulet_tls_handshakes_total{version=\"1.2\"}"), 1);
    rig.wait_for("rivulet_tls_open", 0);
}

#[test]
fn openssl_updates_its_key_between_requests() {
    let rig = Rig::new();
    // `K` sends a KeyUpdate that asks for ours, `k` one that does not.
    let steps =
        [("---\n", GET), ("GET /head", "K\n"), ("KEYUPDATE", GET), ("GET /head", "k\n"), ("KEYUPDATE", LAST)];
    let Some(text) = talk(&rig, &["-tls1_3"], &steps) else { return };
    assert_eq!(text.matches("GET /head").count(), 3, "{text}");
    assert_eq!(rig.count("rivulet_tls_broken_total"), 0);
}

#[test]
fn openssl_resumes_at_another_replica_with_shared_ticket_keys() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("tickets");
    write_private(&keys, &"5a".repeat(32));
    let first = Rig::with(|config| config.files.ticket_keys = Some(keys.clone()));
    let certificates =
        crate::Certificate { chain: first.authority(), key: first.folder.path().join("first.key") };
    let second = Rig::with(|config| {
        config.files.ticket_keys = Some(keys.clone());
        config.files.certificates = vec![certificates];
    });
    let session = folder.path().join("session");
    let session = session.to_str().unwrap();
    for version in ["-tls1_3", "-tls1_2"] {
        let steps = [("---\n", LAST)];
        let Some(text) = talk(&first, &[version, "-sess_out", session], &steps) else { return };
        assert!(text.contains("New, TLSv1."), "{text}");
        let text = talk(&second, &[version, "-sess_in", session], &steps).unwrap();
        assert!(text.contains("Reused, TLSv1."), "{text}");
    }
    assert_eq!(second.count("rivulet_tls_resumed_total"), 2);
}

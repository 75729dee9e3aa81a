//! `cm-udp`: every style sends all its packets through its own calls, and reports the result.

use std::io::{BufRead, BufReader};
use std::process::{ChildStderr, Command, Output, Stdio};

use rivulet_pktio::testing::Process;
use serde_json::Value;

use crate::cm_serve::{ALICE, Rig};

/// Fits into a socket's buffer (about 768 bytes each, of 208 kB), so a receiver that pauses loses
/// none.
const COUNT: u64 = 200;
const SIZE: u64 = 300;

fn command(rig: &Rig, words: &str) -> Command {
    // A copy, because the user may have no access to the build folder.
    let program = rig.socket().with_file_name("cm-udp");
    if !program.exists() {
        std::fs::copy(env!("CARGO_BIN_EXE_cm-udp"), &program).unwrap();
    }
    let mut command = Command::new(program);
    command.args(words.split_whitespace()).env("RIVULET_CM", rig.socket());
    command
}

/// The receiver, its messages, and its address.
fn receiver(rig: &Rig) -> (Process, BufReader<ChildStderr>, String) {
    // Packets of the size that a network allows.
    rig.ns.ip("link set lo mtu 1500");
    let mut command = command(rig, "receive 127.0.0.1:0");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = rig.as_user(ALICE, || Process(command.spawn().unwrap()));
    let (mut line, mut said) = (String::new(), BufReader::new(process.0.stderr.take().unwrap()));
    said.read_line(&mut line).unwrap();
    let at = line.trim().strip_prefix("receiving at ").unwrap_or_else(|| panic!("{line}")).to_owned();
    (process, said, at)
}

fn run(rig: &Rig, words: &str) -> Output {
    let mut command = command(rig, words);
    rig.as_user(ALICE, || command.output().unwrap())
}

fn good(rig: &Rig, words: &str) -> Value {
    let out = run(rig, words);
    assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn bad(rig: &Rig, words: &str, code: i32, says: &str) {
    let out = run(rig, words);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(code) && text.contains(says), "{words}: {:?}: {text}", out.status);
}

#[test]
fn every_style_sends_all_packets_by_its_calls() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.serve("");
    let (mut receiver, _said, at) = receiver(&rig);
    let mut before = 0;
    for (style, echo) in [
        ("buffered", ""),
        ("alf", ""),
        ("alf", "--echo"),
        ("alf-noconnect", ""),
        ("bulk", ""),
        ("bulk", "--echo --flows 3"),
        ("rate", ""),
    ] {
        let words = format!("send {at} --style {style} --count {COUNT} --size {SIZE} --json {echo}");
        let report = good(&rig, &words);
        let number = |name: &str| report[name].as_u64().unwrap();
        let calls = |name: &str| report["calls"][name].as_u64().unwrap();
        assert_eq!(number("arrived") + number("lost"), COUNT, "{words}: {report}");
        assert_eq!(number("packets"), COUNT, "{words}: {report}");
        assert!(number("arrived") > COUNT / 2, "{words}: {report}");
        assert_eq!(report["proxied"], false);
        // The kernel counted each packet, and knows the outcome of each.
        let status = rig.status(ALICE);
        let sent = status["sent"].as_u64().unwrap();
        assert_eq!((sent - before, &status["outstanding"]), (COUNT * SIZE, &0.into()), "{words}");
        before = sent;
        let (request, notify, update) = (calls("request"), calls("notify"), calls("update"));
        match style {
            "alf" => assert!(request == COUNT && notify == 0 && update >= number("arrived"), "{report}"),
            "alf-noconnect" => assert!(request == COUNT && notify == COUNT, "{report}"),
            // The answers may arrive one by one.
            "bulk" => assert!((1..COUNT).contains(&request) && (1..=COUNT).contains(&update), "{report}"),
            "rate" => assert!(request == 0 && notify == 0 && update >= number("arrived"), "{report}"),
            _ => assert!(update >= number("arrived"), "{report}"),
        }
    }
    for echo in ["", "--echo"] {
        let words = format!("send {at} --style tcp --count {COUNT} --size {SIZE} --json {echo}");
        let report = good(&rig, &words);
        assert_eq!((&report["arrived"], &report["lost"]), (&COUNT.into(), &0.into()));
        assert!(
            report["packets"].as_u64().unwrap() > 0 && report["answers"].as_u64().unwrap() > 0,
            "{report}"
        );
    }
    assert_eq!(rig.status(ALICE)["sent"], before, "TCP is none of it");
    let said = run(&rig, &format!("send {at} --style alf --count 10"));
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.starts_with("10 of 10 arrived, 0 lost: 10 packets of up to 1000 bytes in "), "{said}");
    let mut out = BufReader::new(receiver.0.stdout.take().unwrap());
    assert!(receiver.stop().success());
    let mut last = String::new();
    out.read_line(&mut last).unwrap();
    assert!(last.contains(" and 2 connections; 0 datagrams were none of ours"), "{last}");
}

#[test]
fn errors_have_their_exit_codes() {
    let Some(rig) = Rig::new() else { return };
    let (receiver, _said, at) = receiver(&rig);
    bad(&rig, &format!("send {at} --style alf"), 3, "is `rivulet cm serve` running?");
    let _daemon = rig.serve("");
    bad(&rig, &format!("send {at} --style alf --size 2000"), 1, "up to 1472 bytes");
    bad(&rig, &format!("send {at} --style alf --size 10"), 2, "16..=65507");
    bad(&rig, &format!("send {at} --style alf --flows 3"), 2, "--flows is of --style bulk");
    bad(&rig, "send 127.0.0.1 --style alf", 2, "invalid");
    bad(
        &rig,
        &format!("send {at} --style tcp-cm --congestion nosuch"),
        1,
        "no congestion control is called \"nosuch\"",
    );
    bad(&rig, &format!("receive {at}"), 1, "cannot receive at");
    assert!(receiver.stop().success());
    for style in ["buffered", "alf", "bulk", "rate", "tcp"] {
        bad(&rig, &format!("send {at} --style {style}"), 4, &at);
    }
}

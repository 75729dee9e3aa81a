//! The client library from a program: tasks, and parallel requests on one connection. Needs root; skipped
//! where namespaces cannot be made.

use std::io::Read;

use crate::rig::{Rig, SERVICE, request};
use rivulet_client::Stack;
use rivulet_pktio::in_netns;

#[test]
fn a_task_downloads() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let content = rig.file("file", 2_000_000);
    let answer = in_netns(Some(rig.client.name()), || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stack = Stack::start().unwrap();
            let mut stream = stack.connect_async(format!("{SERVICE}:80").parse().unwrap()).await.unwrap();
            stream.write_all(request("file").as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer
        })
    });
    assert!(answer.unwrap().ends_with(&content));
}

#[test]
fn requests_in_parallel_on_one_connection() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let contents: Vec<Vec<u8>> = (0..5).map(|i| rig.file(&format!("f{i}"), 100_000 + i)).collect();
    let answers = in_netns(Some(rig.client.name()), || {
        let stack = Stack::start().unwrap();
        let stream = stack.connect(format!("{SERVICE}:80").parse().unwrap()).unwrap();
        let mut subs: Vec<_> =
            (0..5).map(|i| stream.request(request(&format!("f{i}")).as_bytes()).unwrap()).collect();
        // Read in the other order: nobody waits for anybody.
        let mut answers: Vec<Vec<u8>> = Vec::new();
        for sub in subs.iter_mut().rev() {
            let mut answer = Vec::new();
            sub.read_to_end(&mut answer).unwrap();
            answers.push(answer);
        }
        answers.reverse();
        answers
    });
    for (answer, content) in answers.unwrap().iter().zip(&contents) {
        assert!(answer.ends_with(content), "{} octets", answer.len());
    }
}

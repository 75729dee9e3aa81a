//! The client library, used from a program: async tasks, and parallel requests on one connection.
//! Needs root; skipped if namespaces cannot be created.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::rig::{Rig, SERVICE, request};
use rivulet_client::{ConnectError, MAX_CONNECTIONS, Stack};
use rivulet_pktio::in_netns;
use rustix::process::{Resource, getrlimit, setrlimit};

#[test]
fn async_task_downloads_a_file() {
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
fn parallel_requests_use_one_connection() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let contents: Vec<Vec<u8>> = (0..5).map(|i| rig.file(&format!("f{i}"), 100_000 + i)).collect();
    let answers = in_netns(Some(rig.client.name()), || {
        let stack = Stack::start().unwrap();
        let stream = stack.connect(format!("{SERVICE}:80").parse().unwrap()).unwrap();
        let mut subs: Vec<_> =
            (0..5).map(|i| stream.request(request(&format!("f{i}")).as_bytes()).unwrap()).collect();
        // Read in reverse order: no stream waits for another.
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

/// However often a task polls, one waker is stored for it, and the last one is woken.
#[test]
fn repeated_polls_store_one_waker() {
    use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
    struct Silent;
    impl Wake for Silent {
        fn wake(self: Arc<Self>) {}
    }
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let content = rig.file("file", 1000);
    in_netns(Some(rig.client.name()), || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stack = Stack::start().unwrap();
            let mut stream = stack.connect_async(format!("{SERVICE}:80").parse().unwrap()).await.unwrap();
            let silent = Arc::new(Silent);
            let waker = Waker::from(silent.clone());
            let mut octets = [0; 2000];
            for _ in 0..1000 {
                let mut into = ReadBuf::new(&mut octets);
                let pending = Pin::new(&mut stream).poll_read(&mut Context::from_waker(&waker), &mut into);
                assert!(pending.is_pending());
            }
            assert!(Arc::strong_count(&silent) <= 3, "{} wakers are kept", Arc::strong_count(&silent));
            stream.write_all(request("file").as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(&content) {
                let mut into = ReadBuf::new(&mut octets);
                let read = poll_fn(|context| match Pin::new(&mut stream).poll_read(context, &mut into) {
                    Poll::Ready(read) => Poll::Ready(read),
                    Poll::Pending => Poll::Pending,
                });
                read.await.unwrap();
                answer.extend_from_slice(into.filled());
            }
        });
    })
    .unwrap();
}

/// A stack's load counts open streams only, even after many former ones.
#[test]
fn only_open_streams_count_against_the_limit() {
    let Some(rig) = Rig::new() else { return };
    rig.server.ip(&format!("addr add {SERVICE}/32 dev lo"));
    in_netns(Some(rig.client.name()), || {
        let mut files = getrlimit(Resource::Nofile);
        files.current = files.maximum;
        setrlimit(Resource::Nofile, files).unwrap();
        if files.current.is_some_and(|most| most < MAX_CONNECTIONS as u64 + 1000) {
            eprintln!("SKIPPED: {files:?} descriptors");
            return;
        }
        let stack = Stack::start().unwrap();
        // Each connection has another remote port, because one address has fewer local ports.
        let remote = |n: usize| format!("{SERVICE}:{}", 1 + n).parse().unwrap();
        let mut all: Vec<_> = (0..MAX_CONNECTIONS).map(|n| stack.connect(remote(n)).unwrap()).collect();
        assert!(matches!(stack.connect(remote(0)), Err(ConnectError::TooMany)));
        drop(all.pop());
        let again = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            stack.connect(remote(MAX_CONNECTIONS)).is_ok()
        });
        assert!(again, "a place is free again");
    })
    .unwrap();
}

/// A server of plain TCP that sends first, and reads nothing before the client has read that.
#[test]
fn plain_tcp_is_read_while_early_writes_wait() {
    const EARLY: usize = 200_000;
    let Some(rig) = Rig::new() else { return };
    rig.server.ip(&format!("addr add {SERVICE}/32 dev lo"));
    let (told, heard) = channel();
    let server = in_netns(Some(rig.server.name()), || {
        let listener = TcpListener::bind(format!("{SERVICE}:80")).unwrap();
        socket2::SockRef::from(&listener).set_recv_buffer_size(4096).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"hello").unwrap();
            heard.recv_timeout(Duration::from_secs(60)).expect("the greeting is read");
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            all
        })
    })
    .unwrap();
    in_netns(Some(rig.client.name()), || {
        let stack = Stack::start().unwrap();
        let stream = stack.connect(format!("{SERVICE}:80").parse().unwrap()).unwrap();
        (&stream).write_all(&vec![7; EARLY]).unwrap();
        let mut greeting = [0; 5];
        (&stream).read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"hello");
        told.send(()).unwrap();
        (&stream).write_all(&[8; 10]).unwrap();
        stream.finish();
        let got = server.join().unwrap();
        assert_eq!(got.len(), EARLY + 10);
        assert!(got[..EARLY].iter().all(|b| *b == 7) && got[EARLY..] == [8; 10], "in order");
    })
    .unwrap();
}

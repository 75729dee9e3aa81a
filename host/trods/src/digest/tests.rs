//! Tests of [`Digests`] against a fake server that is slow and changes its content.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicU8;

use rivulet_pktio::testing::eventually;

use super::queue::MAX_WAITING;
use super::*;

const SIZE: usize = 100_000;
const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 1, 7));

/// A server with objects that consist of this byte. It sends `/slow` one byte at a time.
fn serve(byte: &Arc<AtomicU8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, byte) = (listener.local_addr().unwrap(), Arc::clone(byte));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), byte) = (stream, byte.load(Ordering::Relaxed)) else { return };
            std::thread::spawn(move || answer(stream, byte));
        }
    });
    address
}

fn answer(mut stream: TcpStream, byte: u8) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let is_slow = lines.next().is_some_and(|line| line.is_ok_and(|line| line.starts_with("GET /slow ")));
    lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).for_each(drop);
    write!(stream, "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: {SIZE}\r\n\r\n")?;
    if !is_slow {
        return stream.write_all(&vec![byte; SIZE]);
    }
    for _ in 0..SIZE {
        stream.write_all(&[byte])?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn wanted(service: SocketAddr, target: &str) -> Wanted {
    let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
    Wanted::new(service, request.as_bytes(), b"\"x\"", None, SIZE as u64).unwrap()
}

fn client(n: u8) -> Option<IpAddr> {
    Some([192, 0, n, 7].into())
}

/// A file may be overwritten in place with its modification time kept.
#[test]
fn stale_digest_is_recomputed_for_waiting_client() {
    let byte = Arc::new(AtomicU8::new(1));
    let (digests, object) = (Digests::default(), wanted(serve(&byte), "/a"));
    let _worker = digests.start(None).unwrap();
    let of = |byte| Digest(shorten(blake3::Hasher::new().update(&[byte; SIZE])));
    let known = |byte| digests.look_up(&object, CLIENT) == Knowledge::Digest(of(byte));
    eventually("it is made", || known(1));
    byte.store(2, Ordering::Relaxed);
    assert!(known(1), "it was made a moment ago");
    let age = || digests.state().known.get_mut(&object.name).unwrap().at -= STALE;
    age();
    assert_eq!(digests.look_up(&object, CLIENT), Knowledge::Asked, "nothing of before is believed");
    eventually("it is made again", || known(2));
    // The digest is still fresh, and no client waits, so the worker computes it later.
    byte.store(3, Ordering::Relaxed);
    age();
    assert_eq!(digests.look_for(&object), Knowledge::Digest(of(2)));
    eventually("it is made again", || known(3));
}

#[test]
fn slow_object_does_not_block_other_digests() {
    let service = serve(&Arc::default());
    let (digests, [slow, other]) =
        (Digests::default(), ["/slow", "/a"].map(|target| wanted(service, target)));
    let _worker = digests.start(None).unwrap();
    assert_eq!(digests.look_for(&slow), Knowledge::Asked);
    assert_eq!(digests.look_for(&other), Knowledge::Asked);
    eventually("the other is there", || digests.has_digest(&other));
    assert_eq!(digests.look_for(&slow), Knowledge::Unavailable, "it was given up");
}

#[test]
fn client_fills_at_most_a_quarter_of_the_queue() {
    let (digests, service) = (Digests::default(), "10.9.0.1:80".parse().unwrap());
    let object = |n: usize| wanted(service, &format!("/{n}"));
    let waiting = || digests.state().idle.objects.len();
    for n in 0..MAX_WAITING {
        digests.ask(&object(n), false, client(1));
    }
    assert_eq!(waiting(), MAX_WAITING / 4);
    for n in 0..3 {
        digests.ask(&object(MAX_WAITING + n), false, client(2));
    }
    assert_eq!(waiting(), MAX_WAITING / 4 + 3);
    let next = || digests.next().unwrap().2;
    assert_eq!(
        [next(), next(), next(), next(), next(), next(), next()],
        [1, 2, 1, 2, 1, 2, 1].map(client),
        "in turn"
    );
    // Objects that left the queue make room for new ones.
    for n in 0..MAX_WAITING {
        digests.ask(&object(2 * MAX_WAITING + n), false, client(1));
    }
    assert_eq!(waiting(), MAX_WAITING / 4);
}

#[test]
fn urgent_queue_is_shared_in_turns() {
    let (digests, service) = (Digests::default(), "10.9.0.1:80".parse().unwrap());
    let object = |n: usize| wanted(service, &format!("/{n}"));
    let look_up = |n, client: u8| digests.look_up(&object(n), [192, 0, client, 7].into());
    let waiting = || digests.state().urgent.objects.len();
    for n in 0..MAX_WAITING {
        assert_eq!(look_up(n, 1), Knowledge::Asked);
    }
    assert_eq!(waiting(), MAX_WAITING / 4);
    // An object that another client fetched moves to the queue of objects that clients wait for.
    digests.ask(&object(MAX_WAITING), false, client(3));
    for n in 0..3 {
        look_up(MAX_WAITING + n, 2);
    }
    assert_eq!((waiting(), digests.state().idle.objects.len()), (MAX_WAITING / 4 + 3, 0));
    let next = || digests.next().unwrap().0;
    let want = [0, MAX_WAITING, 1, MAX_WAITING + 1, 2, MAX_WAITING + 2, 3].map(object);
    assert_eq!([(); 7].map(|()| next()), want);
    // Objects that left the queue make room for new ones.
    for n in 0..MAX_WAITING {
        look_up(2 * MAX_WAITING + n, 1);
    }
    assert_eq!(waiting(), MAX_WAITING / 4);
}

#[test]
fn objects_are_listed_while_they_are_served() {
    let service = serve(&Arc::default());
    let (digests, object) = (Digests::default(), wanted(service, "/a"));
    let _worker = digests.start(None).unwrap();
    let listed = || digests.listed(&[service]).len();
    eventually("it is made", || digests.look_for(&object) != Knowledge::Asked);
    assert_eq!(listed(), 0, "no client was served it");
    digests.ask(&object, false, client(1));
    assert_eq!(listed(), 1);
    digests.state().known.get_mut(&object.name).unwrap().served = Some(Instant::now() - STALE);
    assert_eq!(listed(), 0, "not lately");
    digests.ask(&object, false, client(1));
    assert_eq!(listed(), 1);
}

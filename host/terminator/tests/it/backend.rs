//! A server of plain HTTP/1.1 with a path for each behaviour that the tests need.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// The bytes of the response to `/N`.
pub fn content(length: usize) -> Vec<u8> {
    (0..length).map(|i| ((i * 31) >> 3) as u8).collect()
}

#[derive(Default)]
struct State {
    stop: AtomicBool,
    connections: AtomicUsize,
    requests: AtomicUsize,
    dropped: AtomicUsize,
}

pub struct Backend {
    address: SocketAddr,
    state: Arc<State>,
}

impl Backend {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stop.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), shared) = (stream, shared.clone()) else { continue };
                shared.connections.fetch_add(1, Ordering::Relaxed);
                // An error means that the test has ended the connection.
                thread::spawn(move || serve(&stream, &shared));
            }
        });
        Self { address, state }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: &TcpStream, state: &State) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut served = 0;
    loop {
        let mut head = String::new();
        // A header of the PROXY protocol begins with two line ends.
        while head.len() <= 4 || !head.ends_with("\r\n\r\n") {
            let mut line = Vec::new();
            if reader.read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            // The header of the PROXY protocol is not UTF-8.
            head.extend(line.iter().map(|&b| char::from(b)));
        }
        state.requests.fetch_add(1, Ordering::Relaxed);
        served += 1;
        // So many times it ends before the answer.
        let drops = head.split_once("/drop/").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        if drops.is_some_and(|drops: usize| state.dropped.fetch_add(1, Ordering::Relaxed) < drops) {
            return Ok(());
        }
        if !answer(stream, &mut reader, &head, served)? {
            return Ok(());
        }
    }
}

/// Answers one request; returns whether the connection stays open.
fn answer(mut stream: &TcpStream, reader: &mut impl BufRead, head: &str, served: usize) -> io::Result<bool> {
    let field = |name: &str| {
        let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}: ")));
        line.map(|line| line[name.len() + 2..].to_owned())
    };
    let line = head.lines().find(|line| line.contains(" HTTP/1.")).unwrap_or_default();
    let (method, rest) = line.split_once(' ').unwrap_or_default();
    let path = rest.split_once(' ').unwrap_or_default().0;
    let (kind, number) =
        path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
    let number = number.parse().unwrap_or(0);
    let whole = |mut stream: &TcpStream, body: &[u8]| -> io::Result<()> {
        let head = format!("HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: {}\r\n\r\n", body.len());
        let body = if method == "HEAD" { &[] } else { body };
        stream.write_all(&[head.as_bytes(), body].concat())
    };
    match kind {
        "head" => whole(stream, head.as_bytes())?,
        "inputs" => stream
            .write_all(b"HTTP/1.1 200 OK\r\nX-TRODS: 7\r\nETag: \"e\"\r\nContent-Length: 4\r\n\r\nmade")?,
        "cached" => {
            stream.write_all(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\nETag: \"e\"\r\n\r\n")?
        }
        "chunked" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            for part in content(number).chunks(10_000) {
                write!(stream, "{:x}\r\n", part.len())?;
                stream.write_all(part)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")?;
        }
        "close" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            stream.write_all(&content(number))?;
            return Ok(false);
        }
        "cut" => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", number + 1)?;
            stream.write_all(&content(number))?;
            return Ok(false);
        }
        "large" => {
            // More bytes than a 32-bit number can count; the content repeats.
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {number}\r\n\r\n")?;
            let part = content(1 << 20);
            let mut left = number;
            while left > 0 {
                let count = left.min(part.len());
                stream.write_all(&part[..count])?;
                left -= count;
            }
        }
        "echo" => {
            if field("expect").is_some() {
                stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            let mut body = Vec::new();
            match field("content-length") {
                Some(length) => {
                    body.resize(length.parse().unwrap(), 0);
                    reader.read_exact(&mut body)?;
                }
                None => {
                    while !body.ends_with(b"0\r\n\r\n") {
                        if reader.read_until(b'\n', &mut body)? == 0 {
                            return Ok(false);
                        }
                    }
                }
            }
            whole(stream, &body)?;
        }
        // Answers before it has read the body.
        "early" => {
            stream
                .write_all(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nno\n")?;
            return Ok(false);
        }
        "garbage" => {
            stream.write_all(b"SSH-2.0-x\r\n\r\n")?;
            return Ok(false);
        }
        "twice" => {
            let response = |body| format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{body}");
            stream.write_all((response("a") + &response("b")).as_bytes())?;
        }
        // Closes without an answer if the connection has served a request before.
        "stale" if served > 1 => return Ok(false),
        "upgrade" => {
            stream.write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n",
            )?;
            let mut block = [0; 4096];
            loop {
                let count = reader.read(&mut block)?;
                if count == 0 {
                    stream.write_all(b"end")?;
                    return Ok(false);
                }
                stream.write_all(&block[..count])?;
            }
        }
        "never" => thread::sleep(std::time::Duration::from_secs(3600)),
        length => whole(stream, &content(length.parse().unwrap_or(10)))?,
    }
    Ok(field("connection").is_none_or(|value| value != "close"))
}

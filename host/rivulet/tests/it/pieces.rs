//! Clients that write a request in pieces, through `rivulet run`. Needs root; skipped if namespaces
//! cannot be created.

use crate::rig::{Rig, SERVICE};

/// Sends a request as described by `argv[2]`, and prints the answer.
const CLIENT: &str = r#"
import socket, sys, time
address, how, nodelay, path = sys.argv[1], sys.argv[2], sys.argv[3] == "1", sys.argv[4]
s = socket.create_connection((address, 80), 30)
s.settimeout(30)
if nodelay:
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
head = f"GET /{path} HTTP/1.1\r\nHost: {address}\r\nCookie: {'c' * 300}\r\nConnection: close\r\n\r\n".encode()
if how == "bytes":
    pieces, pause = [bytes([b]) for b in head], 0.001
elif how == "halves":
    pieces, pause = [head[:9], head[9:40], head[40:]], 0.3
else:
    pieces, pause = [head[:-1], head[-1:]], 0.3
for piece in pieces:
    s.sendall(piece)
    time.sleep(pause)
out = b""
while block := s.recv(65536):
    out += block
sys.stdout.buffer.write(out)
"#;

#[test]
fn requests_in_pieces_are_answered() {
    let Some(rig) = Rig::new() else { return };
    let content = rig.file("file", 300_000);
    let _server = rig.serve(&[]);
    for how in ["bytes", "halves", "last"] {
        for nodelay in ["0", "1"] {
            let out = rig.run(&["python3", "-c", CLIENT, SERVICE, how, nodelay, "file"]);
            let error = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{how} {nodelay}: {error}");
            assert!(out.stdout.starts_with(b"HTTP/1.1 200 "), "{how} {nodelay}: {error}");
            assert!(out.stdout.ends_with(&content), "{how} {nodelay}: {} bytes", out.stdout.len());
            assert!(!error.contains("connection"), "{how} {nodelay}: {error}");
        }
    }
}

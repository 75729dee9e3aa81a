//! A server application in Rust: pictures with a mark of each client's own (Trickles paper, section 6.2).
//!
//! `watermark DIR INTERFACE ADDRESS:PORT KEYS` answers each GET request with a JPEG of DIR that carries the client's
//! address. The application keeps nothing of a connection. Each response follows from its output continuation, so a
//! replica that starts in the middle of a download continues it byte for byte. `rivulet serve --watermark` is the same for
//! all of HTTP; here a connection has one request, which names a picture.
//!
//! Needs `CAP_NET_RAW` and `CAP_NET_ADMIN`. KEYS is a file of `rivulet keygen`, the same at all replicas.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rivulet_packet::Consumed;
use rivulet_pktio::{Interface, IoChoice};
use rivulet_server::keys::KeySet;
use rivulet_server::service::{Plain, Service};
use rivulet_server::{Application, Config, EventKind, Minisocket, Server, incarnation};
use rivulet_transport::server::{Answer, Head, InputEvent, Refusal, Reply};
use rivulet_transport::{MAX_UCONT, UserContinuation, operation_id};
use rivulet_watermark::{Picture, Places};

/// Longest payload of a packet, bytes.
const MAX_PAYLOAD: usize = 9000;
/// Each stream's output begins at a multiple of 2^48.
const STREAM_BITS: u32 = 48;

/// Identity of a picture's content.
type Hash = [u8; 16];

/// A file of the folder, and the index of it that all clients share.
struct Original {
    file: Vec<u8>,
    picture: Picture,
}

/// The application.
pub struct MarkedPictures {
    names: HashMap<String, Hash>,
    originals: HashMap<Hash, Original>,
    /// Buffer for the data of a packet.
    data: Vec<u8>,
}

/// A response, as its output continuation holds it: nothing for a 404, else the original's hash and the client's places.
struct Response(Option<(Hash, Places)>);

impl Response {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some((hash, places)) = &self.0 {
            out.extend_from_slice(hash);
            places.encode(&mut out);
        }
        out
    }

    fn decode(opaque: &[u8]) -> Option<Response> {
        let Some((hash, places)) = opaque.split_first_chunk() else {
            return opaque.is_empty().then_some(Response(None));
        };
        let (places, rest) = Places::decode(places)?;
        rest.is_empty().then_some(Response(Some((*hash, places))))
    }

    fn head(&self) -> String {
        let (status, length) = match &self.0 {
            Some((_, places)) => ("200 OK", places.len()),
            None => ("404 Not Found", 0),
        };
        // A shared cache must not send one client's mark to another client.
        let headers = "Content-Type: image/jpeg\r\nCache-Control: private\r\nConnection: close";
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n\r\n")
    }

    fn len(&self) -> u64 {
        self.head().len() as u64 + self.0.as_ref().map_or(0, |(_, places)| places.len())
    }
}

impl MarkedPictures {
    /// Indexes the pictures of a folder. Other files are left out.
    pub fn open(folder: &Path) -> std::io::Result<MarkedPictures> {
        let (mut names, mut originals) = (HashMap::new(), HashMap::new());
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let Ok(file) = std::fs::read(&path) else { continue };
            match Picture::read(&file) {
                Ok(picture) => {
                    let hash = *blake3::hash(&file).as_bytes().first_chunk().expect("32 bytes");
                    names.insert(name.to_owned(), hash);
                    originals.insert(hash, Original { file, picture });
                }
                Err(error) => eprintln!("{}: {error}", path.display()),
            }
        }
        Ok(MarkedPictures { names, originals, data: vec![0; MAX_PAYLOAD] })
    }

    /// The response to a whole request of this client.
    fn respond(&self, request: &[u8], client: SocketAddr) -> Response {
        let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let name = std::str::from_utf8(line).ok().and_then(|line| {
            line.strip_prefix("GET /").and_then(|rest| rest.split_once(" HTTP/")).map(|(name, _)| name)
        });
        let hash = name.and_then(|name| self.names.get(name));
        Response(hash.map(|hash| {
            let text = client.ip().to_canonical().to_string();
            (*hash, self.originals[hash].picture.mark(text.as_bytes()))
        }))
    }

    /// Bytes of a response that begins at `start` in the output, for the packet of `head`.
    fn read<'d>(
        &self,
        opaque: &[u8],
        start: u64,
        offset: u64,
        room: usize,
        data: &'d mut [u8],
    ) -> Answer<'d> {
        let Some(response) = Response::decode(opaque) else {
            return Answer::Error { code: 400, message: "a continuation of another service" };
        };
        let at = offset.saturating_sub(start);
        let Some(left) = response.len().checked_sub(at) else {
            return Answer::Error { code: 416, message: "beyond the end of the response" };
        };
        let length = (room.min(data.len()) as u64).min(left) as usize;
        let data = &mut data[..length];
        let text = response.head();
        let of_head = text.as_bytes().get(at as usize..).unwrap_or_default();
        let (in_head, in_picture) = data.split_at_mut(of_head.len().min(length));
        in_head.copy_from_slice(&of_head[..in_head.len()]);
        if let Some((hash, places)) = &response.0 {
            // Another replica may have the picture: the client asks again.
            let Some(Original { file, picture }) = self.originals.get(hash) else {
                return Answer::NotMine { code: 404 };
            };
            let at = at.saturating_sub(text.len() as u64);
            let source = |from: u64, out: &mut [u8]| {
                let from = from as usize;
                file.get(from..from + out.len()).map(|bytes| out.copy_from_slice(bytes)).ok_or(())
            };
            if picture.read_marked(places, at, in_picture, source).is_err() {
                return Answer::NotMine { code: 404 };
            }
        }
        Answer::Data { offset, data, end: length as u64 == left }
    }

    /// The continuations to send for the input of an event, and the offset up to which it is consumed.
    fn receive(
        &self,
        msk: &Minisocket<'_, '_>,
        input: &InputEvent<'_>,
    ) -> Result<(Vec<Vec<u8>>, u64), Refusal> {
        let behind = input.offset + input.data.len() as u64;
        if input.continuation.is_some() {
            // Input behind the request is ignored.
            return Ok((Vec::new(), behind));
        }
        if !input.data.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            // The client sends it again with more.
            return Ok((Vec::new(), input.offset));
        }
        let response = self.respond(input.data, msk.client());
        Ok((seal(msk, input, &response)?, behind))
    }

    fn answer(&self, msk: &mut Minisocket<'_, '_>, data: &mut [u8]) -> Result<(), Refusal> {
        let input = msk.input()?;
        let received = input.as_ref().map(|input| self.receive(msk, input)).transpose()?;
        // The continuations and the acknowledgement of the input go into the first response that can carry them.
        let fits = |head: &Head| head.is_for_application() && head.carries_input_and_token();
        let place = msk.heads().iter().position(fits);
        for index in 0..msk.heads().len() {
            let head = msk.heads()[index];
            if !head.is_for_application() {
                continue;
            }
            let mut reply = Reply::default();
            let sealed: Vec<&[u8]>;
            if let (Some(input), Some((continuations, behind)), true) =
                (&input, &received, place == Some(index))
            {
                sealed = continuations.iter().map(Vec::as_slice).collect();
                reply.uconts = &sealed;
                reply.consumed = Some(Consumed { stream: input.stream, offset: *behind });
            }
            let room = head.room.saturating_sub(reply.overhead());
            if let Some(want) = head.want {
                reply.answer = match msk.output_continuation(index) {
                    Ok(c) => {
                        let room = room.min(want.length as usize);
                        self.read(c.opaque, c.valid_start, want.offset, room, data)
                    }
                    Err(refusal) => refusal.answer(),
                };
            }
            if let Err(error) = msk.send(index, &reply) {
                eprintln!("response not sent: {error}");
            }
        }
        Ok(())
    }
}

/// Seals two continuations: one for input behind the request, and one for the response.
fn seal(
    msk: &Minisocket<'_, '_>,
    input: &InputEvent<'_>,
    response: &Response,
) -> Result<Vec<Vec<u8>>, Refusal> {
    let opaque = response.encode();
    let start = u64::from(input.stream) << STREAM_BITS;
    let (stream, behind) = (input.stream, input.offset + input.data.len() as u64);
    let after = UserContinuation {
        input: true,
        stream,
        valid_start: behind,
        valid_end: behind,
        identity: operation_id(msk.connection(), stream, behind),
        opaque: &[],
    };
    let output = UserContinuation {
        input: false,
        stream,
        valid_start: start,
        valid_end: start + response.len(),
        identity: *blake3::hash(&opaque).as_bytes().first_chunk().expect("32 bytes"),
        opaque: &opaque,
    };
    let seal = |what: &UserContinuation<'_>| -> Result<Vec<u8>, Refusal> {
        let mut out = [0; MAX_UCONT];
        let length = msk.seal(what, &mut out)?;
        Ok(out[..length].to_vec())
    };
    Ok(vec![seal(&after)?, seal(&output)?])
}

impl Application for MarkedPictures {
    fn event(&mut self, msk: &mut Minisocket<'_, '_>) -> Result<(), Refusal> {
        if msk.kind() == EventKind::Close {
            return Ok(());
        }
        let mut data = std::mem::take(&mut self.data);
        let result = self.answer(msk, &mut data);
        self.data = data;
        result
    }
}

/// Serves the pictures of a folder at an address until `stopped`.
pub fn serve(
    folder: &Path,
    interface: Interface,
    address: SocketAddr,
    keys: &Path,
    stopped: impl Fn() -> bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let service =
        Service::standalone("pictures", vec![address.ip()], address.port(), KeySet::read(keys)?, Plain::None);
    service.check()?;
    let mut pictures = MarkedPictures::open(folder)?;
    let config =
        Config { interface, services: vec![service], incarnation: incarnation(), io: IoChoice::default() };
    let mut server = Server::open(&config)?;
    while !stopped() {
        server.turn(&mut pictures, Duration::from_millis(50));
    }
    server.leave(&mut pictures);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, device, address, keys] = &arguments[..] else {
        return Err("usage: watermark DIR INTERFACE ADDRESS:PORT KEYS".into());
    };
    serve(folder.as_ref(), Interface::new(None, device)?, address.parse()?, keys.as_ref(), || false)
}

//! The connection from an adopter to its local server, and the pipe through which the server's
//! bytes reach the client without a copy.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rivulet_pktio::{begin_connection, transparent};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

/// Default capacity of a Linux pipe, bytes.
const PIPE: usize = 65_536;

/// A connection to the local server, possibly still being opened.
#[derive(Debug)]
pub(super) struct Origin {
    stream: TcpStream,
    input: Vec<u8>,
    ended: bool,
    spoken: bool,
    /// Whether the server accepted the connection.
    connected: bool,
}

impl Origin {
    /// Connects to the server, from the client's address if one is given ([`transparent`]).
    pub fn connect(address: SocketAddr, client: Option<IpAddr>) -> io::Result<Origin> {
        if let Some(client) = client {
            return Ok(Origin::of(transparent::connect_as(client, address)?));
        }
        Ok(Origin::of(begin_connection(address)?))
    }

    fn of(stream: TcpStream) -> Origin {
        Origin { stream, input: Vec::new(), ended: false, spoken: false, connected: false }
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Bytes that were read from the server and not consumed yet.
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Whether the server accepted the connection.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Whether the server has sent any byte.
    pub fn has_spoken(&self) -> bool {
        self.spoken
    }

    pub fn consume(&mut self, count: usize) {
        self.input.drain(..count);
    }

    /// Reads the available bytes, at most `most`.
    pub fn fill(&mut self, most: usize) -> io::Result<()> {
        let mut chunk = [0; 4096];
        while self.input.len() < most && !self.ended {
            let room = chunk.len().min(most - self.input.len());
            match self.stream.read(&mut chunk[..room]) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    self.input.extend_from_slice(&chunk[..count]);
                    self.spoken = true;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Drops at most this many bytes and returns their number. Both end of stream and no available
    /// byte are errors.
    pub fn discard(&mut self, most: u64) -> io::Result<u64> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if !self.input.is_empty() {
            let count = most.min(self.input.len());
            self.consume(count);
            return Ok(count as u64);
        }
        let mut chunk = [0; PIPE];
        let most = most.min(chunk.len());
        match self.stream.read(&mut chunk[..most])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count as u64),
        }
    }

    pub fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        let count = self.stream.write(octets)?;
        self.connected = true;
        Ok(count)
    }

    /// Closes the direction to the server.
    pub fn end(&mut self) {
        // If the server has closed meanwhile, the next read reports it.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// The read end and the write end of a pipe.
pub(super) type Ends = (OwnedFd, OwnedFd);

/// A pipe that moves bytes without a copy; it is created on first use.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    ends: Option<Ends>,
    filled: usize,
}

impl Pipe {
    /// Takes the spare ends, if there are any, to save the creation of a pipe.
    pub fn borrow(&mut self, spare: &mut Option<Ends>) {
        self.ends = self.ends.take().or_else(|| spare.take());
    }

    /// Returns the ends while the pipe is empty: otherwise thousands of idle connections would hold
    /// two descriptors each.
    pub fn give_back(&mut self, spare: &mut Option<Ends>) {
        if self.filled == 0
            && let Some(ends) = self.ends.take()
        {
            *spare = Some(ends);
        }
    }

    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Takes at most this many bytes from the server. Both end of stream and no available byte are
    /// errors.
    pub fn read(&mut self, from: &mut Origin, most: u64) -> io::Result<u64> {
        let (_, to) = match &mut self.ends {
            Some(ends) => ends,
            none => none.insert(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?),
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(PIPE);
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        match splice(from.stream.as_fd(), None, &*to, None, most, flags)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                from.spoken = true;
                self.filled += count;
                Ok(count as u64)
            }
        }
    }

    /// Moves the pipe's bytes to the client, as many as its socket accepts.
    pub fn write(&mut self, to: &TcpStream) -> io::Result<()> {
        let Some((from, _)) = &self.ends else { return Ok(()) };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        match splice(from, None, to, None, self.filled, flags)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.filled -= count;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn pipe_keeps_its_ends_while_it_holds_data() {
        let ((server, mut at_server), (client, mut at_client)) = (pair(), pair());
        let mut origin = Origin::of(server);
        let (mut pipe, mut spare) = (Pipe::default(), None);
        for said in [b"first", b"again"] {
            pipe.borrow(&mut spare);
            at_server.write_all(said).unwrap();
            while pipe.filled() < said.len() {
                match pipe.read(&mut origin, 100) {
                    Ok(_) => {}
                    Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
                }
            }
            pipe.give_back(&mut spare);
            assert!(spare.is_none(), "it is not empty");
            while pipe.filled() > 0 {
                pipe.write(&client).unwrap();
            }
            pipe.give_back(&mut spare);
            assert!(spare.is_some() && pipe.ends.is_none());
            let mut got = [0; 5];
            at_client.read_exact(&mut got).unwrap();
            assert_eq!(&got, said);
        }
    }
}

//! Runs a frame through every form of a filter: the kernel's classic BPF, our interpreter, and the
//! XDP program.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use rivulet_bpf::kernel::{self, Feature};
use rivulet_bpf::libbpf_rs::libbpf_sys::{bpf_prog_test_run_opts, bpf_test_run_opts};
use rivulet_bpf::redirect::Redirect;

use crate::af_packet::set_filter;
use crate::filter::{Filter, LocalRule, Rule, State, TcpRule};
use crate::xdp::receiving_socket;

pub(super) const PASSED: u32 = 2;
pub(super) const TAKEN: u32 = 4;
/// Shortest frame that `BPF_PROG_TEST_RUN` accepts.
const SHORTEST: usize = 14;

/// A filter on a packet socket and as an XDP program; without the latter where programs cannot be
/// loaded.
pub(super) struct Both {
    pub(super) rules: Vec<Rule>,
    pub(super) filter: Filter,
    socket: (UnixDatagram, UnixDatagram),
    pub(super) xdp: Option<Program>,
}

/// A loaded program and the socket that it redirects to.
pub(super) struct Program {
    pub(super) redirect: Redirect,
    pub(super) socket: OwnedFd,
}

/// Loads the XDP program of a filter.
pub(super) fn program(filter: &Filter) -> Option<Program> {
    if kernel::skipped(Feature::Xdp) {
        return None;
    }
    let taken = filter.taken().unwrap();
    let mut redirect = Redirect::load(taken.ports.as_ref()).unwrap_or_else(|e| panic!("{e}"));
    let socket = receiving_socket().unwrap();
    redirect.set_socket(socket.as_fd()).unwrap();
    redirect.apply(&taken.table).unwrap();
    Some(Program { redirect, socket })
}

/// The verdict of a program on a frame.
pub(super) fn run(program: BorrowedFd<'_>, frame: &[u8]) -> u32 {
    let mut out = vec![0; frame.len() + 256];
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as u64,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        ..bpf_test_run_opts::default()
    };
    // SAFETY: the options name their size and that of both buffers, which live through the call.
    let rc = unsafe { bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    assert_eq!(rc, 0, "{} octets", frame.len());
    options.retval
}

impl Program {
    pub(super) fn verdict(&self, frame: &[u8]) -> u32 {
        run(self.redirect.program().as_fd(), frame)
    }
}

/// Inserts a VLAN tag with this EtherType.
pub(super) fn tagged(frame: &[u8], protocol: u16) -> Vec<u8> {
    [&frame[..12], &protocol.to_be_bytes(), &[0, 5], &frame[12..]].concat()
}

impl Both {
    pub(super) fn new(rules: &[Rule]) -> Both {
        let filter = Filter::new(rules).unwrap();
        let socket = UnixDatagram::pair().unwrap();
        socket.1.set_nonblocking(true).unwrap();
        set_filter(socket.1.as_fd(), Some(&filter)).unwrap();
        let xdp = program(&filter);
        Both { rules: rules.to_vec(), filter, socket, xdp }
    }

    pub(super) fn tcp(rule: TcpRule) -> Both {
        Both::new(&[Rule::Tcp(rule)])
    }

    /// Whether a packet socket gets the frame, which has no VLAN tag. Checks that the XDP program
    /// takes the same frames, tagged or not, except those that the kernel needs too and those to
    /// ports without connections.
    pub(super) fn accepts(&self, frame: &[u8]) -> bool {
        let accepted = self.filter.accepts(frame);
        if !frame.is_empty() {
            self.socket.0.send(frame).unwrap();
            let got = self.socket.1.recv(&mut [0; 2048]).ok();
            assert_eq!(got.is_some(), accepted, "the kernel's classic BPF: {:?}, {frame:02x?}", self.rules);
        }
        if let Some(xdp) = self.xdp.as_ref().filter(|_| frame.len() >= SHORTEST) {
            let wanted = if self.takes(frame) { TAKEN } else { PASSED };
            assert_eq!(xdp.verdict(frame), wanted, "{:?}, {frame:02x?}", self.rules);
            for tag in [0x8100, 0x88a8] {
                assert_eq!(xdp.verdict(&tagged(frame, tag)), wanted, "{:?}, {frame:02x?}", self.rules);
            }
        }
        accepted
    }

    /// Whether the XDP program should take the frame, derived from simpler filters on packet
    /// sockets.
    pub(super) fn takes(&self, frame: &[u8]) -> bool {
        let alone = |rule: Rule| Filter::new(&[rule]).unwrap().accepts(frame);
        self.rules.iter().any(|rule| match rule {
            Rule::IcmpError(_) => false,
            Rule::Local(LocalRule { exid, addresses, ports }) => {
                let any = TcpRule { destinations: addresses.clone(), ..TcpRule::default() };
                let ours = TcpRule { exid: Some(*exid), ..any.clone() };
                alone(Rule::Tcp(any)) && {
                    let tcp = if frame[12..14] == [8, 0] { 14 + 4 * usize::from(frame[14] & 15) } else { 54 };
                    match ports.get(u16::from_be_bytes([frame[tcp + 2], frame[tcp + 3]])) {
                        State::None => false,
                        State::Open => alone(Rule::Tcp(ours)),
                        State::Opening => true,
                    }
                }
            }
            other => alone(other.clone()),
        })
    }
}

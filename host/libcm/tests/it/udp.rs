//! Buffered sockets.

use std::net::UdpSocket;

use libcm::{CmUdp, Congestion, Error, Event, Update};
use rivulet_bpf::cm::CallOptions;

use crate::rig::{ALICE, Rig};

#[test]
fn datagrams_leave_in_order_as_granted() {
    let options =
        CallOptions { grant_life: 1 << 50, silence: 1 << 50, initial_window: 2, ..CallOptions::default() };
    let Some(rig) = Rig::new(options) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        let to = receiver.local_addr().unwrap();
        let arrived = || {
            let mut bytes = [0; 100];
            std::iter::from_fn(|| receiver.recv(&mut bytes).ok().map(|n| (n, bytes[0]))).collect::<Vec<_>>()
        };
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let mut udp = CmUdp::new(&mut client, socket, to, 5).unwrap();
        let flow = udp.flow();
        assert_eq!((udp.mtu(), client.mtu(flow).unwrap()), (65_507, 65_507));
        client.set_mtu(flow, 100).unwrap();
        for n in 0..5u8 {
            udp.send(&mut client, vec![n; 100]).unwrap();
        }
        for (datagram, errno) in [(vec![0; 100], libc::EWOULDBLOCK), (vec![0; 65_508], libc::EMSGSIZE)] {
            let Err(Error::Os { error, .. }) = udp.send(&mut client, datagram) else { panic!() };
            assert_eq!(error.raw_os_error(), Some(errno));
        }
        assert_eq!(arrived(), []);
        let turn = |client: &mut libcm::Client, udp: &mut CmUdp| {
            while let Some(Event::Send(of)) = client.poll().unwrap() {
                assert_eq!(of, flow);
                udp.granted(client).unwrap();
            }
            arrived()
        };
        // The first window was counted in packets of the path's MTU.
        let first = turn(&mut client, &mut udp);
        assert_eq!(first, (0..5).map(|n| (100, n)).collect::<Vec<_>>());
        assert_eq!((udp.waiting(), rig.outstanding(ALICE)), (0, 500));
        let lost = Update { nsent: 300, nrecd: 0, congestion: Congestion::Persistent, rtt: 0 };
        udp.update(&mut client, &lost).unwrap();
        udp.send(&mut client, vec![8; 100]).unwrap();
        udp.send(&mut client, vec![9; 100]).unwrap();
        assert_eq!(turn(&mut client, &mut udp), [], "200 outstanding are more than the window of one packet");
        let good = Update { nsent: 200, nrecd: 200, congestion: Congestion::None, rtt: 1_000_000 };
        udp.update(&mut client, &good).unwrap();
        assert_eq!(turn(&mut client, &mut udp), [(100, 8), (100, 9)]);
    });
}

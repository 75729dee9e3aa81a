//! The daemon and users' programs are killed again and again: other programs get the windows of
//! killed ones, and no state is left.

use libcm::{FlowId, Update};
use rivulet_pktio::testing::{Process, eventually};

use crate::cm_serve::{ALICE, Daemon, Rig, flow, sends};

/// Kills of programs. At every second one the daemon is killed too: in turn while a program lives,
/// and before a program dies unobserved.
const KILLS: usize = 30;

fn kills() -> usize {
    std::env::var("RIVULET_KILLS").map_or(KILLS, |n| n.parse().expect("a number"))
}

fn kill(mut process: Process) {
    process.0.kill().unwrap();
    process.0.wait().unwrap();
}

#[test]
fn killed_program_frees_its_whole_window() {
    let Some(rig) = Rig::new() else { return };
    let mut daemon: Option<Daemon> = Some(rig.serve(""));
    let mut client = rig.client(ALICE);
    let ours: FlowId = rig.as_user(ALICE, || {
        let (socket, key, flow) = flow(&mut client, 9);
        // Gives the macroflow a history, which has to stay.
        client.request(flow, 1).unwrap();
        assert_eq!(sends(&mut client), 1);
        socket.send_to(&[0; 1000], key.destination).unwrap();
        let update = Update { nsent: 1000, nrecd: 1000, rtt: 1_000_000, ..Update::default() };
        client.update(flow, &update).unwrap();
        flow
    });
    let window = rig.status(ALICE)["window"].as_u64().unwrap();
    assert_eq!(window, 10_000);
    for kill_number in 0..kills() {
        // The child requests a hundred packets of a thousand bytes, and gets the whole window.
        let holds = rig.child(ALICE, 9);
        rig.as_user(ALICE, || client.request(ours, 10).unwrap());
        match kill_number % 4 {
            0 => rig.kill(daemon.take().unwrap()),
            1 => {
                rig.kill(daemon.take().unwrap());
                daemon = Some(rig.serve(""));
            }
            _ => {}
        }
        kill(holds);
        if daemon.is_none() {
            daemon = Some(rig.serve(""));
        }
        eventually("its flow is closed", || rig.status(ALICE)["flows"] == 1);
        let mut granted = 0;
        eventually("the window is ours", || {
            granted += sends(&mut client);
            granted >= 10
        });
        assert_eq!(granted, 10, "after {kill_number} kills");
        rig.as_user(ALICE, || (0..10).for_each(|_| client.decline(ours).unwrap()));
        let status = rig.status(ALICE);
        assert_eq!((&status["window"], &status["outstanding"]), (&window.into(), &0.into()));
    }
}

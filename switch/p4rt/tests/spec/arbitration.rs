//! Sections 5 and 16.2: several controllers, roles, and write access.

use super::harness::*;
use rivulet_p4rt::proto::p4::v1 as p4;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn highest_election_id_is_primary_and_all_are_notified() {
    let bench = Bench::empty().await;
    let mut a = bench.controller().await;
    assert_eq!(a.arbitrate(Some(5)).await, (Code::Ok, Some(5)));
    let mut b = bench.controller().await;
    assert_eq!(b.arbitrate(Some(3)).await, (Code::AlreadyExists, Some(5)));
    assert_eq!(b.arbitrate(Some(6)).await, (Code::Ok, Some(6)));
    assert_eq!(a.receive_arbitration().await, (Code::AlreadyExists, Some(6)));
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_primary_is_replaced_only_by_a_claim() {
    let bench = Bench::empty().await;
    let a = bench.primary(5).await;
    let mut b = bench.controller().await;
    assert_eq!(b.arbitrate(Some(3)).await, (Code::AlreadyExists, Some(5)));
    drop(a);
    assert_eq!(b.receive_arbitration().await, (Code::NotFound, Some(5)));
    assert_eq!(b.arbitrate(Some(4)).await, (Code::NotFound, Some(5)), "below the highest ever seen");
    let refused = b.set_pipeline(PipelineAction::VerifyAndCommit, Some(config())).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(b.arbitrate(Some(5)).await, (Code::Ok, Some(5)));
    b.set_pipeline(PipelineAction::VerifyAndCommit, Some(config())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_primary_writes() {
    let (bench, mut a) = Bench::new().await;
    let mut b = bench.primary(2).await;
    assert_eq!(a.receive_arbitration().await, (Code::AlreadyExists, Some(2)));
    let entry = bench.info.l2(1, 2);
    let refused = a.send(a.request(vec![update(Type::Insert, entry.clone())])).await.unwrap_err();
    assert_eq!(
        (refused.code(), codes(&refused).len()),
        (Code::PermissionDenied, 0),
        "no details: nothing was tried"
    );
    b.insert(entry).await.unwrap();
    let none = p4::WriteRequest { election_id: None, ..b.request(Vec::new()) };
    assert_eq!(b.send(none).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_reads() {
    let (bench, mut a) = Bench::new().await;
    let mut b = bench.controller().await;
    b.arbitrate(None).await;
    a.insert(bench.info.l2(1, 2)).await.unwrap();
    assert_eq!(b.read(bench.info.key("l2", vec![])).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn unset_election_id_never_becomes_primary() {
    let bench = Bench::empty().await;
    let mut a = bench.controller().await;
    assert_eq!(a.arbitrate(None).await, (Code::NotFound, None));
    assert_eq!(a.arbitrate(Some(0)).await, (Code::Ok, Some(0)), "zero is an id");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_may_step_down() {
    let bench = Bench::empty().await;
    let mut a = bench.primary(5).await;
    let mut b = bench.controller().await;
    b.arbitrate(Some(1)).await;
    assert_eq!(a.arbitrate(Some(2)).await, (Code::NotFound, Some(5)));
    assert_eq!(b.receive_arbitration().await, (Code::NotFound, Some(5)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_election_id_ends_the_stream() {
    let bench = Bench::empty().await;
    let _a = bench.primary(5).await;
    let b = bench.controller().await;
    let mut b = Controller { election_id: Some(5), ..b };
    b.send_message(Outgoing::Arbitration(b.arbitration(Some(5)))).await;
    assert_eq!(b.receive().await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_device_ends_the_stream() {
    let bench = Bench::empty().await;
    let mut a = bench.controller().await;
    let other = p4::MasterArbitrationUpdate { device_id: DEVICE + 1, ..a.arbitration(Some(1)) };
    a.send_message(Outgoing::Arbitration(other)).await;
    assert_eq!(a.receive().await.unwrap_err().code(), Code::NotFound);
    let mut b = bench.primary(1).await;
    let other = p4::MasterArbitrationUpdate { device_id: DEVICE + 1, ..b.arbitration(Some(1)) };
    b.send_message(Outgoing::Arbitration(other)).await;
    assert_eq!(b.receive().await.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_have_separate_primaries() {
    let (bench, mut a) = Bench::new().await;
    let mut b = bench.controller().await;
    b.role = "stats".to_owned();
    assert_eq!(b.arbitrate(Some(1)).await, (Code::Ok, Some(1)), "the same id in another role");
    a.insert(bench.info.l2(1, 2)).await.unwrap();
    b.insert(bench.info.l2(2, 2)).await.unwrap();
    a.expect_no_message().await;
    let stranger = p4::WriteRequest { role: "nobody".to_owned(), ..b.request(vec![]) };
    assert_eq!(b.send(stranger).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_keeps_its_role() {
    let bench = Bench::empty().await;
    let mut a = bench.primary(1).await;
    a.role = "stats".to_owned();
    a.send_message(Outgoing::Arbitration(a.arbitration(Some(1)))).await;
    assert_eq!(a.receive().await.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_config_is_unimplemented() {
    let bench = Bench::empty().await;
    let mut a = bench.controller().await;
    a.role = "stats".to_owned();
    let mut message = a.arbitration(Some(1));
    message.role.as_mut().unwrap().config = Some(prost_types::Any::default());
    a.send_message(Outgoing::Arbitration(message)).await;
    assert_eq!(a.receive().await.unwrap_err().code(), Code::Unimplemented);
}

/// A client of release 1.3 identifies its role by number.
#[tokio::test(flavor = "multi_thread")]
#[allow(deprecated)]
async fn roles_by_number_are_understood() {
    let (bench, _a) = Bench::new().await;
    let mut b = bench.controller().await;
    let role = p4::Role { id: 3, ..p4::Role::default() };
    let message = p4::MasterArbitrationUpdate { role: Some(role.clone()), ..b.arbitration(Some(1)) };
    b.send_message(Outgoing::Arbitration(message)).await;
    match b.receive().await.unwrap() {
        Received::Arbitration(m) => assert_eq!((m.role, m.status.unwrap().code), (Some(role), 0)),
        other => panic!("{other:?}"),
    }
    b.election_id = Some(1);
    let updates = vec![update(Type::Insert, bench.info.l2(1, 2))];
    b.send(p4::WriteRequest { role_id: 3, ..b.request(updates) }).await.unwrap();
}

/// 64 idle streams do not keep a controller out, nor do as many with low ids.
#[tokio::test(flavor = "multi_thread")]
async fn idle_streams_give_way_to_a_controller() {
    let bench = Bench::empty().await;
    for ids in [false, true] {
        let shared = bench.client().await;
        let mut idle = Vec::new();
        for i in 0..64 {
            let mut c = bench.controller_on(shared.clone()).await;
            c.role = "crowded".to_owned();
            c.arbitrate(ids.then_some(i)).await;
            idle.push(c);
        }
        let mut late = bench.controller().await;
        late.role = "crowded".to_owned();
        assert_eq!(late.arbitrate(Some(1000 + u64::from(ids))).await.0, Code::Ok);
        let mut lowest = idle.remove(0);
        let end = loop {
            match lowest.receive().await {
                Ok(Received::Arbitration(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(status) => break status,
            }
        };
        assert_eq!(end.code(), Code::ResourceExhausted, "{end:?}");
        late.expect_no_message().await;
    }
}

/// Roles that were used once do not keep a controller out, of the default role or of a new one.
#[tokio::test(flavor = "multi_thread")]
async fn abandoned_roles_give_way() {
    let bench = Bench::empty().await;
    let shared = bench.client().await;
    for i in 0..300 {
        let mut c = bench.controller_on(shared.clone()).await;
        c.role = format!("role {i}");
        assert_eq!(c.arbitrate(Some(1)).await, (Code::Ok, Some(1)), "role {i}");
    }
    bench.primary(1).await;
}

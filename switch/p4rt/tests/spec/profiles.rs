//! Section 9.2: action profiles, groups and one-shots.

use super::harness::*;
use p4::action_profile_group::Member;
use p4::table_action::Type as Act;
use rivulet_p4rt::proto::p4::v1 as p4;
use tonic::Code;

const INVALID: Result<(), Code> = Err(Code::InvalidArgument);
const NOT_FOUND: Result<(), Code> = Err(Code::NotFound);

fn member(bench: &Bench, profile: &str, member_id: u32, port: u8) -> p4::ActionProfileMember {
    let action = Some(bench.info.action("forward", &[&[port]]));
    p4::ActionProfileMember { action_profile_id: bench.info.id(profile), member_id, action }
}

fn group(bench: &Bench, group_id: u32, members: &[(u32, i32)]) -> p4::ActionProfileGroup {
    let members = members.iter().map(|(member_id, weight)| Member {
        member_id: *member_id,
        weight: *weight,
        watch_kind: None,
    });
    let action_profile_id = bench.info.id("selector");
    p4::ActionProfileGroup { action_profile_id, group_id, members: members.collect(), max_size: 0 }
}

fn entry(bench: &Bench, table: &str, key: &[u8], act: Act) -> p4::TableEntry {
    let action = Some(p4::TableAction { r#type: Some(act) });
    p4::TableEntry { action, ..bench.info.key(table, vec![exact(1, key)]) }
}

fn one_shot(bench: &Bench, ports: &[(u8, i32)]) -> Act {
    let action = |(port, weight): &(u8, i32)| p4::ActionProfileAction {
        action: Some(bench.info.action("forward", &[&[*port]])),
        weight: *weight,
        watch_kind: None,
    };
    let action_profile_actions = ports.iter().map(action).collect();
    Act::ActionProfileActionSet(p4::ActionProfileActionSet { action_profile_actions, ..Default::default() })
}

/// Has `routes` send packets to port 9 unless `members` or `groups` forward them; by default it
/// drops them.
async fn undecided(bench: &Bench, c: &mut Controller) {
    let any = p4::TableEntry { ..bench.info.entry("routes", vec![], "forward", &[&[9]]) };
    c.insert(any).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_written_and_read() {
    let (bench, mut c) = Bench::new().await;
    undecided(&bench, &mut c).await;
    assert_eq!(c.modify(member(&bench, "profile", 1, 2)).await, NOT_FOUND);
    assert_eq!(c.delete(member(&bench, "profile", 1, 2)).await, NOT_FOUND);
    c.insert(member(&bench, "profile", 1, 2)).await.unwrap();
    assert_eq!(c.insert(member(&bench, "profile", 1, 3)).await, Err(Code::AlreadyExists));
    assert_eq!(c.insert(member(&bench, "profile", 0, 3)).await, INVALID);
    let none = p4::ActionProfileMember { action: None, ..member(&bench, "profile", 2, 3) };
    assert_eq!(c.insert(none).await, INVALID);
    let stranger = p4::ActionProfileMember {
        action: Some(bench.info.action("set_class", &[&[1]])),
        ..member(&bench, "profile", 2, 3)
    };
    assert_eq!(c.insert(stranger).await, INVALID, "not an action of its tables");
    c.insert(member(&bench, "selector", 5, 6)).await.unwrap();
    assert_eq!(c.read(p4::ActionProfileMember::default()).await.unwrap().len(), 2);
    let of_one =
        p4::ActionProfileMember { action_profile_id: bench.info.id("profile"), ..Default::default() };
    assert_eq!(c.read(of_one).await.unwrap(), [member(&bench, "profile", 1, 2)]);
    assert_eq!(c.read(member(&bench, "selector", 5, 0)).await.unwrap(), [member(&bench, "selector", 5, 6)]);
    assert_eq!(c.read(member(&bench, "selector", 9, 0)).await, Err(Code::NotFound));
    c.insert(entry(&bench, "members", &[64], Act::ActionProfileMemberId(1))).await.unwrap();
    let packet = ipv4([1, 1, 1, 1], [10, 1, 1, 1], 64);
    assert_eq!(bench.machine.packet(1, &packet)[0].0, 2);
    c.modify(member(&bench, "profile", 1, 3)).await.unwrap();
    assert_eq!(bench.machine.packet(1, &packet)[0].0, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn members_in_use_cannot_be_deleted() {
    let (bench, mut c) = Bench::new().await;
    c.insert(member(&bench, "profile", 1, 2)).await.unwrap();
    let e = entry(&bench, "members", &[64], Act::ActionProfileMemberId(1));
    c.insert(e.clone()).await.unwrap();
    assert_eq!(c.delete(member(&bench, "profile", 1, 2)).await, Err(Code::FailedPrecondition));
    c.delete(e).await.unwrap();
    c.delete(member(&bench, "profile", 1, 2)).await.unwrap();
    c.insert(member(&bench, "selector", 1, 2)).await.unwrap();
    c.insert(group(&bench, 1, &[(1, 1)])).await.unwrap();
    assert_eq!(c.delete(member(&bench, "selector", 1, 2)).await, Err(Code::FailedPrecondition));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_profile_is_resource_exhausted() {
    let (bench, mut c) = Bench::new().await;
    for id in 1..=16 {
        c.insert(member(&bench, "profile", id, 2)).await.unwrap();
    }
    assert_eq!(c.insert(member(&bench, "profile", 17, 2)).await, Err(Code::ResourceExhausted));
    c.delete(member(&bench, "profile", 3, 2)).await.unwrap();
    c.insert(member(&bench, "profile", 17, 2)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_refer_to_existing_members() {
    let (bench, mut c) = Bench::new().await;
    assert_eq!(c.insert(entry(&bench, "members", &[1], Act::ActionProfileMemberId(1))).await, NOT_FOUND);
    assert_eq!(c.insert(entry(&bench, "groups", &[1], Act::ActionProfileGroupId(1))).await, NOT_FOUND);
    assert_eq!(
        c.insert(entry(&bench, "members", &[1], Act::ActionProfileGroupId(1))).await,
        INVALID,
        "no selector"
    );
    let direct = Act::Action(bench.info.action("forward", &[&[1]]));
    assert_eq!(c.insert(entry(&bench, "members", &[1], direct)).await, INVALID);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_written_and_read() {
    let (bench, mut c) = Bench::new().await;
    undecided(&bench, &mut c).await;
    for id in 1..=3 {
        c.insert(member(&bench, "selector", id, id as u8)).await.unwrap();
    }
    assert_eq!(c.insert(group(&bench, 1, &[(9, 1)])).await, NOT_FOUND, "an unknown member");
    assert_eq!(c.insert(group(&bench, 1, &[(1, 0)])).await, INVALID, "a weight of 0");
    assert_eq!(c.insert(group(&bench, 1, &[(1, 1), (1, 1)])).await, INVALID, "a member twice");
    assert_eq!(c.insert(group(&bench, 0, &[(1, 1)])).await, INVALID);
    let elsewhere =
        p4::ActionProfileGroup { action_profile_id: bench.info.id("profile"), ..group(&bench, 1, &[]) };
    assert_eq!(c.insert(elsewhere).await, INVALID, "a profile without selector");
    let sized = p4::ActionProfileGroup { max_size: 4, ..group(&bench, 1, &[(1, 1), (2, 2)]) };
    c.insert(sized.clone()).await.unwrap();
    assert_eq!(c.read(p4::ActionProfileGroup::default()).await.unwrap(), [sized.clone()]);
    assert_eq!(c.insert(sized.clone()).await, Err(Code::AlreadyExists));
    assert_eq!(c.modify(group(&bench, 1, &[(1, 1)])).await, INVALID, "max_size cannot change");
    let large = p4::ActionProfileGroup { max_size: 4, ..group(&bench, 1, &[(1, 3), (2, 2)]) };
    assert_eq!(c.modify(large).await, Err(Code::ResourceExhausted));
    assert_eq!(c.modify(group(&bench, 2, &[(1, 1)])).await, NOT_FOUND);
    let key = [10, 1, 1, 1];
    let e = entry(&bench, "groups", &key, Act::ActionProfileGroupId(1));
    c.insert(e.clone()).await.unwrap();
    assert_eq!(c.delete(sized.clone()).await, Err(Code::FailedPrecondition));
    let port = bench.machine.packet(1, &ipv4([1, 1, 1, 1], key, 64))[0].0;
    assert!([1, 2].contains(&port), "{port}");
    let only_third = p4::ActionProfileGroup { max_size: 4, ..group(&bench, 1, &[(3, 1)]) };
    c.modify(only_third).await.unwrap();
    assert_eq!(bench.machine.packet(1, &ipv4([1, 1, 1, 1], key, 64))[0].0, 3);
    c.delete(e).await.unwrap();
    c.delete(sized.clone()).await.unwrap();
    assert_eq!(c.read(sized).await, Err(Code::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
#[allow(deprecated)]
async fn watch_ports_are_checked_and_kept() {
    let (bench, mut c) = Bench::new().await;
    c.insert(member(&bench, "selector", 1, 1)).await.unwrap();
    use p4::action_profile_group::member::WatchKind;
    let watching = |kind| {
        let members = vec![Member { member_id: 1, weight: 1, watch_kind: Some(kind) }];
        p4::ActionProfileGroup { members, ..group(&bench, 1, &[]) }
    };
    assert_eq!(c.insert(watching(WatchKind::WatchPort(vec![77]))).await, INVALID, "no such port");
    for (id, kind) in [(1, WatchKind::WatchPort(vec![2])), (2, WatchKind::Watch(2))] {
        let g = p4::ActionProfileGroup { group_id: id, ..watching(kind) };
        c.insert(g.clone()).await.unwrap();
        assert_eq!(c.read(g.clone()).await.unwrap(), [g], "in the words of the client, whatever its release");
    }
}

/// Waits until packets of many flows leave by exactly these ports.
async fn ports_are(bench: &Bench, key: [u8; 4], ports: &[u32]) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let sent = (0..64).flat_map(|i| bench.machine.packet(1, &ipv4([1, 2, 3, i], key, 64)));
        let seen: std::collections::BTreeSet<u32> = sent.map(|(port, _)| port).collect();
        if seen.iter().eq(ports) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{seen:?}, not {ports:?}");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_with_a_down_port_are_not_selected() {
    use p4::action_profile_action::WatchKind as OneShotWatch;
    use p4::action_profile_group::member::WatchKind;
    let (bench, mut c) = Bench::new().await;
    undecided(&bench, &mut c).await;
    let mut members = Vec::new();
    for port in 1..=2u8 {
        c.insert(member(&bench, "selector", port.into(), port)).await.unwrap();
        let watch_kind = Some(WatchKind::WatchPort(vec![port]));
        members.push(Member { member_id: port.into(), weight: 1, watch_kind });
    }
    let g = p4::ActionProfileGroup { members, ..group(&bench, 1, &[]) };
    c.insert(g.clone()).await.unwrap();
    let key = [10, 1, 1, 1];
    c.insert(entry(&bench, "groups", &key, Act::ActionProfileGroupId(1))).await.unwrap();
    ports_are(&bench, key, &[1, 2]).await;
    bench.set_link_up(2, false);
    ports_are(&bench, key, &[1]).await;
    assert_eq!(c.read(g.clone()).await.unwrap(), [g], "read back as written");
    bench.set_link_up(1, false);
    // No member is left: the packet leaves as in `undecided`.
    ports_are(&bench, key, &[9]).await;
    bench.set_link_up(2, true);
    ports_are(&bench, key, &[2]).await;
    bench.set_link_up(1, true);
    ports_are(&bench, key, &[1, 2]).await;

    // A one-shot: port 3 is down from the start, and a member without a watched port stays.
    let mut act = one_shot(&bench, &[(1, 1), (2, 1), (3, 1)]);
    if let Act::ActionProfileActionSet(set) = &mut act {
        for (at, port) in [(1, 2), (2, 3)] {
            set.action_profile_actions[at].watch_kind = Some(OneShotWatch::WatchPort(vec![port]));
        }
    }
    c.delete(entry(&bench, "groups", &key, Act::ActionProfileGroupId(1))).await.unwrap();
    c.delete(group(&bench, 1, &[])).await.unwrap();
    for port in 1..=2u8 {
        c.delete(member(&bench, "selector", port.into(), port)).await.unwrap();
    }
    c.insert(entry(&bench, "groups", &key, act)).await.unwrap();
    ports_are(&bench, key, &[1, 2]).await;
    bench.set_link_up(2, false);
    ports_are(&bench, key, &[1]).await;
    bench.set_link_up(3, true);
    ports_are(&bench, key, &[1, 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_shots_are_read_back_as_written() {
    let (bench, mut c) = Bench::new().await;
    undecided(&bench, &mut c).await;
    let key = [10, 1, 1, 1];
    let e = entry(&bench, "groups", &key, one_shot(&bench, &[(1, 1), (2, 3), (1, 1)]));
    c.insert(e.clone()).await.unwrap();
    assert_eq!(c.read(bench.info.key("groups", vec![])).await.unwrap(), [e.clone()]);
    assert!(c.read(p4::ActionProfileMember::default()).await.unwrap().is_empty());
    assert!(c.read(p4::ActionProfileGroup::default()).await.unwrap().is_empty());
    let port = bench.machine.packet(1, &ipv4([1, 1, 1, 1], key, 64))[0].0;
    assert!([1, 2].contains(&port), "{port}");
    let other = entry(&bench, "groups", &key, one_shot(&bench, &[(3, 1)]));
    c.modify(other.clone()).await.unwrap();
    assert_eq!(bench.machine.packet(1, &ipv4([1, 1, 1, 1], key, 64))[0].0, 3);
    c.delete(other).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_shots_are_checked() {
    let (bench, mut c) = Bench::new().await;
    let of = |act| entry(&bench, "groups", &[1], act);
    assert_eq!(c.insert(of(one_shot(&bench, &[(1, 0)]))).await, INVALID, "a weight of 0");
    assert_eq!(c.insert(of(one_shot(&bench, &[(1, -1)]))).await, INVALID);
    assert_eq!(
        c.insert(entry(&bench, "members", &[1], one_shot(&bench, &[(1, 1)]))).await,
        INVALID,
        "no selector"
    );
    let Act::ActionProfileActionSet(mut set) = one_shot(&bench, &[(1, 1)]) else { unreachable!() };
    set.action_selection_mode = p4::action_profile_action_set::ActionSelectionMode::Random as i32;
    assert_eq!(c.insert(of(Act::ActionProfileActionSet(set))).await, Err(Code::Unimplemented));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_shots_and_members_exclude_each_other() {
    let (bench, mut c) = Bench::new().await;
    let shot = entry(&bench, "groups", &[1], one_shot(&bench, &[(1, 1)]));
    c.insert(shot.clone()).await.unwrap();
    assert_eq!(c.insert(member(&bench, "selector", 1, 1)).await, INVALID);
    c.delete(shot.clone()).await.unwrap();
    c.insert(member(&bench, "selector", 1, 1)).await.unwrap();
    assert_eq!(c.insert(shot.clone()).await, INVALID);
    c.delete(member(&bench, "selector", 1, 1)).await.unwrap();
    c.insert(shot).await.unwrap();
}

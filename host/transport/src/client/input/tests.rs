use super::*;

fn valid(start: u64, end: u64) -> Validity {
    Validity { input: true, stream: 0, valid_start: start, valid_end: end }
}

#[test]
fn only_the_first_packet_goes_without_a_continuation() {
    let mut i = Input::new(1000);
    assert_eq!(i.write(&[1; 1200]), 1000);
    let first = i.take_packet(400, Time(0)).unwrap();
    assert_eq!((first.range.clone(), first.continuation.is_none()), (0..400, true));
    assert!(!i.has_packet(Time(0)));
    assert!(i.answered(0..400, false, Some(300), Time(0), Time(0)), "partly consumed");
    i.hold(valid(300, 300), b"c");
    let second = i.take_packet(403, Time(0)).unwrap();
    assert_eq!(second.range, 300..700, "what was not consumed goes again, with what follows");
    assert!(i.answered(second.range, false, Some(400), Time(0), Time(0)));
    assert!(!i.has_packet(Time(0)), "the continuation starts packets at 300 alone");
    i.hold(valid(400, 1000), b"d");
    assert_eq!(i.take_packet(103, Time(0)).unwrap().range, 400..500);
    assert_eq!(i.take_packet(103, Time(0)).unwrap().range, 500..600, "several with one continuation");
    i.lost(400..500, false);
    assert_eq!(i.take_packet(103, Time(0)).unwrap().range, 400..500);
    assert!(i.answered(500..600, false, Some(600), Time(0), Time(0)));
    assert_eq!(i.position().0, 400);
    assert!(i.answered(400..500, false, Some(500), Time(0), Time(0)));
    assert_eq!(i.position().0, 600);
}

#[test]
fn the_end_is_sent_again_until_it_is_consumed() {
    let mut i = Input::new(1000);
    i.write(b"abc");
    i.finish();
    assert_eq!(i.write(b"more"), 0);
    let p = i.take_packet(100, Time(0)).unwrap();
    assert!(p.fin);
    i.lost(p.range, true);
    let p = i.take_packet(100, Time(0)).unwrap();
    assert!(p.fin && i.take_packet(100, Time(0)).is_none());
    i.answered(p.range, true, Some(3), Time(0), Time(0));
    assert!(i.is_consumed());
}

#[test]
fn input_without_progress_rests_and_is_given_up() {
    let mut i = Input::new(1000);
    i.write(b"abc");
    let (mut now, mut tries) = (0, 0);
    loop {
        let p = i.take_packet(100, Time(now)).unwrap();
        assert!(!i.has_packet(Time(now)));
        tries += 1;
        if !i.answered(p.range, false, None, Time(now), Time(now + 100)) {
            break;
        }
        assert!(!i.has_packet(Time(now + 99)));
        now = i.rests_until(Time(now)).unwrap().0;
    }
    assert!(now >= MAX_FUTILE_US && tries < 200, "{tries} tries in {now} us");
}

#[test]
fn short_input_is_sent_again_with_later_writes() {
    let mut i = Input::new(10_000);
    for n in 0..5000 {
        i.write(&[7]);
        let p = i.take_packet(6000, Time(n)).expect("more than before");
        assert_eq!(p.range, 0..n + 1);
        assert!(i.answered(p.range, false, Some(0), Time(n), Time(n + 100)), "byte {n}");
        i.hold(valid(0, 0), b"c");
        assert!(!i.has_packet(Time(n + SHORT_PAUSE_US - 1)), "no try without another byte");
    }
    // A packet that cannot grow any more is only repeated for a limited time.
    i.write(&[7; 2000]);
    let (mut now, mut tries) = (5000, 0);
    loop {
        let p = i.take_packet(6003, Time(now)).unwrap();
        assert_eq!(p.range, 0..6000);
        tries += 1;
        if !i.answered(p.range, false, Some(0), Time(now), Time(now + 100)) {
            break;
        }
        now = i.rests_until(Time(now)).map_or(now, |t| t.0);
    }
    assert!(tries < 200, "{tries}");
}

#[test]
fn short_input_goes_again_after_growing_pauses() {
    let mut i = Input::new(100);
    i.write(b"GET / HTTP/1.1\r\n\r\n");
    let mut now = Time(5);
    for n in 0..20 {
        let p = i.take_packet(50, now).expect("a pause ends");
        assert!(i.answered(p.range, false, Some(0), now, now), "try {n} is no lack of progress");
        i.hold(valid(0, 0), b"c");
        let next = i.rests_until(now).expect("a timer");
        assert_eq!(next.0 - now.0, SHORT_PAUSE_US << n.min(6));
        assert!(!i.has_packet(Time(next.0 - 1)));
        now = next;
    }
    let p = i.take_packet(50, now).unwrap();
    assert!(i.answered(p.range, false, Some(18), now, now) && i.is_consumed());
    assert_eq!(i.rests_until(now), None);
}

#[test]
fn the_end_of_a_short_input_goes_too() {
    let mut i = Input::new(100);
    i.write(b"GET");
    let p = i.take_packet(50, Time(0)).unwrap();
    assert!(i.answered(p.range, false, Some(0), Time(0), Time(0)));
    i.hold(valid(0, 0), b"c");
    assert!(!i.has_packet(Time(9)));
    i.finish();
    let p = i.take_packet(50, Time(9)).unwrap();
    assert_eq!((p.range.clone(), p.fin), (0..3, true));
    i.lost(p.range, true);
    let p = i.take_packet(50, Time(9)).unwrap();
    assert!(p.fin && i.answered(p.range, true, Some(3), Time(9), Time(9)) && i.is_consumed());
}

#[test]
fn empty_packet_renews_a_continuation() {
    let mut i = Input::new(1000);
    i.renew();
    assert!(!i.has_packet(Time(0)), "nothing was ever sent");
    i.write(b"abc");
    let p = i.take_packet(100, Time(0)).unwrap();
    i.renew();
    assert!(!i.has_packet(Time(0)), "what is on the way brings one");
    i.hold(valid(3, 3), b"old");
    assert!(i.answered(p.range, false, Some(3), Time(0), Time(0)));
    i.renew();
    let p = i.take_packet(100, Time(0)).unwrap();
    assert_eq!((p.range.clone(), p.fin, p.continuation.as_deref()), (3..3, false, Some(&b"old"[..])));
    assert!(!i.has_packet(Time(0)), "once");
    i.lost(p.range, false);
    let p = i.take_packet(100, Time(0)).expect("again, since it was lost");
    assert!(i.answered(p.range, false, None, Time(0), Time(9)));
    assert!(!i.has_packet(Time(8)));
    let p = i.take_packet(100, Time(9)).expect("again, since the server did not say");
    i.hold(valid(3, 3), b"new");
    assert!(i.answered(p.range.clone(), false, Some(3), Time(0), Time(0)));
    i.renew();
    i.write(b"d");
    let p = i.take_packet(100, Time(9)).unwrap();
    assert_eq!((p.range.clone(), p.continuation.as_deref()), (3..4, Some(&b"new"[..])));
    i.lost(p.range, false);
    let p = i.take_packet(100, Time(9)).unwrap();
    assert_eq!(p.range, 3..4);
    i.hold(valid(4, 4), b"newer");
    assert!(i.answered(p.range, false, Some(4), Time(9), Time(9)));
    i.renew();
    let sent = (0..100).take_while(|_| i.take_packet(100, Time(9)).map(|p| i.lost(p.range, false)).is_some());
    assert_eq!(sent.count(), usize::from(MAX_RENEWALS), "there is an end");
}

#[test]
fn server_can_delay_input() {
    let mut i = Input::new(1000);
    i.write(b"abc");
    for n in 0..200 {
        let now = n * 1_000_000;
        let p = i.take_packet(100, Time(now)).unwrap();
        i.answered(p.range, false, Some(0), Time(now), Time(now));
        i.wait_until(Time(now + 1000));
        assert!(!i.has_packet(Time(now + 999)));
    }
    let p = i.take_packet(100, Time(200_000_000)).unwrap();
    let now = Time(200_000_001);
    assert!(i.answered(p.range, false, None, now, now), "the first without a reason");
}

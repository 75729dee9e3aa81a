//! The server step does not allocate, which a counting allocator shows.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::support::{self, steady};
use rivulet_packet::Segment;
use rivulet_transport::Time;
use rivulet_transport::server::{
    Answer, MinisocketCache, Policy, ReplayMemory, Reply, Server, Verdict, step,
};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system allocator unchanged; counting uses only a const-initialised
// thread-local.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.with(Cell::get);
    work();
    COUNT.with(Cell::get) - before
}

#[test]
fn the_allocator_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1u8; 100]))), 1);
}

#[test]
fn the_step_and_its_responses_allocate_nothing() {
    let keys = support::keys();
    let packet = steady::request(&keys);
    let policy = Policy::default();
    let data = [7u8; 1400];
    let mut out = [0u8; 2048];
    let n = allocations(|| {
        let segment = Segment::parse_packet(&packet).unwrap();
        segment.verify().unwrap();
        let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &policy) else { panic!() };
        assert_eq!(plan.heads().len(), 1);
        let want = plan.heads()[0].want.unwrap();
        plan.output_continuation(&want, &keys).unwrap();
        let answer = Answer::Data { offset: want.offset, data: &data, end: false };
        plan.respond(0, &Reply { answer, ..Reply::default() }, &keys, &mut out).unwrap();
    });
    assert_eq!(n, 0);
}

#[test]
fn soft_state_and_refusals_allocate_nothing() {
    let keys = support::keys();
    let packet = steady::request(&keys);
    let mut server = Server::new(Policy::default());
    server.replay = Some(ReplayMemory::new(1000, 4_000_000, 3));
    server.cache = Some(MinisocketCache::new(1000));
    let mut out = [0u8; 2048];
    let n = allocations(|| {
        let segment = Segment::parse_packet(&packet).unwrap();
        let Ok(Verdict::Respond(plan)) = server.accept(&segment, &keys, Time(steady::NOW)) else { panic!() };
        server.respond(&plan, 0, &Reply::default(), &keys, &mut out).unwrap();
        assert!(server.accept(&segment, &keys, Time(steady::NOW)).is_err(), "used before");
    });
    assert_eq!(n, 0);
}

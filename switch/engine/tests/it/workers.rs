//! Several packet paths with shared state: actions use registers atomically, every packet is
//! counted exactly once, and writes reach all paths at the same time.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{Cmd, exact};
use rivulet_engine::*;

const PROGRAM: &[u8] = include_bytes!("../programs/workers.json");
/// `op` of each action, and of the code without a table.
const BOTH: u8 = 1;
const ENDS: u8 = 2;
const BARE: u8 = 9;
/// An `@atomic` block with conditions.
const BLOCK: u8 = 10;
/// An action that only counts, so that the workers do not wait for each other's registers.
const NOTHING: u8 = 5;
const GREEN_YELLOW_RED: u64 = 3;

struct Team {
    pipeline: Pipeline,
    switch: Switch,
    paths: Vec<DataPath>,
    _events: Events,
}

impl Team {
    fn new(workers: usize, native: bool) -> Team {
        let pipeline = Pipeline::new(Program::from_json(PROGRAM).expect("the program loads"));
        let config = SwitchConfig { native, ..SwitchConfig::default() };
        let (switch, paths, events) =
            Switch::with_workers(config, NonZeroUsize::new(workers).expect("workers"));
        switch.commit(&pipeline).expect("commit");
        let team = Team { pipeline, switch, paths, _events: events };
        for (op, action) in [(BOTH, "I.both"), (ENDS, "I.ends")] {
            team.pipeline.insert(team.table(), &team.entry(op, action)).expect("insert");
        }
        team
    }

    fn table(&self) -> TableId {
        self.pipeline.info().table("I.work").expect("table")
    }

    fn entry(&self, op: u8, action: &str) -> EntrySpec {
        let table = &self.pipeline.info().tables[self.table().index()];
        let action = table.action(action).expect("action");
        let key = EntryKey { fields: vec![exact(op.into())], priority: 0 };
        EntrySpec::new(key, EntryAction::Call(ActionCall { action, params: vec![] }))
    }

    fn register(&self, name: &str, index: usize) -> u128 {
        let register = self.pipeline.info().register(name).expect("register");
        let bytes = self.pipeline.register(register, index).expect("cell");
        bytes.iter().fold(0, |v, b| v << 8 | u128::from(*b))
    }

    fn counter(&self, index: usize) -> CounterData {
        let counter = self.pipeline.info().counter("I.seen").expect("counter");
        self.pipeline.counter(counter, index).expect("cell")
    }

    fn hits(&self, op: u8) -> u64 {
        let entry = self.pipeline.entry(self.table(), &self.entry(op, "I.both").key).expect("entry");
        entry.spec.counter.expect("counter").packets
    }
}

fn cmd(op: u8) -> Vec<u8> {
    Cmd { op, ..Cmd::default() }.bytes()
}

/// Runs all workers, each with `count` packets of each kind; returns how many packets read values
/// that were not written together.
fn run(team: &mut Team, count: u64) -> u64 {
    let torn = AtomicU64::new(0);
    let paths = std::mem::take(&mut team.paths);
    team.paths = std::thread::scope(|scope| {
        let torn = &torn;
        let work = |mut path: DataPath| {
            scope.spawn(move || {
                for i in 0..count {
                    for op in [BOTH, ENDS, BARE, BLOCK, NOTHING, NOTHING] {
                        path.process(i, 1, &cmd(op), &mut |_: u32, head: &[u8], _: &[u8]| {
                            let got = Cmd::of(head);
                            // From the second packet on, the values read must have been written
                            // together.
                            torn.fetch_add(
                                u64::from(op == BOTH && got.a > 1 && got.b != 0),
                                Ordering::Relaxed,
                            );
                        });
                    }
                }
                path
            })
        };
        let threads: Vec<_> = paths.into_iter().map(work).collect();
        threads.into_iter().map(|t| t.join().expect("a worker")).collect()
    });
    torn.into_inner()
}

#[test]
fn registers_and_counters_are_exact() {
    const COUNT: u64 = 100_000;
    for native in [true, false] {
        let mut team = Team::new(2, native);
        let torn = run(&mut team, COUNT);
        let all = 2 * COUNT;
        assert_eq!(torn, 0, "actions saw half of what another wrote");
        assert_eq!(team.register("I.sums", 0), all.into());
        assert_eq!(team.register("I.wides", 0) & 0xffff_ffff, all.into());
        assert_eq!(team.register("I.sums", 1), all.into(), "an action that exits");
        assert_eq!(team.register("I.wides", 1), all.into());
        assert_eq!(team.register("I.sums", 2), all.into(), "an action without a table");
        assert_eq!(team.register("I.turns", 0), all.into(), "a block of several actions");
        assert_eq!(team.register("I.turns", 1), u128::from(all / 2), "a condition in it");
        let len = cmd(BOTH).len() as u64;
        assert_eq!(team.counter(0), CounterData { packets: 5 * all, bytes: 5 * all * len });
        assert_eq!(team.counter(1), CounterData { packets: all, bytes: all * len });
        assert_eq!((team.hits(BOTH), team.hits(ENDS)), (all, all));
        let stats = team.switch.stats();
        assert_eq!((stats.received, stats.emitted), (6 * all, 6 * all));
    }
}

/// A meter grants its tokens once, over all workers.
#[test]
fn meters_are_one_for_all() {
    let mut team = Team::new(2, true);
    let meter = team.pipeline.info().meter("I.limit").expect("meter");
    let config = MeterConfig { cir: 0, cburst: 700, pir: 0, pburst: 1000 };
    team.pipeline.set_meter(meter, 0, Some(config)).expect("meter");
    let colours: Vec<AtomicU64> = (0..GREEN_YELLOW_RED).map(|_| AtomicU64::new(0)).collect();
    let paths = std::mem::take(&mut team.paths);
    std::thread::scope(|scope| {
        for mut path in paths {
            let colours = &colours;
            scope.spawn(move || {
                for _ in 0..5000 {
                    path.process(0, 1, &cmd(BARE), &mut |_: u32, head: &[u8], _: &[u8]| {
                        colours[Cmd::of(head).c as usize].fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    let colours: Vec<u64> = colours.into_iter().map(AtomicU64::into_inner).collect();
    assert_eq!(colours, [700, 300, 9000]);
}

/// Entries are added and removed while both workers forward: after a write has returned the next
/// packet of every path uses it, and an entry's counter starts at 0.
#[test]
fn writes_reach_all_workers() {
    let mut team = Team::new(2, true);
    let mut other = team.paths.pop().expect("two paths");
    let mut mine = team.paths.pop().expect("two paths");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                other.process(1, 1, &cmd(BOTH), &mut |_: u32, _: &[u8], _: &[u8]| {});
            }
        });
        let (table, entry) = (team.table(), team.entry(77, "I.both"));
        for round in 0..2000u64 {
            team.pipeline.insert(table, &entry).expect("insert");
            let mut seen = 0;
            for _ in 0..round % 3 {
                mine.process(1, 1, &cmd(77), &mut |_: u32, head: &[u8], _: &[u8]| {
                    seen += u64::from(Cmd::of(head).a != 0);
                });
            }
            assert_eq!(seen, round % 3, "a packet after the write did not hit");
            team.pipeline.settle().expect("settle");
            assert_eq!(team.hits(77), round % 3, "round {round}");
            team.pipeline.delete(table, &entry.key).expect("delete");
            mine.process(1, 1, &cmd(77), &mut |_: u32, head: &[u8], _: &[u8]| {
                assert_eq!(Cmd::of(head).a, 0, "a packet after the deletion hit");
            });
        }
        // After another program is committed, packets continue, and the old state is gone.
        let next = Pipeline::new(team.pipeline.program().clone());
        team.switch.commit(&next).expect("commit");
        mine.process(2, 1, &cmd(BOTH), &mut |_: u32, head: &[u8], _: &[u8]| {
            assert_eq!(Cmd::of(head).a, 0, "an entry of the program before");
        });
        done.store(true, Ordering::Relaxed);
    });
    assert!(team.switch.set_queue(None, Some(10), 10).is_err(), "a queue with a rate");
}

/// A dry run returns the result without changing anything.
#[test]
fn dry_runs_leave_the_state_unchanged() {
    for workers in [1, 2] {
        let mut team = Team::new(workers, true);
        run(&mut team, 5);
        let before = (team.register("I.sums", 0), team.counter(0), team.hits(BOTH), team.switch.stats());
        for _ in 0..2 {
            let mut out = Vec::new();
            let trace = team.paths[0].dry_run(100, 1, &cmd(BOTH), &mut |_: u32, head: &[u8], _: &[u8]| {
                out.push(Cmd::of(head).a);
            });
            assert_eq!(out, [5 * workers as u32 + 1], "on top of the existing value");
            assert!(trace.to_string().contains("I.both"), "{trace}");
        }
        let after = (team.register("I.sums", 0), team.counter(0), team.hits(BOTH), team.switch.stats());
        assert_eq!(before, after);
        run(&mut team, 1);
        assert_eq!(team.register("I.sums", 0), 6 * workers as u128);
    }
}

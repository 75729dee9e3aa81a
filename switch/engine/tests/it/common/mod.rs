//! A switch with a test program, and packets in the test programs' format.
#![allow(dead_code)]

use rivulet_engine::*;

pub const FEATURES: &[u8] = include_bytes!("../../programs/features.json");

/// The first header of the test programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cmd {
    pub op: u8,
    pub c: u8,
    pub a: u32,
    pub b: u32,
    pub w: u64,
}

impl Cmd {
    pub fn new(op: u8, a: u32, b: u32) -> Cmd {
        Cmd { op, a, b, ..Cmd::default() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![self.op, self.c];
        out.extend(self.a.to_be_bytes());
        out.extend(self.b.to_be_bytes());
        out.extend(self.w.to_be_bytes());
        out
    }

    pub fn of(bytes: &[u8]) -> Cmd {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let w = u64::from(word(10)) << 32 | u64::from(word(14));
        Cmd { op: bytes[0], c: bytes[1], a: word(2), b: word(6), w }
    }
}

/// A running switch.
pub struct Rig {
    pub pipeline: Pipeline,
    pub switch: Switch,
    pub path: DataPath,
    pub events: Events,
    pub now: u64,
}

impl Rig {
    pub fn new(json: &[u8], native: bool) -> Rig {
        let pipeline = Pipeline::new(Program::from_json(json).expect("the program loads"));
        let (switch, path, events) = Switch::new(SwitchConfig { native, ..SwitchConfig::default() });
        switch.commit(&pipeline).expect("commit");
        Rig { pipeline, switch, path, events, now: 0 }
    }

    /// Sends a packet; returns the resulting packets with their ports.
    pub fn send(&mut self, port: u32, frame: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.now += 1;
        let mut out = Vec::new();
        self.path.process(self.now, port, frame, &mut |port: u32, head: &[u8], rest: &[u8]| {
            out.push((port, [head, rest].concat()));
        });
        out
    }

    /// Sends a command packet, which must return on port 1 as the only packet.
    pub fn cmd(&mut self, cmd: Cmd) -> Cmd {
        let out = self.send(3, &cmd.bytes());
        assert_eq!(out.len(), 1, "expected one packet for {cmd:?}, got {out:?}");
        assert_eq!(out[0].0, 1, "expected it on port 1");
        Cmd::of(&out[0].1)
    }

    pub fn table(&self, name: &str) -> TableId {
        self.pipeline.info().table(name).expect("a table of this name")
    }

    pub fn call(&self, table: &str, action: &str, params: &[u128]) -> EntryAction {
        let t = &self.pipeline.info().tables[self.table(table).index()];
        let action = t.action(action).expect("an action of this name");
        EntryAction::Call(ActionCall {
            action,
            params: params.iter().map(|p| p.to_be_bytes().to_vec()).collect(),
        })
    }

    pub fn insert(
        &self,
        table: &str,
        fields: Vec<KeyMatch>,
        priority: i32,
        action: EntryAction,
    ) -> Result<(), WriteError> {
        let spec = EntrySpec::new(EntryKey { fields, priority }, action);
        self.pipeline.insert(self.table(table), &spec)
    }
}

pub fn exact(v: u32) -> KeyMatch {
    KeyMatch::Exact(v.to_be_bytes().to_vec())
}

/// Runs a test with native code and without.
pub fn both(json: &[u8], test: impl Fn(&mut Rig)) {
    for native in [true, false] {
        eprintln!("native: {native}");
        test(&mut Rig::new(json, native));
    }
}

//! `stf-run DIR`: runs every `NAME.json` in a directory that has a `NAME.stf`, with the commands of
//! p4c's test corpus, and prints how many passed. It judges like p4c's own runner for BMv2: packets
//! are compared in order for each port, on the ports that the test names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rivulet_engine::*;

/// Result of a test; the error is the reason for its failure.
type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (flags, paths): (Vec<_>, Vec<_>) = args.iter().partition(|a| a.starts_with('-'));
    let verbose = flags.iter().any(|f| *f == "-v");
    let native = !flags.iter().any(|f| *f == "--interpret");
    let [dir] = paths[..] else {
        eprintln!("usage: stf-run [-v] [--interpret] DIR");
        return ExitCode::from(2);
    };
    let mut tests: Vec<PathBuf> = match std::fs::read_dir(dir) {
        Ok(list) => list.flatten().map(|e| e.path()).collect(),
        Err(e) => {
            eprintln!("{dir}: {e}");
            return ExitCode::from(2);
        }
    };
    tests.retain(|p| p.extension().is_some_and(|x| x == "stf") && p.with_extension("json").exists());
    tests.sort();
    let mut failed = 0;
    for stf in &tests {
        let name = stf.file_stem().unwrap_or_default().to_string_lossy();
        match run(stf, verbose, native) {
            Ok(()) if !verbose => {}
            Ok(()) => println!("passed {name}"),
            Err(why) => {
                failed += 1;
                println!("FAILED {name}: {why}");
            }
        }
    }
    println!("{} run, {} passed, {failed} failed", tests.len(), tests.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Packets by port.
type Packets = BTreeMap<u32, Vec<Vec<u8>>>;

struct Runner {
    pipeline: Pipeline,
    switch: DataPath,
    _handle: Switch,
    _events: Events,
    now_us: u64,
    /// Multicast nodes made by `mc_node_create`, by handle.
    nodes: Vec<Vec<Replica>>,
    groups: BTreeMap<u16, Vec<Replica>>,
    out: Packets,
    expected: BTreeMap<u32, Vec<Option<String>>>,
    ports: Vec<u32>,
    verbose: bool,
}

fn run(stf: &Path, verbose: bool, native: bool) -> Outcome {
    let text = std::fs::read_to_string(stf).map_err(|e| e.to_string())?;
    let json = std::fs::read(stf.with_extension("json")).map_err(|e| e.to_string())?;
    let program = Program::from_json(&json).map_err(|e| format!("does not load: {e}"))?;
    let pipeline = Pipeline::new(program);
    let (handle, switch, events) = Switch::new(SwitchConfig { native, ..SwitchConfig::default() });
    handle.commit(&pipeline).map_err(|e| e.to_string())?;
    let mut runner = Runner {
        pipeline,
        switch,
        _handle: handle,
        _events: events,
        now_us: 0,
        nodes: Vec::new(),
        groups: BTreeMap::new(),
        out: BTreeMap::new(),
        expected: BTreeMap::new(),
        ports: Vec::new(),
        verbose,
    };
    for (n, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            runner.command(line).map_err(|e| format!("line {}: {e}", n + 1))?;
        }
    }
    runner.judge()
}

impl Runner {
    fn command(&mut self, line: &str) -> Outcome {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match word.to_ascii_lowercase().as_str() {
            "packet" => self.packet(rest),
            "expect" => self.expect(rest),
            "no_packet" | "wait" => {
                self.now_us += 1_000_000;
                Ok(())
            }
            "add" => self.add(rest),
            "setdefault" => {
                let (table, call) = rest.split_once(char::is_whitespace).ok_or("an action is missing")?;
                let id = self.table(table)?;
                let call = self.call(id, call)?;
                self.pipeline.set_default(id, Some(&EntryAction::Call(call))).map_err(|e| e.to_string())
            }
            "remove" => {
                let mut all = (0..self.pipeline.info().tables.len() as u32).map(TableId);
                all.try_for_each(|t| self.pipeline.clear_table(t)).map_err(|e| e.to_string())
            }
            _ => self.cli(word, rest),
        }
    }

    /// Commands of simple_switch_CLI.
    fn cli(&mut self, word: &str, rest: &str) -> Outcome {
        let args: Vec<&str> = rest.split_whitespace().collect();
        let num = |i: usize| -> Result<u64, String> {
            let text = args.get(i).ok_or("a number is missing")?;
            number(text)
        };
        let e = |e: WriteError| e.to_string();
        match word {
            "mc_mgrp_create" => {
                self.groups.insert(num(0)? as u16, Vec::new());
                Ok(())
            }
            "mc_node_create" => {
                let instance = num(0)? as u16;
                let ports: Result<Vec<u64>, String> = (1..args.len()).map(num).collect();
                self.nodes.push(ports?.into_iter().map(|p| Replica { port: p as u32, instance }).collect());
                Ok(())
            }
            "mc_node_associate" => {
                let (group, node) = (num(0)? as u16, num(1)? as usize);
                let node = self.nodes.get(node).ok_or("no such node")?.clone();
                let members = self.groups.get_mut(&group).ok_or("no such group")?;
                members.extend(node);
                self.pipeline.set_multicast_group(group, Some(members)).map_err(e)
            }
            "mirroring_add" | "mirroring_add_mc" => {
                let (session, to) = (num(0)? as u32, num(1)?);
                let mut config = CloneSession::default();
                if word == "mirroring_add" {
                    config.replicas.push(Replica { port: to as u32, instance: 0 });
                } else {
                    config.multicast_group = Some(to as u16);
                }
                self.pipeline.set_clone_session(session, Some(&config)).map_err(e)
            }
            "mirroring_delete" => self.pipeline.set_clone_session(num(0)? as u32, None).map_err(e),
            "register_write" => {
                let id =
                    self.pipeline.info().register(args.first().unwrap_or(&"")).ok_or("no such register")?;
                self.pipeline.set_register(id, num(1)? as usize, &num(2)?.to_be_bytes()).map_err(e)
            }
            "register_reset" => {
                let id =
                    self.pipeline.info().register(args.first().unwrap_or(&"")).ok_or("no such register")?;
                let size = self.pipeline.info().registers[id.index()].size;
                (0..size).try_for_each(|i| self.pipeline.set_register(id, i, &[0])).map_err(e)
            }
            "counter_write" => {
                let id =
                    self.pipeline.info().counter(args.first().unwrap_or(&"")).ok_or("no such counter")?;
                let value = CounterData { packets: num(2)?, bytes: num(3)? };
                self.pipeline.set_counter(id, num(1)? as usize, value).map_err(e)
            }
            "counter_read" | "register_read" | "mirroring_get" | "meter_get_rates" => Ok(()),
            "meter_set_rates" => {
                let id = self.pipeline.info().meter(args.first().unwrap_or(&"")).ok_or("no such meter")?;
                let config = rates(&args[2.min(args.len())..])?;
                self.pipeline.set_meter(id, num(1)? as usize, Some(config)).map_err(e)
            }
            "meter_array_set_rates" => {
                let id = self.pipeline.info().meter(args.first().unwrap_or(&"")).ok_or("no such meter")?;
                let config = rates(&args[1.min(args.len())..])?;
                let size = self.pipeline.info().meters[id.index()].size;
                (0..size).try_for_each(|i| self.pipeline.set_meter(id, i, Some(config))).map_err(e)
            }
            other => Err(format!("unknown command {other}")),
        }
    }

    fn packet(&mut self, rest: &str) -> Outcome {
        let (port, data) = rest.split_once(char::is_whitespace).ok_or("data is missing")?;
        let port: u32 = port.parse().map_err(|_| "no port")?;
        self.ports.push(port);
        let data: String = data.split_whitespace().collect();
        let bytes = hex_bytes(&data).ok_or("packet data is no whole number of bytes")?;
        self.now_us += 1000;
        let out = &mut self.out;
        let mut keep = |port: u32, head: &[u8], rest: &[u8]| {
            out.entry(port).or_default().push([head, rest].concat());
        };
        if self.verbose {
            println!("{}", self.switch.process_traced(self.now_us, port, &bytes, &mut keep));
        } else {
            self.switch.process(self.now_us, port, &bytes, &mut keep);
        }
        Ok(())
    }

    fn expect(&mut self, rest: &str) -> Outcome {
        let (port, data) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        if port.is_empty() {
            return Ok(());
        }
        let port: u32 = port.parse().map_err(|_| "no port")?;
        self.ports.push(port);
        let data: String = data.split_whitespace().collect();
        self.expected.entry(port).or_default().push((!data.is_empty()).then_some(data));
        Ok(())
    }

    /// Finds a table by its name or a suffix of it.
    fn table(&self, name: &str) -> Result<TableId, String> {
        let tables = &self.pipeline.info().tables;
        let exact = tables.iter().position(|t| t.name == name);
        let found = exact.or_else(|| tables.iter().position(|t| t.name.ends_with(name)));
        found.map(|i| TableId(i as u32)).ok_or_else(|| format!("no table {name}"))
    }

    /// `action(name:value, …)`.
    fn call(&self, table: TableId, text: &str) -> Result<ActionCall, String> {
        let (name, args) = text.trim().split_once('(').ok_or("an action has parentheses")?;
        let args = args.split_once(')').map_or(args, |a| a.0);
        let (info, name) = (self.pipeline.info(), name.trim());
        let t = &info.tables[table.index()];
        let exact = t.action_names.iter().position(|n| n == name);
        let at = exact.or_else(|| t.action_names.iter().position(|n| n.ends_with(name)));
        let action = t.actions[at.ok_or_else(|| format!("no action {name}"))?];
        let mut params = vec![vec![0]; info.actions[action.index()].params.len()];
        for arg in args.split(',').map(str::trim).filter(|a| !a.is_empty()) {
            let (key, value) = arg.split_once(':').ok_or("an argument is name:value")?;
            let list = &info.actions[action.index()].params;
            let i = list
                .iter()
                .position(|p| p.name == key.trim())
                .ok_or_else(|| format!("no parameter {key}"))?;
            params[i] = wide_number(value.trim())?.0;
        }
        Ok(ActionCall { action, params })
    }

    /// `table [priority] field:value … action(…)`.
    fn add(&mut self, rest: &str) -> Outcome {
        let open = rest.find('(').ok_or("an action is missing")?;
        let start = rest[..open].trim_end().rfind(char::is_whitespace).ok_or("an action is missing")?;
        let mut words = rest[..start].split_whitespace();
        let id = self.table(words.next().ok_or("a table is missing")?)?;
        let call = self.call(id, &rest[start..])?;
        let info = &self.pipeline.info().tables[id.index()];
        let mut priority = 0;
        let mut fields: Vec<KeyMatch> = info
            .key
            .iter()
            .map(|k| match k.kind {
                MatchKind::Exact | MatchKind::Valid => KeyMatch::Exact(vec![0]),
                _ => KeyMatch::Any,
            })
            .collect();
        for word in words {
            let Some((key, value)) = word.split_once(':') else {
                priority = number(word)? as i32;
                continue;
            };
            let i = self.field(info, key)?;
            fields[i] = key_match(&info.key[i], value)?;
        }
        if !info.kind.has_priority() {
            priority = 0;
        }
        let spec = EntrySpec::new(EntryKey { fields, priority }, EntryAction::Call(call));
        self.pipeline.insert(id, &spec).map_err(|e| e.to_string())
    }

    /// Finds a key field by its name or a suffix of it; `a$1.b` means `a[1].b`.
    fn field(&self, info: &TableInfo, name: &str) -> Result<usize, String> {
        let mut name = name.to_string();
        if let Some(at) = name.find('$') {
            let digits: String = name[at + 1..].chars().take_while(char::is_ascii_digit).collect();
            if !digits.is_empty() {
                name.replace_range(at..at + 1 + digits.len(), &format!("[{digits}]"));
            }
        }
        let has = |want: &str| info.key.iter().position(|k| k.name == want);
        let ends = |want: String| info.key.iter().position(|k| k.name.ends_with(&want));
        has(&name)
            .or_else(|| has(&format!("{name}$")))
            .or_else(|| has(&format!("{name}.$valid$")))
            .or_else(|| ends(format!(".{name}")))
            .or_else(|| ends(format!(".{name}$")))
            .ok_or_else(|| format!("no key field {name}"))
    }

    /// Compares the received packets with the expected ones.
    fn judge(&self) -> Outcome {
        for port in &self.ports {
            let none = Vec::new();
            let got = self.out.get(port).unwrap_or(&none);
            let expected = self.expected.get(port).map_or(&[][..], |e| e);
            if got.len() != expected.len() {
                let all: Vec<String> = got.iter().map(|p| hex(p)).collect();
                return Err(format!(
                    "port {port}: expected {} packets, got {} {}",
                    expected.len(),
                    got.len(),
                    all.join(" ")
                ));
            }
            for (i, (want, got)) in expected.iter().zip(got).enumerate() {
                if let Some(want) = want {
                    same(want, &hex(got)).map_err(|e| format!("port {port} packet {i}: {e}"))?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a packet is as expected: `*` matches any digit, `$` at the end means that nothing
/// follows.
fn same(want: &str, got: &str) -> Outcome {
    let (digits, exact) = want.strip_suffix('$').map_or((want, false), |w| (w, true));
    let digits = digits.to_ascii_uppercase();
    let differs = got.len() < digits.len()
        || exact && got.len() > digits.len()
        || digits.bytes().zip(got.bytes()).any(|(w, g)| w != b'*' && w != g);
    if differs { Err(format!("expected {want}, got {got}")) } else { Ok(()) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02X}")).collect()
}

fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok()).collect()
}

fn number(text: &str) -> Result<u64, String> {
    let (bytes, _) = wide_number(text)?;
    bytes.iter().try_fold(0u64, |n, b| n.checked_mul(256)?.checked_add((*b).into())).ok_or("too large".into())
}

/// A number of any size and the mask of the digits that are not `*`.
fn wide_number(text: &str) -> Result<(Vec<u8>, Vec<u8>), String> {
    let bad = || format!("`{text}` is no number");
    let lower = text.to_ascii_lowercase();
    let (digits, base, bits) = match lower.get(..2) {
        Some("0x") => (&lower[2..], 16, 4),
        Some("0b") => (&lower[2..], 2, 1),
        Some("0o") => (&lower[2..], 8, 3),
        _ => {
            let n: u128 = lower.parse().map_err(|_| bad())?;
            return Ok((n.to_be_bytes().to_vec(), vec![0xff; 16]));
        }
    };
    // Bit by bit, most significant first.
    let (mut value, mut mask) = (Vec::new(), Vec::new());
    for c in digits.chars() {
        let (v, m) = if c == '*' { (0, 0) } else { (c.to_digit(base).ok_or_else(bad)?, (1 << bits) - 1) };
        for bit in (0..bits).rev() {
            value.push((v >> bit & 1) as u8);
            mask.push((m >> bit & 1) as u8);
        }
    }
    let pack = |bits: &[u8]| -> Vec<u8> {
        let mut out: Vec<u8> = bits.rchunks(8).map(|c| c.iter().fold(0, |n, b| n << 1 | b)).collect();
        out.reverse();
        out
    };
    Ok((pack(&value), pack(&mask)))
}

fn key_match(field: &KeyField, text: &str) -> Result<KeyMatch, String> {
    if field.kind == MatchKind::Lpm {
        let (value, len) = match text.split_once('/') {
            Some((v, len)) => (wide_number(v)?.0, number(len)? as u32),
            None => {
                let (value, mask) = wide_number(text)?;
                let len = match text.get(..2) {
                    Some("0x" | "0b" | "0o") => mask.iter().map(|m| m.count_ones()).sum(),
                    _ => field.width,
                };
                (value, len)
            }
        };
        return Ok(KeyMatch::Lpm { value, prefix_len: len.min(field.width) });
    }
    let (value, mask) = wide_number(text)?;
    Ok(match field.kind {
        MatchKind::Ternary => KeyMatch::Ternary { value, mask },
        MatchKind::Range => KeyMatch::Range { low: value.clone(), high: value },
        _ => KeyMatch::Exact(value),
    })
}

/// `rate:burst rate:burst`, committed first, rates in units a microsecond.
fn rates(args: &[&str]) -> Result<MeterConfig, String> {
    let parse = |text: &&str| -> Result<(u64, u64), String> {
        let (rate, burst) = text.split_once(':').ok_or("a rate is rate:burst")?;
        let rate: f64 = rate.parse().map_err(|_| "no rate")?;
        Ok(((rate * 1e6) as u64, number(burst)?))
    };
    let (cir, cburst) = parse(args.first().ok_or("a rate is missing")?)?;
    let (pir, pburst) = args.get(1).map_or(Ok((cir, cburst)), parse)?;
    Ok(MeterConfig { cir, cburst, pir, pburst })
}

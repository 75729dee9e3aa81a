//! The command line of simple_switch_grpc: general flags, `--`, target flags.
//!
//! It is written by hand because the grammar is that of Boost.Program_options, which no crate
//! implements: long names may be abbreviated if unambiguous, `-i1@veth` and `-i 1@veth` are equal,
//! and the words after the JSON file are parsed again as target flags, with or without `--`.

mod table;

use std::collections::BTreeMap;

pub use table::{Flag, GENERAL, Served, TARGET, Takes};

/// Why a command line is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// Unknown flag.
    #[error("unrecognised option '{0}'")]
    Unknown(String),
    /// Target flag before the separator.
    #[error("option '{0}' belongs after the separator '--'")]
    NeedsSeparator(String),
    /// Abbreviation of several flags.
    #[error("option '{0}' is ambiguous: {1}")]
    Ambiguous(String, String),
    /// Missing value.
    #[error("the required argument for option '{0}' is missing")]
    Missing(String),
    /// Value for a flag without one.
    #[error("option '{0}' does not take any arguments")]
    Extra(String),
    /// Flag given twice.
    #[error("option '{0}' cannot be specified more than once")]
    Twice(String),
    /// Invalid value.
    #[error("the argument ('{value}') for option '{flag}' is invalid: {expected}")]
    Value {
        /// The flag.
        flag: String,
        /// The value given.
        value: String,
        /// The values allowed.
        expected: String,
    },
    /// Flags that contradict each other.
    #[error("{0}")]
    Conflict(String),
}

/// A parsed part of the command line: each flag with its values in order, and the other words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    values: BTreeMap<&'static str, Vec<String>>,
    /// Words that are not flags, and everything after `--`.
    pub positional: Vec<String>,
}

impl Parsed {
    /// Whether the flag was given.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.values.contains_key(flag)
    }

    /// The value of a flag that can be given once.
    #[must_use]
    pub fn get(&self, flag: &str) -> Option<&str> {
        self.values.get(flag)?.first().map(String::as_str)
    }

    /// All values of a repeatable flag.
    #[must_use]
    pub fn all(&self, flag: &str) -> &[String] {
        self.values.get(flag).map_or(&[], Vec::as_slice)
    }

    /// Names of the given flags.
    pub fn given(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.values.keys().copied()
    }

    /// A value as a number.
    pub fn number<T: std::str::FromStr>(&self, flag: &str) -> Result<Option<T>, FlagError> {
        let Some(text) = self.get(flag) else { return Ok(None) };
        let bad = || FlagError::Value {
            flag: flag.into(),
            value: text.into(),
            expected: format!("a number ({})", std::any::type_name::<T>()),
        };
        text.parse().map(Some).map_err(|_| bad())
    }

    fn add(&mut self, flag: &'static Flag, value: String) -> Result<(), FlagError> {
        let values = self.values.entry(flag.name).or_default();
        if !values.is_empty() && !flag.repeats {
            return Err(FlagError::Twice(flag.name.into()));
        }
        values.push(value);
        Ok(())
    }
}

/// Parses words with a table of flags.
pub fn parse(table: &'static [Flag], words: &[String]) -> Result<Parsed, FlagError> {
    let mut parsed = Parsed::default();
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        rest = after;
        if word == "--" {
            parsed.positional.extend_from_slice(rest);
            break;
        }
        let Some((flag, inline)) = recognise(table, word)? else {
            parsed.positional.push(word.clone());
            continue;
        };
        let value = match (flag.takes, inline) {
            (Takes::Nothing, None) => String::new(),
            (Takes::Nothing, Some(_)) => return Err(FlagError::Extra(flag.name.into())),
            (Takes::Value, None) => {
                let (value, after) =
                    rest.split_first().ok_or_else(|| FlagError::Missing(flag.name.into()))?;
                if value == "--" || matches!(recognise(table, value), Ok(Some(_))) {
                    return Err(FlagError::Missing(flag.name.into()));
                }
                rest = after;
                value.clone()
            }
            (Takes::Value | Takes::DirectoryOr(_), Some("")) => {
                return Err(FlagError::Missing(flag.name.into()));
            }
            (Takes::Value | Takes::DirectoryOr(_), Some(value)) => value.to_string(),
            (Takes::DirectoryOr(implicit), None) => match rest.split_first() {
                // Versions of Boost differ in whether the next word belongs to such a flag. An
                // existing directory can only be its value.
                Some((value, after)) if std::path::Path::new(value).is_dir() => {
                    rest = after;
                    value.clone()
                }
                _ => implicit.into(),
            },
        };
        parsed.add(flag, value)?;
    }
    Ok(parsed)
}

/// The flag of a word, and the value within the word. `None` if the word is not a flag.
fn recognise<'w>(
    table: &'static [Flag],
    word: &'w str,
) -> Result<Option<(&'static Flag, Option<&'w str>)>, FlagError> {
    let unknown = || FlagError::Unknown(word.into());
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        if let Some(flag) = table.iter().find(|f| f.name == name) {
            return Ok(Some((flag, value)));
        }
        let candidates: Vec<&Flag> =
            table.iter().filter(|f| !name.is_empty() && f.name.starts_with(name)).collect();
        return match candidates[..] {
            [flag] => Ok(Some((flag, value))),
            [] if TARGET.iter().any(|f| f.name == name) => Err(FlagError::NeedsSeparator(word.into())),
            [] => Err(unknown()),
            _ => {
                let names: Vec<_> = candidates.iter().map(|f| f.name).collect();
                Err(FlagError::Ambiguous(word.into(), names.join(", ")))
            }
        };
    }
    let Some(short) = word.strip_prefix('-').filter(|s| !s.is_empty()) else { return Ok(None) };
    let letter = short.chars().next();
    let flag = table.iter().find(|f| f.short.is_some() && f.short == letter).ok_or_else(unknown)?;
    let value = &short[letter.map_or(0, char::len_utf8)..];
    Ok(Some((flag, (!value.is_empty()).then_some(value))))
}

/// The help text, with BMv2's flags and ours.
#[must_use]
pub fn usage() -> String {
    let mut text = String::from(
        "Usage: rivulet-switch [options] <path to JSON config file> [-- target options]\n\nOptions:\n",
    );
    table::describe(GENERAL, &mut text);
    text.push_str("\nTarget options, after the separator '--':\n");
    table::describe(TARGET, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(Into::into).collect()
    }

    fn general(line: &str) -> Result<Parsed, FlagError> {
        parse(GENERAL, &words(line))
    }

    #[test]
    fn values_are_accepted_in_every_form() {
        for line in
            ["-i 1@veth1", "-i1@veth1", "--interface 1@veth1", "--interface=1@veth1", "--inter 1@veth1"]
        {
            assert_eq!(general(line).unwrap().all("interface"), ["1@veth1"], "{line}");
        }
        let two = general("-i 1@a -i 2@b").unwrap();
        assert_eq!(two.all("interface"), ["1@a", "2@b"]);
        let p = general("-L debug --device-id=7 x.json --no-p4 -- --cpu-port 510 -i").unwrap();
        assert_eq!(
            (p.get("log-level"), p.get("device-id"), p.has("no-p4")),
            (Some("debug"), Some("7"), true)
        );
        assert_eq!(p.positional, ["x.json", "--cpu-port", "510", "-i"]);
    }

    #[test]
    fn directory_may_follow_pcap_flag() {
        assert_eq!(general("--pcap").unwrap().get("pcap"), Some("."));
        assert_eq!(general("--pcap=/nowhere").unwrap().get("pcap"), Some("/nowhere"));
        assert_eq!(general("--pcap / x.json").unwrap().get("pcap"), Some("/"));
        let p = general("--pcap x.json").unwrap();
        assert_eq!((p.get("pcap"), &p.positional), (Some("."), &words("x.json")));
    }

    #[test]
    fn flags_refused_by_bmv2_are_refused() {
        let error = |line| general(line).unwrap_err();
        assert_eq!(error("--no-such-flag"), FlagError::Unknown("--no-such-flag".into()));
        assert_eq!(error("-z"), FlagError::Unknown("-z".into()));
        assert_eq!(error("--interface"), FlagError::Missing("interface".into()));
        assert_eq!(error("-i --no-p4"), FlagError::Missing("interface".into()));
        assert_eq!(error("--device-id --"), FlagError::Missing("device-id".into()));
        assert_eq!(error("--no-p4=1"), FlagError::Extra("no-p4".into()));
        assert_eq!(error("--device-id 1 --device-id 2"), FlagError::Twice("device-id".into()));
        assert!(matches!(error("--log-file-max x"), FlagError::Ambiguous(..)));
        assert_eq!(error("--cpu-port 510"), FlagError::NeedsSeparator("--cpu-port".into()));
    }

    #[test]
    fn numbers_are_checked() {
        let p = general("--device-id 18446744073709551615 --max-port-count 1x").unwrap();
        assert_eq!(p.number::<u64>("device-id").unwrap(), Some(u64::MAX));
        assert!(p.number::<i32>("max-port-count").is_err());
        assert_eq!(p.number::<u16>("thrift-port").unwrap(), None);
    }

    /// Every flag in BMv2's sources is in the tables.
    #[test]
    fn tables_hold_each_flag_of_bmv2() {
        const BMV2: &str = "help interface pcap use-files packet-in thrift-port device-id nanolog log-console log-file \
            log-level log-flush log-file-max-size log-file-max-files notifications-addr debugger debugger-addr \
            restore-state dump-packet-data version json-version no-p4 max-port-count";
        const SIMPLE_SWITCH_GRPC: &str = "disable-swap grpc-server-addr grpc-server-ssl grpc-server-cacert \
            grpc-server-cert grpc-server-key grpc-server-with-client-auth cpu-port drop-port dp-grpc-server-addr \
            priority-queues max-mc-groups max-l1-entries max-l2-entries load-modules";
        for (table, names) in [(GENERAL, BMV2), (TARGET, SIMPLE_SWITCH_GRPC)] {
            for name in names.split_whitespace() {
                assert!(table.iter().any(|f| f.name == name), "{name}");
            }
        }
    }

    #[test]
    fn names_are_unique() {
        for table in [GENERAL, TARGET] {
            for (i, flag) in table.iter().enumerate() {
                assert!(table[..i].iter().all(|f| f.name != flag.name), "{}", flag.name);
                assert!(flag.short.is_none() || table[..i].iter().all(|f| f.short != flag.short));
            }
        }
    }
}

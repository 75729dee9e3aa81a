//! Digest lists (P4Runtime section 9.8): samples collect until the list is full or the oldest one
//! has waited for the timeout. A sample that waits, or was sent and is not acknowledged, is not
//! sent again. The caller provides the time, in nanoseconds from any start.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use rivulet_engine::{DigestId, DigestSample};

use crate::bytestring::bytes_for;
use crate::config::Config;
use crate::data::DataType;
use crate::proto::p4::v1 as p4;
use crate::translation::Snapshot;

/// Longest list; `max_list_size` 0 and larger values mean this.
const MAX_LIST: usize = 1024;
/// Samples of one digest remembered as sent and not acknowledged; beyond it the oldest lists are
/// forgotten.
const MAX_UNACKNOWLEDGED: usize = 65_536;

/// The digests of the forwarding pipeline.
#[derive(Default)]
pub struct Digests {
    pipeline: Option<u64>,
    ids: HashMap<DigestId, u32>,
    digests: BTreeMap<u32, Digest>,
    /// All digests of the P4Info, enabled or not.
    known: HashSet<u32>,
    next_list: u64,
    /// Strings of translated types.
    names: Snapshot,
}

type Data = Arc<[u8]>;

struct Digest {
    config: p4::digest_entry::Config,
    data: DataType,
    widths: Vec<u32>,
    waiting: Vec<Data>,
    since: u64,
    /// Samples that wait or are unacknowledged.
    seen: HashSet<Data>,
    sent: VecDeque<Sent>,
    unacknowledged: usize,
}

struct Sent {
    list: u64,
    at: u64,
    data: Vec<Data>,
}

impl Digests {
    /// Adopts a forwarding configuration, after a commit or a write of a digest entry. Waiting and
    /// unacknowledged samples are kept if the pipeline is the same and the digest is still enabled.
    pub fn configure(&mut self, config: &Config) {
        if self.pipeline != Some(config.pipeline.serial()) {
            self.digests.clear();
            self.pipeline = Some(config.pipeline.serial());
        }
        self.ids = config.index.digests.values().flat_map(|d| d.engine.iter().map(|e| (*e, d.id))).collect();
        self.known = config.index.digests.keys().copied().collect();
        self.digests.retain(|id, _| config.digests.contains_key(id));
        for (id, settings) in &config.digests {
            let Some(index) = config.index.digests.get(id) else { continue };
            let digest = self.digests.entry(*id).or_insert_with(|| Digest {
                config: *settings,
                data: index.data.clone(),
                widths: index.widths.clone(),
                waiting: Vec::new(),
                since: 0,
                seen: HashSet::new(),
                sent: VecDeque::new(),
                unacknowledged: 0,
            });
            digest.config = *settings;
        }
    }

    /// Adopts the strings of translated types after a write.
    pub fn set_names(&mut self, names: Snapshot) {
        self.names = names;
    }

    /// Adds a sample of the packet path. Returns the list if it is now full.
    pub fn sample(&mut self, now: u64, sample: &DigestSample) -> Option<p4::DigestList> {
        if self.pipeline != Some(sample.pipeline) {
            return None;
        }
        let id = *self.ids.get(&sample.digest)?;
        let digest = self.digests.get_mut(&id)?;
        digest.expire(now);
        let data: Data = Arc::from(&sample.data[..]);
        if !digest.seen.insert(data.clone()) {
            return None;
        }
        if digest.waiting.is_empty() {
            digest.since = now;
        }
        digest.waiting.push(data);
        if digest.waiting.len() >= digest.list_size() || digest.config.max_timeout_ns == 0 {
            return Some(digest.send(id, now, &mut self.next_list, &self.names));
        }
        None
    }

    /// Lists whose oldest sample has reached the timeout.
    pub fn due(&mut self, now: u64) -> Vec<p4::DigestList> {
        let (next, names) = (&mut self.next_list, &self.names);
        let due = |d: &Digest| !d.waiting.is_empty() && now >= d.deadline();
        self.digests.iter_mut().filter(|(_, d)| due(d)).map(|(id, d)| d.send(*id, now, next, names)).collect()
    }

    /// When [`due`](Self::due) must be called next.
    pub fn deadline(&self) -> Option<u64> {
        self.digests.values().filter(|d| !d.waiting.is_empty()).map(Digest::deadline).min()
    }

    /// Acknowledges a list. Returns false if the P4Info has no such digest.
    pub fn acknowledge(&mut self, ack: &p4::DigestListAck) -> bool {
        if let Some(digest) = self.digests.get_mut(&ack.digest_id)
            && let Some(at) = digest.sent.iter().position(|s| s.list == ack.list_id)
        {
            digest.forget(at);
        }
        self.known.contains(&ack.digest_id)
    }

    /// A new primary has acknowledged nothing, so every sample may be sent to it.
    pub fn new_primary(&mut self) {
        for digest in self.digests.values_mut() {
            while !digest.sent.is_empty() {
                digest.forget(0);
            }
        }
    }
}

impl Digest {
    fn list_size(&self) -> usize {
        usize::try_from(self.config.max_list_size)
            .ok()
            .filter(|n| *n > 0)
            .map_or(MAX_LIST, |n| n.min(MAX_LIST))
    }

    fn deadline(&self) -> u64 {
        self.since.saturating_add(u64::try_from(self.config.max_timeout_ns).unwrap_or(0))
    }

    fn send(&mut self, id: u32, now: u64, next_list: &mut u64, names: &Snapshot) -> p4::DigestList {
        *next_list += 1;
        let data = std::mem::take(&mut self.waiting);
        let list = p4::DigestList {
            digest_id: id,
            list_id: *next_list,
            data: data.iter().map(|d| self.message(d, names)).collect(),
            timestamp: crate::server::epoch_ns(),
        };
        self.unacknowledged += data.len();
        self.sent.push_back(Sent { list: *next_list, at: now, data });
        while self.config.ack_timeout_ns == 0 && !self.sent.is_empty()
            || self.unacknowledged > MAX_UNACKNOWLEDGED
        {
            self.forget(0);
        }
        list
    }

    fn message(&self, data: &[u8], names: &Snapshot) -> p4::P4Data {
        let mut rest = data;
        let mut values = self.widths.iter().map(|w| {
            let (value, after) = rest.split_at_checked(bytes_for(*w)).unwrap_or((&[0], &[]));
            rest = after;
            value
        });
        self.data.write(&mut values, names)
    }

    fn expire(&mut self, now: u64) {
        let timeout = u64::try_from(self.config.ack_timeout_ns).unwrap_or(0);
        while self.sent.front().is_some_and(|s| now.saturating_sub(s.at) >= timeout) {
            self.forget(0);
        }
    }

    fn forget(&mut self, at: usize) {
        if let Some(sent) = self.sent.remove(at) {
            self.unacknowledged -= sent.data.len();
            for data in sent.data {
                self.seen.remove(&data);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn digests(max_list_size: i32, max_timeout_ms: i64, ack_timeout_ms: i64) -> Digests {
        let config = p4::digest_entry::Config {
            max_list_size,
            max_timeout_ns: max_timeout_ms * MS as i64,
            ack_timeout_ns: ack_timeout_ms * MS as i64,
        };
        let digest = Digest {
            config,
            data: DataType::Struct(vec![DataType::Unsigned(9), DataType::Unsigned(8)]),
            widths: vec![9, 8],
            waiting: Vec::new(),
            since: 0,
            seen: HashSet::new(),
            sent: VecDeque::new(),
            unacknowledged: 0,
        };
        Digests {
            pipeline: Some(1),
            ids: [(DigestId(0), 5)].into(),
            digests: [(5, digest)].into(),
            known: [5].into(),
            next_list: 0,
            names: Snapshot::default(),
        }
    }

    fn sample(value: u8) -> DigestSample {
        DigestSample {
            digest: DigestId(0),
            pipeline: 1,
            time_us: 0,
            data: [0, 1, value].into_iter().collect(),
        }
    }

    /// The last field of each sample of a list.
    fn values(list: &p4::DigestList) -> Vec<u8> {
        let last = |d: &p4::P4Data| match d.data.as_ref() {
            Some(p4::p4_data::Data::Struct(s)) => match s.members[1].data.as_ref() {
                Some(p4::p4_data::Data::Bitstring(b)) => b[0],
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        list.data.iter().map(last).collect()
    }

    #[test]
    fn a_list_of_one_is_sent_at_once() {
        let mut d = digests(1, 0, 0);
        assert_eq!(values(&d.sample(0, &sample(7)).unwrap()), [7]);
        assert_eq!(values(&d.sample(0, &sample(7)).unwrap()), [7], "ack_timeout 0: nothing is remembered");
    }

    #[test]
    fn a_list_waits_to_be_full_or_old() {
        let mut d = digests(3, 10, 0);
        assert!(d.sample(0, &sample(1)).is_none());
        assert!(d.sample(MS, &sample(1)).is_none(), "equal samples are one");
        assert!(d.sample(2 * MS, &sample(2)).is_none());
        assert_eq!(d.deadline(), Some(10 * MS));
        assert!(d.due(10 * MS - 1).is_empty());
        assert_eq!(values(&d.due(10 * MS)[0]), [1, 2]);
        assert_eq!(d.deadline(), None);
        assert!(d.sample(11 * MS, &sample(1)).is_none());
        assert!(d.sample(11 * MS, &sample(2)).is_none());
        assert_eq!(values(&d.sample(11 * MS, &sample(3)).unwrap()), [1, 2, 3]);
    }

    #[test]
    fn unacknowledged_samples_are_not_repeated() {
        let mut d = digests(1, 0, 50);
        let list = d.sample(0, &sample(1)).unwrap();
        assert!(d.sample(MS, &sample(1)).is_none());
        let other = p4::DigestListAck { digest_id: 5, list_id: list.list_id + 1 };
        assert!(d.acknowledge(&other));
        assert!(d.sample(MS, &sample(1)).is_none(), "another list was acknowledged");
        assert!(d.acknowledge(&p4::DigestListAck { digest_id: 5, list_id: list.list_id }));
        assert!(d.sample(MS, &sample(1)).is_some());
        assert!(d.sample(50 * MS, &sample(1)).is_none());
        assert!(d.sample(51 * MS, &sample(1)).is_some(), "the acknowledgement timed out");
        d.new_primary();
        assert!(d.sample(52 * MS, &sample(1)).is_some());
        assert!(!d.acknowledge(&p4::DigestListAck { digest_id: 6, list_id: 1 }));
    }

    #[test]
    fn memory_is_bounded() {
        let mut d = digests(0, 1_000_000, 1_000_000);
        for i in 0..200_000u32 {
            let data = i.to_be_bytes().into_iter().skip(1).collect();
            d.sample(0, &DigestSample { data, ..sample(0) });
        }
        let digest = &d.digests[&5];
        assert!(digest.unacknowledged <= MAX_UNACKNOWLEDGED);
        assert_eq!(digest.seen.len(), digest.unacknowledged + digest.waiting.len());
    }

    #[test]
    fn samples_of_another_pipeline_are_dropped() {
        let mut d = digests(1, 0, 0);
        assert!(d.sample(0, &DigestSample { pipeline: 2, ..sample(1) }).is_none());
    }
}

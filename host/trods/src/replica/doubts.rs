//! Connections of which it is not known whether they go on: those that their server ended too early, and those that the kernel
//! does not know.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rivulet_bpf::trods::FlowKey;

use super::body::{ACCEPT, Body, DEATH};
use crate::hold::HoldError;

impl Body {
    /// Probes clients of unknown connections: the kernel's first RST to each was held back.
    pub(super) fn ask_refused(&mut self, now: Instant) {
        for (key, seq) in self.watch.refused() {
            self.refusals.note(key, seq, now);
        }
        let (watch, rescue) = (&self.watch, &self.rescue);
        let is_known = |key: &FlowKey| watch.has(key) || rescue.looks_for(key);
        for (key, seq) in self.refusals.due(now, is_known, |key| watch.may_send(&key.service())) {
            tracing::debug!(client = %key.client(), "probed the client: the kernel does not know its connection");
            rescue.ask(&key, seq);
        }
    }

    /// Checks whether the servers of connections that ended too early are alive.
    pub(super) fn judge(&mut self) -> Result<(), HoldError> {
        let mut lives: HashMap<SocketAddr, bool> = HashMap::new();
        while self.early.front().is_some_and(|(at, _)| at.elapsed() >= DEATH)
            && let Some((_, key)) = self.early.pop_front()
        {
            let service = key.service();
            let accepts = || TcpStream::connect_timeout(&service, ACCEPT).is_ok();
            let lives = *lives.entry(service).or_insert_with(accepts);
            if let Some(mut record) = self.watch.judge(&key, lives)? {
                // A restarted server may have other objects.
                self.digests.fill(&key, &mut record.responses);
                self.digests.forget(service, &record.responses);
                self.rescue.here(key, record, Instant::now());
            }
        }
        Ok(())
    }
}

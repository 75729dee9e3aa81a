//! What plain clients are answered from: content, memory and the way to the kernel, as the program
//! sets them.

use std::sync::Arc;

use rivulet_plain::Table;

use super::Server;
use super::door::{self, Content};
use crate::adopt::Doorway;
use crate::back_end::{BackEnd, Exchanges};
use crate::service::{Plain, Service};

impl Server {
    /// Serves these objects to plain clients, for services that answer them without state. All
    /// replicas must have the same objects.
    pub fn set_objects(&mut self, table: Arc<Table>) {
        self.exchanges = None;
        self.set_content(Content::Objects(table));
    }

    /// Answers plain clients through a back end, for services that answer them without state. All
    /// replicas must have the same program behind them.
    ///
    /// # Errors
    /// No descriptors or threads are left for it.
    pub fn set_back_end(&mut self, back_end: BackEnd) -> std::io::Result<()> {
        let mut exchanges = Exchanges::new(back_end)?;
        // Only the leader probes the back end, for all workers, as it sends heartbeats for all.
        if self.place.leads() {
            exchanges.probe()?;
        }
        self.exchanges = Some(exchanges);
        self.set_content(Content::BackEnd(back_end));
        Ok(())
    }

    fn set_content(&mut self, content: Content) {
        for running in &mut self.running {
            running.plain = door::door(&running.service, Some(&content), self.link.mtu, self.memory);
        }
        self.content = Some(content);
    }

    /// Version of the content for plain clients, never 0; `None` without content. Replicas with the
    /// same version send the same bytes.
    #[must_use]
    pub fn content(&self) -> Option<u32> {
        self.content.as_ref().map(Content::version)
    }

    /// The first service that does not answer plain clients here because other content is in force.
    #[must_use]
    pub fn without_content(&self) -> Option<&Service> {
        let other = |service: &&Service| {
            let wanted = service.content.filter(|_| service.plain == Plain::Stateless);
            wanted.is_some_and(|wanted| Some(wanted.version) != self.content())
        };
        self.services().find(other)
    }

    /// Lets the kernel's TCP take over connections of plain clients that cannot be answered without
    /// state. All workers of a replica get clones of one doorway. If the system does not allow it,
    /// a warning gives the reason.
    pub fn set_doorway(&mut self, doorway: Doorway) {
        self.adopter.set_doorway(doorway);
        self.prepare_to_adopt();
    }

    pub(super) fn prepare_to_adopt(&mut self) {
        let changes = self.services().any(Service::changes_hands);
        self.kernel.prepare(changes, self.io.interface().netns());
        if self.services().any(Service::answers_plain) {
            self.adopter.prepare(self.io.interface().netns());
        }
    }

    /// Connections taken over by the kernel and still held, over all workers.
    #[must_use]
    pub fn adopted(&self) -> usize {
        self.adopter.held()
    }

    /// Sets whether answers in progress are remembered (default: yes). For measurements of the
    /// benefit.
    pub fn set_ring(&mut self, ring: bool) {
        self.memory.ring = ring;
        self.set_memory();
    }

    /// Sets whether large objects are answered without state too (default: no).
    pub fn set_large(&mut self, large: bool) {
        self.memory.large = large;
        self.set_memory();
    }

    pub(super) fn set_memory(&mut self) {
        for running in &mut self.running {
            if let Some(plain) = &mut running.plain {
                plain.set_memory(self.memory);
            }
        }
    }
}

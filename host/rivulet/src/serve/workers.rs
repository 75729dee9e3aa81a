//! The packet path's other threads; each serves its share of the flows.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rivulet_plain::Table;
use rivulet_server::service::Service;
use rivulet_server::{Application, Server};

use super::metrics;
use super::stateless::application;
use crate::http::Site;
use crate::process::{prefer_this_thread, stopped};

/// Interval of work outside of the packet path.
const CHORES: Duration = Duration::from_millis(5);

/// A message to a worker.
enum Change {
    Services(Vec<Service>),
    Objects(Arc<Table>),
}

/// Threads of the packet path, which end on request.
pub(super) struct Workers(Vec<Worker>);

struct Worker {
    changes: Sender<Change>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Starts a thread for each server but the first (the leader), which runs on the calling
    /// thread.
    pub(super) fn start(
        servers: Vec<Server>,
        site: Option<&Site>,
        metrics: &metrics::Shared,
    ) -> anyhow::Result<Workers> {
        let mut workers = Workers(Vec::with_capacity(servers.len()));
        for (index, server) in (1..).zip(servers) {
            let (to_worker, changes) = channel();
            let (application, metrics) = (application(site), metrics.clone());
            let thread = std::thread::Builder::new()
                .name(format!("worker {index}"))
                .spawn(move || work(index, server, application, &changes, &metrics))
                .context("a worker's thread")?;
            workers.0.push(Worker { changes: to_worker, thread: Some(thread) });
        }
        Ok(workers)
    }

    /// Passes the leader's services to the other workers.
    pub(super) fn replace(&self, services: &[Service]) {
        for worker in &self.0 {
            // An error means that the worker has ended, which `check` reports.
            let _ = worker.changes.send(Change::Services(services.to_vec()));
        }
    }

    /// Sets the table from which plain clients are served without state.
    pub(super) fn set_objects(&self, table: &Arc<Table>) {
        for worker in &self.0 {
            let _ = worker.changes.send(Change::Objects(table.clone()));
        }
    }

    /// Returns an error if a worker has ended early: its share of the flows would be lost, while
    /// heartbeats continue.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.0.iter().any(|worker| worker.thread.as_ref().is_some_and(JoinHandle::is_finished))
            && !stopped()
        {
            bail!("a worker of the packet path has ended");
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for thread in self.0.iter_mut().filter_map(|worker| worker.thread.take()) {
            // Workers check `stopped` like the leader. After an error the process exits without
            // waiting for them.
            if stopped() {
                let _ = thread.join();
            }
        }
    }
}

fn work(
    index: usize,
    mut server: Server,
    mut application: Box<dyn Application + Send>,
    changes: &Receiver<Change>,
    metrics: &metrics::Shared,
) {
    prefer_this_thread();
    let mut chores = Instant::now();
    while !stopped() {
        server.turn(application.as_mut(), CHORES);
        if chores.elapsed() < CHORES {
            continue;
        }
        chores = Instant::now();
        while let Ok(change) = changes.try_recv() {
            match change {
                Change::Objects(table) => server.set_objects(table),
                Change::Services(services) => {
                    if let Err(e) = server.replace(services) {
                        // The leader applied the same update, so only this socket's filter can have
                        // failed.
                        tracing::error!(worker = index, error = %e, "update not taken up");
                    }
                }
            }
        }
        metrics.take(index, &mut server);
    }
}

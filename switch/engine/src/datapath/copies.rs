//! Copies of packets, and the queues of ports.

use super::*;

impl Core {
    /// The queue for a packet's priority; `None` (and a count) if there is no such queue.
    pub(super) fn priority(&mut self, program: &Program) -> Option<usize> {
        let priority = self.get(program.special.priority);
        if priority < u64::from(self.config.priority_queues.max(1)) {
            return Some(priority as usize);
        }
        bump(&self.stats.queue_full);
        self.drop_step("no queue of that priority");
        None
    }

    /// Stores the packet in the frame for an egress pass.
    pub(super) fn enqueue(
        &mut self,
        program: &Program,
        current: &Current,
        taken: usize,
        port: u32,
        frame: &[u8],
    ) {
        let Some(priority) = self.priority(program) else { return };
        let depth = self.ports.get(&port).map_or(0, |q| q.len(priority)) as u64;
        self.set(program.special.enq_timestamp, self.vm.now_us);
        self.set(program.special.enq_qdepth, depth);
        let mut job = Job {
            phv: self.save(program),
            bytes: current.bytes.clone(),
            length: current.length,
            taken,
            ingress_length: current.ingress_length,
            ingress_port: current.ingress_port,
            egress: Some(port),
            priority,
        };
        let rated = self.ports.contains_key(&port) || self.all_ports.is_some();
        if !rated {
            self.jobs.push_back(job);
            return;
        }
        // The job will outlive the received frame, so copy its bytes.
        if let Bytes::Frame = job.bytes {
            job.bytes = Bytes::Own(self.buffer(|b| b.extend_from_slice(&frame[..current.length])));
        }
        let (now, queues) = (self.vm.now_us, self.config.priority_queues.max(1) as usize);
        if let Some((rate, depth)) = self.all_ports {
            self.ports.entry(port).or_insert_with(|| PortQueue::new(rate, depth, queues));
        }
        if let Some(q) = self.ports.get_mut(&port)
            && let Err(job) = q.push(job, now)
        {
            self.phvs.push(job.phv);
            bump(&self.stats.queue_full);
            self.drop_step("queue full");
        }
    }

    /// An unshared buffer, filled by `fill`.
    pub(super) fn buffer(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> Arc<Vec<u8>> {
        const POOL: usize = 64;
        let free = self.buffers.iter().position(|b| Arc::strong_count(b) == 1);
        let mut own = match free {
            Some(i) => self.buffers.swap_remove(i),
            None => Arc::new(Vec::new()),
        };
        match Arc::get_mut(&mut own) {
            Some(b) => {
                b.clear();
                fill(b);
            }
            None => {
                let mut b = Vec::new();
                fill(&mut b);
                own = Arc::new(b);
            }
        }
        if self.buffers.len() < POOL {
            self.buffers.push(own.clone());
        }
        own
    }

    /// Counts a copy; returns false beyond the limit.
    pub(super) fn another_copy(&mut self, kind: &str, port: u32) -> bool {
        self.copies += 1;
        if self.copies <= self.config.max_copies {
            self.note(|| Step::Copy { kind: kind.into(), port });
            return true;
        }
        bump(&self.stats.pass_limit);
        self.drop_step("too many copies");
        false
    }

    pub(super) fn replicate(
        &mut self,
        program: &Program,
        current: &Current,
        taken: usize,
        to: &Replica,
        kind: &str,
        frame: &[u8],
    ) {
        if self.another_copy(kind, to.port) {
            self.set(program.special.egress_rid, to.instance.into());
            self.enqueue(program, current, taken, to.port, frame);
        }
    }

    pub(super) fn multicast(
        &mut self,
        program: &Program,
        rt: &Runtime,
        current: &Current,
        taken: usize,
        group: u16,
        frame: &[u8],
    ) {
        let replicas = rt.multicast.get(&group).map_or(&[][..], |r| r);
        if replicas.is_empty() {
            bump(&self.stats.no_multicast_group);
            self.drop_step("multicast group without replicas");
        }
        // The packet's flags do not apply to its copies.
        let s = &program.special;
        for slot in [s.clone, s.clone_list, s.digest, s.resubmit, s.recirculate] {
            self.vm.frame[slot as usize] = 0;
        }
        for to in replicas {
            self.replicate(program, current, taken, to, "multicast", frame);
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn ingress_clone(
        &mut self,
        program: &Program,
        rt: &Runtime,
        current: &Current,
        data: &[u8],
        session: u64,
        list: u64,
        ingress_size: u64,
        frame: &[u8],
    ) {
        let Some(clone) = rt.clones.get(&(session as u32)).cloned() else { return };
        let s = &program.special;
        let original = self.save(program);
        let length = (data.len() as u64).min(self.vm.frame[s.truncate as usize]) as usize;
        // The clone is parsed again from the received frame; it keeps only the metadata in the
        // list.
        let found = program.field_lists.iter().find(|l| u64::from(l.0) == list);
        let fields: SmallVec<[Field; 16]> = found.map_or(SmallVec::new(), |l| l.1.iter().copied().collect());
        self.vm.clear(program);
        self.set(s.ingress_port, current.ingress_port.into());
        self.vm.frame[s.length as usize] = ingress_size;
        let mut packet =
            Packet { data: &data[..length], taken: 0, ingress_length: current.ingress_length, written: 0 };
        let code = self.code(program);
        let trace = self.vm.trace.take();
        self.execute(program, rt, &mut packet, code.parser);
        self.vm.trace = trace;
        self.vm.fault = None;
        let taken = packet.taken;
        self.clear_metadata(program);
        for f in fields.iter().filter(|f| !f.vl) {
            let at = f.slot as usize..f.slot as usize + limb_count(f.width);
            self.vm.frame[at.clone()].copy_from_slice(&original.slots[at]);
        }
        self.set(s.instance_type, instance::INGRESS_CLONE);
        self.vm.frame[s.truncate as usize] = clone.truncate;
        let copy = Current { length, ..current.clone() };
        self.send_clones(program, rt, &copy, taken, &clone, "ingress clone", frame);
        self.restore(&original);
        self.phvs.push(original);
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn send_clones(
        &mut self,
        program: &Program,
        rt: &Runtime,
        copy: &Current,
        taken: usize,
        clone: &crate::runtime::RtClone,
        kind: &str,
        frame: &[u8],
    ) {
        if self.config.priority_queues > 1 {
            self.set(program.special.priority, clone.class_of_service.into());
        }
        if let Some(group) = clone.group {
            for to in rt.multicast.get(&group).map_or(&[][..], |r| r) {
                self.replicate(program, copy, taken, to, kind, frame);
            }
        }
        for to in &clone.replicas {
            self.replicate(program, copy, taken, to, kind, frame);
        }
    }

    pub(super) fn egress_clone(
        &mut self,
        program: &Program,
        rt: &Runtime,
        current: &Current,
        taken: usize,
        clone: &crate::runtime::RtClone,
        frame: &[u8],
    ) {
        let s = &program.special;
        let original = self.save(program);
        let list = self.vm.frame[s.clone_list as usize];
        let cut = self.vm.frame[s.truncate as usize];
        self.keep_list(program, list, false);
        self.set(s.instance_type, instance::EGRESS_CLONE);
        self.vm.frame[s.truncate as usize] = clone.truncate;
        let rest = (current.length.saturating_sub(taken) as u64).min(cut) as usize;
        let copy = Current { length: taken + rest, ..current.clone() };
        self.send_clones(program, rt, &copy, taken, clone, "egress clone", frame);
        self.restore(&original);
        self.phvs.push(original);
    }

    pub(crate) fn set_queue(&mut self, port: Option<u32>, rate_pps: Option<u64>, depth: usize) {
        let queues = self.config.priority_queues.max(1) as usize;
        match (port, rate_pps) {
            (Some(port), Some(rate)) => {
                self.ports
                    .entry(port)
                    .or_insert_with(|| PortQueue::new(rate, depth, queues))
                    .set(rate, depth);
            }
            (Some(port), None) => {
                if let Some(q) = self.ports.get_mut(&port) {
                    q.set(u64::MAX, depth);
                }
            }
            (None, Some(rate)) => {
                self.all_ports = Some((rate, depth));
                self.ports.values_mut().for_each(|q| q.set(rate, depth));
            }
            (None, None) => {
                self.all_ports = None;
                self.ports.values_mut().for_each(|q| q.set(u64::MAX, depth));
            }
        }
    }

    pub(super) fn drop_queued(&mut self) {
        self.ports.values_mut().for_each(|q| q.clear());
        self.jobs.clear();
    }

    /// Sends due packets; returns when the next one is due.
    pub(super) fn due(&mut self, program: &Program, rt: &Runtime, out: &mut dyn Output) -> Option<u64> {
        loop {
            let now = self.vm.now_us;
            let job = self.ports.values_mut().find_map(|q| q.pop(now));
            let Some(job) = job else { break };
            self.passes = 0;
            self.copies = 0;
            self.job(program, rt, &[], job, out);
            self.work(program, rt, &[], out);
        }
        if self.all_ports.is_none() {
            // A queue without a rate is unused.
            self.ports.retain(|_, q| q.rated() || !q.is_empty());
        }
        self.ports.values().filter_map(|q| q.next_due()).min()
    }
}

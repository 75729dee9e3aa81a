//! Passes through the switch: parser and ingress, egress and deparser, each followed by
//! simple_switch's actions.

use super::*;

impl Core {
    /// Initialises a new packet's metadata.
    pub(super) fn begin(&mut self, program: &Program, port: u32, length: usize) {
        self.passes = 0;
        self.copies = 0;
        self.vm.clear(program);
        let s = &program.special;
        self.set(s.ingress_port, port.into());
        self.set(s.packet_length, length as u64);
        self.set(s.ingress_timestamp, self.vm.now_us);
        self.vm.frame[s.length as usize] = length as u64;
    }

    /// Runs a received packet and all packets derived from it.
    pub(super) fn packet(
        &mut self,
        program: &Program,
        rt: &Runtime,
        frame: &[u8],
        port: u32,
        out: &mut dyn Output,
    ) {
        let length = frame.len();
        let current =
            Current { bytes: Bytes::Frame, length, ingress_length: length as u64, ingress_port: port };
        self.ingress(program, rt, frame, current, out);
        self.work(program, rt, frame, out);
    }

    /// Runs the waiting jobs.
    #[inline]
    pub(super) fn work(&mut self, program: &Program, rt: &Runtime, frame: &[u8], out: &mut dyn Output) {
        while let Some(job) = self.jobs.pop_front() {
            self.job(program, rt, frame, job, out);
        }
        if !self.vm.logs.is_empty() {
            for text in std::mem::take(&mut self.vm.logs) {
                if self.logs.try_send(text).is_err() {
                    bump(&self.stats.logs_lost);
                }
            }
        }
    }

    pub(super) fn job(
        &mut self,
        program: &Program,
        rt: &Runtime,
        frame: &[u8],
        job: Job,
        out: &mut dyn Output,
    ) {
        let Job { phv, bytes, length, taken, ingress_length, ingress_port, egress, .. } = job;
        self.restore(&phv);
        self.phvs.push(phv);
        let current = Current { bytes, length, ingress_length, ingress_port };
        match egress {
            Some(port) => self.egress(program, rt, frame, &current, taken, port, out),
            None => self.ingress(program, rt, frame, current, out),
        }
    }

    /// Resets the metadata, except the fields of a list.
    pub(super) fn keep_list(&mut self, program: &Program, list: u64, headers_too: bool) {
        let found = program.field_lists.iter().find(|l| u64::from(l.0) == list);
        let fields: &[Field] = found.map_or(&[], |l| &l.1);
        let mut kept = std::mem::take(&mut self.kept);
        kept.clear();
        let slots = |f: &Field| f.slot as usize..f.slot as usize + limb_count(f.width);
        for f in fields.iter().filter(|f| !f.vl) {
            kept.extend_from_slice(&self.vm.frame[slots(f)]);
        }
        if headers_too {
            self.vm.clear(program);
        } else {
            self.clear_metadata(program);
        }
        let mut at = 0;
        for f in fields.iter().filter(|f| !f.vl) {
            let n = limb_count(f.width);
            self.vm.frame[slots(f)].copy_from_slice(&kept[at..at + n]);
            at += n;
        }
        self.kept = kept;
    }

    pub(super) fn clear_metadata(&mut self, program: &Program) {
        for (base, end) in &program.metadata {
            self.vm.frame[*base as usize..*end as usize].fill(0);
            self.vm.frame[*base as usize] = 1;
        }
        let s = &program.special;
        let length = self.vm.frame[s.length as usize];
        self.vm.frame[s.first as usize..(s.first + s.count) as usize].fill(0);
        self.vm.frame[s.length as usize] = length;
        self.vm.frame[s.truncate as usize] = u64::MAX;
        self.vm.frame[s.error as usize] = program.errors.none;
    }

    /// Drops the packet if an assertion failed.
    pub(super) fn faulted(&mut self, program: &Program) -> bool {
        let Some(id) = self.vm.fault.take() else { return false };
        bump(&self.stats.faults);
        let text = program.asserts.get(id as usize).cloned().unwrap_or_else(|| "a loop without end".into());
        self.note(|| Step::Drop { reason: text.clone() });
        if self.logs.try_send(text).is_err() {
            bump(&self.stats.logs_lost);
        }
        true
    }

    /// Counts a pass; returns false beyond the limit.
    pub(super) fn another_pass(&mut self) -> bool {
        self.passes += 1;
        if self.passes <= self.config.max_passes {
            return true;
        }
        bump(&self.stats.pass_limit);
        self.drop_step("too many passes");
        false
    }

    pub(super) fn pass_step(&mut self, program: &Program, pipeline: &str, port: Option<u32>) {
        let kind = match self.get(program.special.instance_type) {
            instance::NORMAL => "normal",
            instance::INGRESS_CLONE | instance::EGRESS_CLONE => "clone",
            instance::RECIRC => "recirculate",
            instance::REPLICATION => "replica",
            instance::RESUBMIT => "resubmit",
            _ => "other",
        };
        self.note(|| Step::Pass { kind: kind.into(), pipeline: pipeline.into(), port });
    }

    /// Parser and ingress, followed by simple_switch's actions. Resubmissions loop here.
    pub(super) fn ingress(
        &mut self,
        program: &Program,
        rt: &Runtime,
        frame: &[u8],
        current: Current,
        out: &mut dyn Output,
    ) {
        let code = self.code(program);
        let s = &program.special;
        loop {
            let data = match &current.bytes {
                Bytes::Frame => &frame[..current.length],
                Bytes::Own(b) => &b[..current.length.min(b.len())],
            };
            if self.traced {
                self.pass_step(program, "ingress", None);
            }
            let ingress_size = self.vm.frame[s.length as usize];
            let mut packet = Packet { data, taken: 0, ingress_length: current.ingress_length, written: 0 };
            self.execute(program, rt, &mut packet, code.parser);
            if self.vm.fault.is_some() && self.faulted(program) {
                return;
            }
            let error = self.vm.frame[s.error as usize];
            if error != program.errors.none {
                bump(&self.stats.parser_errors);
            }
            self.set(s.parser_error, error);
            let bad = self.vm.frame[s.bad_sum as usize];
            self.set(s.checksum_error, bad);

            self.execute(program, rt, &mut packet, code.ingress);
            if self.vm.fault.is_some() && self.faulted(program) {
                return;
            }
            self.vm.frame[s.exit as usize] = 0;

            let clone = self.vm.frame[s.clone as usize];
            if clone != 0 {
                self.vm.frame[s.clone as usize] = 0;
                let list = self.vm.frame[s.clone_list as usize];
                self.ingress_clone(program, rt, &current, data, clone & 0x7fff, list, ingress_size, frame);
            }
            let digest = self.vm.frame[s.digest as usize];
            if digest != 0 {
                self.digest(program, rt, digest);
                // Egress must not send it again.
                self.vm.frame[s.digest as usize] = 0;
            }
            let resubmit = self.vm.frame[s.resubmit as usize];
            if resubmit != 0 {
                if !self.another_pass() {
                    return;
                }
                self.note(|| Step::Again { kind: "resubmit".into() });
                self.keep_list(program, resubmit, true);
                self.set(s.instance_type, instance::RESUBMIT);
                self.set(s.packet_length, ingress_size);
                self.vm.frame[s.length as usize] = ingress_size;
                continue;
            }
            let taken = packet.taken;
            let group = self.get(s.mcast_grp);
            if group != 0 {
                self.set(s.instance_type, instance::REPLICATION);
                self.multicast(program, rt, &current, taken, group as u16, frame);
                return;
            }
            let port = self.get(s.egress_spec) as u32;
            let drop_port = u64::from(self.config.drop_port);
            if u64::from(port) == drop_port {
                bump(&self.stats.ingress_dropped);
                self.drop_step("end of ingress");
                return;
            }
            self.set(s.instance_type, instance::NORMAL);
            if self.jobs.is_empty() && self.ports.is_empty() && self.all_ports.is_none() {
                if self.priority(program).is_some() {
                    self.set(s.enq_timestamp, self.vm.now_us);
                    self.set(s.enq_qdepth, 0);
                    self.egress(program, rt, frame, &current, taken, port, out);
                }
            } else {
                self.enqueue(program, &current, taken, port, frame);
            }
            return;
        }
    }

    pub(super) fn digest(&mut self, program: &Program, rt: &Runtime, id: u64) {
        let Some(index) = program.digests.iter().position(|d| u64::from(d.0) == id) else { return };
        let name = &program.info.digests[index].name;
        self.note(|| Step::Digest { name: name.clone() });
        if !rt.digests_on[index] {
            return;
        }
        let mut data = SmallVec::new();
        for f in &program.digests[index].1 {
            let limbs = &self.vm.frame[f.slot as usize..][..limb_count(f.width)];
            padded(limbs.iter().copied(), f.width, |b| data.push(b));
        }
        let sample = DigestSample {
            digest: DigestId(index as u32),
            pipeline: rt.serial,
            time_us: self.vm.now_us,
            data,
        };
        if self.digests.try_send(sample).is_err() {
            bump(&self.stats.digests_lost);
        }
    }

    /// Egress and deparser, followed by simple_switch's actions.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn egress(
        &mut self,
        program: &Program,
        rt: &Runtime,
        frame: &[u8],
        current: &Current,
        taken: usize,
        port: u32,
        out: &mut dyn Output,
    ) {
        let code = self.code(program);
        let s = &program.special;
        let data = match &current.bytes {
            Bytes::Frame => &frame[..current.length],
            Bytes::Own(b) => &b[..current.length.min(b.len())],
        };
        self.set(s.egress_timestamp, self.vm.now_us);
        let waited = self.vm.now_us.wrapping_sub(self.get(s.enq_timestamp));
        self.set(s.deq_timedelta, waited);
        if s.deq_qdepth.is_some() {
            let priority = self.get(s.priority) as usize;
            let depth = self.ports.get(&port).map_or(0, |q| q.len(priority)) as u64;
            self.set(s.deq_qdepth, depth);
            self.set(s.qid, priority as u64);
        }
        self.set(s.egress_port, port.into());
        self.set(s.egress_spec, u64::from(self.config.drop_port) + 1);
        let length = self.vm.frame[s.length as usize];
        self.set(s.packet_length, length);
        if self.traced {
            self.pass_step(program, "egress", Some(port));
        }
        let mut packet = Packet { data, taken, ingress_length: current.ingress_length, written: 0 };
        self.execute(program, rt, &mut packet, code.egress);
        if self.vm.fault.is_some() && self.faulted(program) {
            return;
        }
        self.vm.frame[s.exit as usize] = 0;
        let clone = self.vm.frame[s.clone as usize];
        if clone != 0 {
            self.vm.frame[s.clone as usize] = 0;
            if let Some(config) = rt.clones.get(&((clone & 0x7fff) as u32)).cloned() {
                self.egress_clone(program, rt, current, taken, &config, frame);
            }
        }
        if self.get(s.egress_spec) == u64::from(self.config.drop_port) {
            bump(&self.stats.egress_dropped);
            self.drop_step("end of egress");
            return;
        }
        self.execute(program, rt, &mut packet, code.deparser);
        if self.vm.fault.is_some() && self.faulted(program) {
            return;
        }
        let buffer = std::mem::take(&mut self.vm.head);
        let head = &buffer[..packet.written];
        let rest = &data[packet.taken.min(data.len())..];
        let most = self.vm.frame[s.truncate as usize];
        let keep = ((head.len() + rest.len()) as u64).min(most) as usize;
        let head_keep = keep.min(head.len());
        let (first, second) = (&head[..head_keep], &rest[..keep - head_keep]);
        let again = self.vm.frame[s.recirculate as usize];
        if again != 0 {
            if self.another_pass() {
                self.note(|| Step::Again { kind: "recirculate".into() });
                let bytes = self.buffer(|b| {
                    b.extend_from_slice(first);
                    b.extend_from_slice(second);
                });
                self.keep_list(program, again, true);
                self.set(s.instance_type, instance::RECIRC);
                self.set(s.packet_length, keep as u64);
                self.vm.frame[s.length as usize] = keep as u64;
                let job = Job {
                    phv: self.save(program),
                    bytes: Bytes::Own(bytes),
                    length: keep,
                    taken: 0,
                    ingress_length: keep as u64,
                    ingress_port: current.ingress_port,
                    egress: None,
                    priority: 0,
                };
                self.jobs.push_back(job);
            }
        } else {
            bump(&self.stats.emitted);
            self.note(|| Step::Emit { port, length: keep });
            out.emit(port, first, second);
        }
        self.vm.head = buffer;
    }
}

//! A packet of a large answer: one segment, or several alike that follow one another, which a
//! device or the kernel divides (TCP segmentation offload).

use rivulet_packet::BuildError;
use rivulet_packet::segment::TcpFlags;

use super::due::Due;
use crate::answer::Answer;
use crate::segment::Header;
use crate::small::Site;

/// A packet to be sent.
#[derive(Debug)]
pub struct Packet<'t, W> {
    header: Header,
    answer: Option<(Answer, u32, &'t Site)>,
    /// The place of its connection, the segment, and the timestamp.
    pub(super) of: Option<(usize, Due, u32)>,
    from: u32,
    to: u32,
    /// Data of each segment but the last, bytes.
    full: u32,
    /// The path to the client, as given with its segment.
    pub way: W,
}

impl<'t, W> Packet<'t, W> {
    pub(super) fn without_data(header: Header, way: W) -> Self {
        Packet { header, answer: None, of: None, from: 0, to: 0, full: 0, way }
    }

    pub(super) fn of_answer(
        header: Header,
        answer: (Answer, u32, &'t Site),
        of: (usize, Due, u32),
        full: u32,
        way: W,
    ) -> Self {
        let (from, to) = (of.1.from, of.1.to);
        Packet { header, answer: Some(answer), of: Some(of), from, to, full, way }
    }

    /// Whether the packet holds only full segments from contiguous memory and has room for one
    /// more. Retransmissions are sent singly: if a device on the way cannot divide packets, a
    /// download is slow but not stuck.
    pub(super) fn takes_more(&self, most: u32) -> bool {
        let once = self.of.is_some_and(|(_, due, _)| !due.again);
        let whole = self.full > 0 && self.to > self.from && (self.to - self.from).is_multiple_of(self.full);
        let body = self.answer.is_some_and(|(_, head, _)| self.from >= head);
        once && whole && body && self.to - self.from + self.full <= most
    }

    /// Appends a segment that follows directly and has an equal header.
    pub(super) fn append(&mut self, next: &Self, most: u32) -> bool {
        let Header { seq, flags, .. } = self.header;
        let alike = Header { seq, flags, ..next.header } == self.header;
        let data = next.to.saturating_sub(next.from);
        let (Some((_, due, _)), Some((_, more, _))) = (&mut self.of, &next.of) else { return false };
        if !alike || next.from != self.to || data == 0 || data > self.full || next.to - self.from > most {
            return false;
        }
        (due.to, due.fin, self.to) = (more.to, more.fin, next.to);
        // The flags PSH and FIN concern the last segment only, so they may be merged.
        self.header.flags = TcpFlags(flags.0 | next.header.flags.0);
        true
    }

    /// Length of the packet, IP header included.
    #[must_use]
    pub fn length(&self) -> usize {
        self.header.length() + (self.to - self.from) as usize
    }

    /// Bytes of data of each segment but the last, if there are several.
    #[must_use]
    pub fn cut(&self) -> Option<u16> {
        let several = self.to - self.from > self.full && self.full > 0;
        u16::try_from(self.full).ok().filter(|_| several)
    }

    /// Writes the packet and returns its length.
    ///
    /// # Errors
    /// [`BuildError`] if the buffer is too short.
    pub fn write(&self, packet: &mut [u8]) -> Result<usize, BuildError> {
        let (start, need, have) = (self.header.length(), self.length(), packet.len());
        let data = packet.get_mut(start..need).ok_or(BuildError::BufferTooSmall { need, have })?;
        if let Some((answer, head, site)) = self.answer
            && !answer.copy(&site.table, head, self.from, data)
        {
            return Err(BuildError::Inconsistent { what: "a segment beyond its answer" });
        }
        self.header.finish(packet, need - start)
    }

    /// Writes only the headers, with a partial checksum, and returns their length and the data.
    ///
    /// # Errors
    /// [`BuildError`] if the buffer has no room for them, or the data is not contiguous in memory.
    pub fn write_head(&self, room: &mut [u8]) -> Result<(usize, &'t [u8]), BuildError> {
        let data = self.answer.and_then(|(answer, head, site)| {
            answer.data(&site.table, self.from.checked_sub(head)?, (self.to - self.from) as usize)
        });
        let data = data.ok_or(BuildError::Inconsistent { what: "data that is made" })?;
        Ok((self.header.finish_head(room, data.len())?, data))
    }
}

//! Packets between the pipeline and the controller (P4Runtime section 16.1): the channel from the
//! packet path, and the headers with `controller_packet_metadata`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rivulet_engine::HeaderInfo;
use tokio::sync::mpsc;

use crate::bytestring;
use crate::error::{Result, invalid};
use crate::proto::p4::config::v1::ControllerPacketMetadata;
use crate::proto::p4::v1::{PacketIn, PacketMetadata, PacketOut};
use crate::translation::{Sdn, Snapshot, Types};

/// Creates the channel from the packet path to the server, with room for `capacity` packets.
pub fn packet_in_channel(capacity: usize) -> (PacketInSender, PacketIns) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    let dropped = Arc::new(AtomicU64::new(0));
    (PacketInSender { sender, dropped: dropped.clone() }, PacketIns { receiver, dropped })
}

/// The packet path's end of the packet-in channel.
#[derive(Clone, Debug)]
pub struct PacketInSender {
    sender: mpsc::Sender<Box<[u8]>>,
    dropped: Arc<AtomicU64>,
}

impl PacketInSender {
    /// Sends a packet from the CPU port, in two parts. Never blocks; returns false if the packet
    /// was dropped because the channel is full.
    pub fn send(&self, head: &[u8], rest: &[u8]) -> bool {
        let Ok(permit) = self.sender.try_reserve() else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        permit.send([head, rest].concat().into_boxed_slice());
        true
    }

    /// Packets dropped so far because the channel was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The server's end of the packet-in channel.
#[derive(Debug)]
pub struct PacketIns {
    pub(crate) receiver: mpsc::Receiver<Box<[u8]>>,
    pub(crate) dropped: Arc<AtomicU64>,
}

/// The header with the metadata of one direction: fields in order without gaps. Its layout is the
/// program's; the P4Info has the controller's widths of translated fields.
#[derive(Clone, Debug, Default)]
pub struct Header {
    fields: Vec<Field>,
    by_id: HashMap<u32, usize>,
    bits: usize,
    /// Why the layout is unknown, if it is.
    unknown: Option<String>,
}

#[derive(Clone, Debug)]
struct Field {
    id: u32,
    name: String,
    /// Bits in the packet.
    width: u32,
    /// The controller's form, if it differs.
    sdn: Option<Sdn>,
    offset: usize,
}

impl Header {
    /// Checks the metadata of one direction. The header must have whole bytes, as p4c's BMv2 target
    /// requires. If a field's type is translated, the layout is that of the program's header with
    /// these fields; without such a header, no packet can be exchanged, which is reported with the
    /// first packet.
    pub fn new(
        message: &ControllerPacketMetadata,
        types: &Types<'_>,
        program: &[HeaderInfo],
    ) -> Result<Header> {
        let mut header = Header::default();
        let name = message.preamble.as_ref().map_or("?", |p| &p.name);
        let place = format!("controller_packet_metadata {name}");
        for m in &message.metadata {
            let at = format!("{place}: {}", m.name);
            let sdn = types.translated(m.type_name.as_ref(), m.bitwidth, &at)?;
            let is_name = matches!(sdn, Some(Sdn::Name(_)));
            let width = u32::try_from(m.bitwidth).ok().filter(|w| (1..=2048).contains(w) || is_name);
            let width = width.ok_or_else(|| invalid(format!("{at} has a width of {} bits", m.bitwidth)))?;
            if header.by_id.insert(m.id, header.fields.len()).is_some() {
                return Err(invalid(format!("{place}: id {} is used twice", m.id)));
            }
            header.fields.push(Field { id: m.id, name: m.name.clone(), width, sdn, offset: 0 });
        }
        if header.fields.iter().any(|f| f.sdn.is_some()) {
            match layout(&header.fields, program, &place)? {
                Some(widths) => header.fields.iter_mut().zip(widths).for_each(|(f, w)| f.width = w),
                None => {
                    let unknown = format!("the program has no header with the fields of {place}");
                    header.unknown = Some(unknown);
                    return Ok(header);
                }
            }
        }
        for field in &mut header.fields {
            if let Some(sdn) = field.sdn {
                types.note_width(sdn, field.width, true);
            }
            field.offset = header.bits;
            header.bits += field.width as usize;
        }
        if header.bits % 8 != 0 {
            return Err(invalid(format!("{place}: {} bits are no whole bytes", header.bits)));
        }
        Ok(header)
    }

    /// Form and width of ports, if they are strings: of the translated fields with `port` in their
    /// name, which must be of one type. v1model has no type for ports that would name it.
    pub fn port_type(&self) -> Option<(Sdn, u32)> {
        let ports = self.fields.iter().filter(|f| f.name.contains("port"));
        let mut ports = ports.filter_map(|f| Some((f.sdn.filter(|s| matches!(s, Sdn::Name(_)))?, f.width)));
        let first = ports.next()?;
        ports.all(|other| other.0 == first.0).then_some(first)
    }

    /// Builds the frame for the pipeline: the metadata as a header, then the payload.
    pub fn frame(&self, packet: &PacketOut, names: &Snapshot) -> Result<Vec<u8>> {
        if let Some(unknown) = &self.unknown {
            return Err(invalid(unknown.clone()));
        }
        let mut frame = vec![0; self.bits / 8];
        let mut seen = vec![false; self.fields.len()];
        for m in &packet.metadata {
            let at = *self.by_id.get(&m.metadata_id).ok_or_else(|| {
                invalid(format!("packet-out metadata id {} is not in the P4Info", m.metadata_id))
            })?;
            let field = &self.fields[at];
            if std::mem::replace(&mut seen[at], true) {
                return Err(invalid(format!("packet-out metadata {} is there twice", field.name)));
            }
            let value = match field.sdn {
                None => bytestring::unsigned(&m.value, field.width, &field.name),
                Some(sdn) => names.to_data_plane(sdn, &m.value, field.width, &field.name),
            }
            .map_err(|e| invalid(format!("packet-out metadata {}", e.message)))?;
            put_bits(&mut frame, field.offset, field.width, &value);
        }
        if let Some(missing) = seen.iter().position(|s| !s) {
            return Err(invalid(format!("packet-out metadata {} is missing", self.fields[missing].name)));
        }
        frame.extend_from_slice(&packet.payload);
        Ok(frame)
    }

    /// Builds the packet-in for a packet from the CPU port; `None` if it is shorter than the
    /// header, or if a value has no form for controllers.
    pub fn packet_in(&self, frame: &[u8], names: &Snapshot) -> Option<PacketIn> {
        if self.unknown.is_some() {
            return None;
        }
        let (head, payload) = frame.split_at_checked(self.bits / 8)?;
        let metadata = |f: &Field| {
            let value = get_bits(head, f.offset, f.width);
            let value = match f.sdn {
                Some(sdn) => names.to_controller(sdn, &value)?,
                None => value,
            };
            Some(PacketMetadata { metadata_id: f.id, value })
        };
        let metadata = self.fields.iter().map(metadata).collect::<Option<_>>()?;
        Some(PacketIn { payload: payload.to_vec(), metadata })
    }
}

/// Widths of the fields in the program's header. The P4Info does not name the header's type, so it
/// is the type with fields of these names, and of these widths where nothing is translated. `None`
/// if there is none.
fn layout(fields: &[Field], program: &[HeaderInfo], place: &str) -> Result<Option<Vec<u32>>> {
    let fits = |h: &&HeaderInfo| {
        let same = |(f, (name, width)): (&Field, &(String, u32))| {
            f.name == *name && (f.sdn.is_some() || f.width == *width)
        };
        h.fields.len() == fields.len() && fields.iter().zip(&h.fields).all(same)
    };
    let widths = |h: &HeaderInfo| h.fields.iter().map(|(_, width)| *width).collect::<Vec<u32>>();
    let mut fitting = program.iter().filter(fits);
    let Some(first) = fitting.next() else { return Ok(None) };
    match fitting.find(|h| widths(h) != widths(first)) {
        Some(other) => Err(invalid(format!(
            "{place}: the program's headers {} and {} have the same fields with other widths",
            first.name, other.name
        ))),
        None => Ok(Some(widths(first))),
    }
}

/// Writes the lowest `width` bits of a value at a bit offset, counted from the first byte's highest
/// bit.
fn put_bits(bytes: &mut [u8], offset: usize, width: u32, value: &[u8]) {
    let bit = |i: usize| value.len().checked_sub(i / 8 + 1).is_some_and(|at| value[at] >> (i % 8) & 1 == 1);
    for i in (0..width as usize).filter(|i| bit(*i)) {
        let at = offset + width as usize - 1 - i;
        bytes[at / 8] |= 0x80 >> (at % 8);
    }
}

fn get_bits(bytes: &[u8], offset: usize, width: u32) -> Vec<u8> {
    let mut value = vec![0; bytestring::bytes_for(width)];
    let last = value.len() - 1;
    for i in 0..width as usize {
        let at = offset + width as usize - 1 - i;
        value[last - i / 8] |= (bytes[at / 8] >> (7 - at % 8) & 1) << (i % 8);
    }
    bytestring::canonical(&value).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::p4::config::v1::controller_packet_metadata::Metadata;

    fn header(widths: &[i32]) -> Result<Header> {
        let metadata = widths
            .iter()
            .zip(1..)
            .map(|(w, id)| Metadata { id, name: format!("m{id}"), bitwidth: *w, ..Metadata::default() })
            .collect();
        Header::new(&ControllerPacketMetadata { preamble: None, metadata }, &Types::new(None), &[])
    }

    fn out(values: &[(u32, &[u8])]) -> PacketOut {
        let metadata =
            values.iter().map(|(id, v)| PacketMetadata { metadata_id: *id, value: v.to_vec() }).collect();
        PacketOut { payload: b"payload".to_vec(), metadata }
    }

    #[test]
    fn metadata_is_packed_in_order_and_comes_back_canonical() {
        let header = header(&[9, 7, 16]).unwrap();
        let frame =
            header.frame(&out(&[(3, &[0, 0, 5]), (1, &[1, 2]), (2, &[3])]), &Snapshot::default()).unwrap();
        assert_eq!(frame, [&[0x81, 0x03, 0x00, 0x05][..], b"payload"].concat());
        let packet_in = header.packet_in(&frame, &Snapshot::default()).unwrap();
        assert_eq!(packet_in.payload, b"payload");
        let values: Vec<_> = packet_in.metadata.iter().map(|m| (m.metadata_id, m.value.as_slice())).collect();
        assert_eq!(values, [(1, &[1, 2][..]), (2, &[3]), (3, &[5])]);
    }

    #[test]
    fn wrong_metadata_is_refused() {
        let header = header(&[9, 7]).unwrap();
        let message = |o: &PacketOut| header.frame(o, &Snapshot::default()).unwrap_err().message;
        assert!(message(&out(&[(1, &[1])])).contains("m2 is missing"));
        assert!(message(&out(&[(1, &[1]), (7, &[1])])).contains("id 7"));
        assert!(message(&out(&[(1, &[1]), (1, &[1])])).contains("twice"));
        assert!(message(&out(&[(1, &[2, 0]), (2, &[1])])).contains("needs 10 bits"));
        assert!(message(&out(&[(1, &[]), (2, &[1])])).contains("empty"));
    }

    #[test]
    fn a_header_must_be_whole_bytes() {
        assert!(header(&[9]).is_err());
        assert!(header(&[0, 8]).is_err());
        assert!(header(&[9, 7]).unwrap().packet_in(&[1], &Snapshot::default()).is_none());
    }

    #[test]
    fn a_full_channel_drops_and_counts() {
        let (sender, mut receiver) = packet_in_channel(2);
        let sent: Vec<bool> = (0..4u8).map(|i| sender.send(&[i], &[9])).collect();
        assert_eq!(sent, [true, true, false, false]);
        assert_eq!(sender.dropped(), 2);
        assert_eq!(receiver.receiver.try_recv().unwrap().as_ref(), [0, 9]);
    }
}

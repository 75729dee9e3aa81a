//! Probes and the segments with which clients answer.

use rivulet_packet::segment::TcpFlags;
use rivulet_plain::{Header, Options, Segment, Stamps};
use rivulet_trods::Record;
use rivulet_trods::record::Response;
use rivulet_trods::wake::{self, Place, Told};

use crate::records::{REQUEST, object, record};

const ACK: u8 = TcpFlags::ACK;
/// Unix time of the adoption, a minute after the SYN-ACK, milliseconds.
const LATER: u64 = (1 << 40) + 60_000;

/// An ACK of the client, which has 600 bytes of the response.
fn answer(record: &Record) -> Header {
    Header {
        src: record.tuple.client,
        dst: record.tuple.service,
        seq: record.acknowledged(),
        ack: record.response_at.wrapping_add(600),
        flags: TcpFlags(ACK),
        window: 10,
        options: Options { stamps: Some(Stamps { value: 9, echo: 5000 }), ..Options::default() },
    }
}

fn read_answer(record: &Record, header: &Header) -> Told {
    let mut packet = vec![0; header.length()];
    header.finish(&mut packet, 0).unwrap();
    wake::read(record, &Segment::parse(&packet).unwrap(), LATER)
}

#[test]
fn a_probe_is_old_data_with_a_new_timestamp() {
    let mut record = record();
    let packet = wake::probe(&record, LATER).unwrap();
    let segment = Segment::parse(&packet).unwrap();
    let header = segment.header;
    assert!(segment.is_intact() && segment.payload.len() == 1);
    assert_eq!((header.src, header.dst), (record.tuple.service, record.tuple.client));
    assert_eq!((header.seq, header.ack), (record.response_at.wrapping_sub(1), record.acknowledged()));
    // The SYN-ACK's TSval was 5.
    assert!(header.options.stamps.is_some_and(|stamps| (60_005..70_000).contains(&stamps.value)));
    // For a response longer than the sequence space, in which the client is at most 2^30 bytes
    // behind.
    let length = object().length + (20 << 30);
    record.responses = vec![Response { length, passed: 20 << 30, ..object() }];
    let packet = wake::probe(&record, LATER).unwrap();
    let seq = Segment::parse(&packet).unwrap().header.seq;
    for behind in [0, 1, 1 << 29, 1 << 30] {
        let awaits = record.passed().wrapping_sub(behind);
        assert!(awaits.wrapping_sub(seq) > 1 << 29 && awaits.wrapping_sub(seq) < 1 << 31, "{behind}");
    }
    record.handshake.timestamp = None;
    let packet = wake::probe(&record, LATER).unwrap();
    assert_eq!(Segment::parse(&packet).unwrap().header.options, Options::default());
}

#[test]
fn answer_to_probe_gives_the_clients_state() {
    let record = record();
    let mut header = answer(&record);
    let place = Place { fresh: false, ack: header.ack, window: 10 << 7, sent: Some(header.seq) };
    assert_eq!(read_answer(&record, &header), Told::Waits(place));
    // A SACK block shows data after a hole; impossible blocks are ignored.
    header.options.sack.push((header.ack.wrapping_add(100), header.ack.wrapping_add(200)));
    header.options.sack.push((header.ack, record.passed().wrapping_add(1)));
    assert_eq!(read_answer(&record, &header), Told::Waits(place));
    // A SACK block reports the probe's byte.
    let mut header = answer(&record);
    let old = record.response_at.wrapping_sub(1);
    header.options.sack.push((old, record.response_at));
    header.options.sack.push((header.ack.wrapping_add(100), header.ack.wrapping_add(200)));
    assert_eq!(read_answer(&record, &header), Told::Waits(Place { fresh: true, ..place }));
    // The client has also sent data that was never stored.
    header.seq = header.seq.wrapping_add(300);
    let place = Place { fresh: true, sent: Some(header.seq), ..place };
    assert_eq!(read_answer(&record, &header), Told::Waits(place));
}

/// Otherwise the kernel would wait for room in a window that never gets larger.
#[test]
fn small_window_gets_shorter_segments() {
    let record = record();
    assert_eq!(record.handshake.mss, 1460);
    let mss = |window| {
        let place = Place { fresh: true, ack: record.passed(), window, sent: Some(record.acknowledged()) };
        wake::connection(&record, &place, LATER).mss
    };
    for (window, segment) in
        [(2920, 1460), (2000, 1000), (1100, 550), (700, 536), (1, 536), (0, 1460), (1 << 20, 1460)]
    {
        assert_eq!(mss(window), segment, "{window}");
    }
}

#[test]
fn client_without_connection_answers_with_rst() {
    let record = record();
    let header = Header { flags: TcpFlags(TcpFlags::RST), options: Options::default(), ..answer(&record) };
    assert_eq!(read_answer(&record, &header), Told::Gone);
    let far = Header { seq: header.seq.wrapping_sub(1), ..header };
    assert_eq!(read_answer(&record, &far), Told::Nothing);
}

/// A replica that was cut off keeps storing its state, and returns with it.
#[test]
fn adopters_record_takes_precedence() {
    let mut cut_off = record();
    let place =
        Place { fresh: true, ack: cut_off.passed(), window: 1000, sent: Some(cut_off.acknowledged()) };
    let adopt = |record: &Record, now| record.clone().taken_over(&wake::connection(record, &place, now), now);
    let adopted = adopt(&cut_off, LATER);
    let again = adopt(&adopted, LATER + 1);
    cut_off.version += 60_000;
    assert!(adopted.age().is_after(&cut_off.age()) && !cut_off.age().is_after(&adopted.age()));
    assert!(again.age().is_after(&adopted.age()));
    cut_off.version = u32::MAX;
    assert!(adopt(&cut_off, LATER).age().is_after(&cut_off.age()), "by its time");
}

#[test]
fn foreign_segment_gives_no_state() {
    let record = record();
    let good = answer(&record);
    assert!(matches!(read_answer(&record, &good), Told::Waits(_)));
    // The client may retransmit everything of it that is stored.
    let asked = record.acknowledged().wrapping_sub(REQUEST.len() as u32 + record.requests.len() as u32);
    assert!(matches!(read_answer(&record, &Header { seq: asked, ..good }), Told::Waits(_)));
    let stamps = |echo| Options { stamps: Some(Stamps { value: 9, echo }), ..Options::default() };
    let bad = [
        Header { src: "10.0.0.1:4001".parse().unwrap(), ..good },
        Header { dst: "10.9.0.2:80".parse().unwrap(), ..good },
        Header { seq: asked.wrapping_sub(1), ..good },
        Header { seq: good.seq.wrapping_add(65_537), ..good },
        Header { ack: record.response_at.wrapping_sub(1), ..good },
        Header { ack: record.passed().wrapping_add(1), ..good },
        Header { flags: TcpFlags(TcpFlags::SYN | ACK), ..good },
        Header { flags: TcpFlags(0), ..good },
        Header { options: Options::default(), ..good },
        Header { options: stamps(4), ..good },
        Header { options: stamps(70_000), ..good },
    ];
    for header in bad {
        assert_eq!(read_answer(&record, &header), Told::Nothing, "{header:?}");
    }
    // The client has received no new data since another replica's socket with another clock adopted
    // the connection.
    let mut adopted = record.clone();
    adopted.handshake.first_timestamp = adopted.handshake.timestamp.replace(6_000);
    for (echo, is_its) in [(4, false), (5, true), (5_000, true), (65_000, true), (70_000, false)] {
        let header = Header { options: stamps(echo), ..good };
        assert_eq!(matches!(read_answer(&adopted, &header), Told::Waits(_)), is_its, "{echo}");
    }
    let mut bare = record;
    bare.handshake.timestamp = None;
    assert_eq!(read_answer(&bare, &good), Told::Nothing);
    assert!(matches!(read_answer(&bare, &Header { options: Options::default(), ..good }), Told::Waits(_)));
}

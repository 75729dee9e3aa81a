//! Parses arbitrary bytes and reads every field, for the property tests, the corpus and the fuzz
//! targets.

use rivulet_packet::*;

/// Parses bytes as a frame and as a packet and reads every field. Panics if an error's position is
/// outside the bytes or a view contradicts itself.
pub fn exercise(frame: &[u8]) {
    let within = |e: WireError, bytes: &[u8]| assert!(e.position() <= bytes.len(), "{e}");
    if let Err(e) = Heartbeat::parse(frame) {
        within(e, frame);
    }
    if let Err(e) = Answer::parse(frame) {
        within(e, frame);
    }
    if let Some(packet) = frame.get(14..)
        && let Err(e) = Segment::parse_packet(packet)
    {
        within(e, packet);
    }
    let segment = match Segment::parse_frame(frame) {
        Ok((eth, segment)) => {
            let _ = format!("{eth} {segment}");
            segment
        }
        Err(e) => return within(e, frame),
    };
    if let Err(e) = segment.verify() {
        within(e, frame);
    }
    match segment.option.class {
        Class::Request(class) => exercise_request(class, segment.option.number_low, segment.payload),
        Class::Response(class) => exercise_response(class, segment.option.number_low, segment.payload),
    }
}

/// Parses a request, reads all of it, and writes it again: the bytes must be the same.
pub fn exercise_request(class: RequestClass, number_low: u16, payload: &[u8]) {
    let r = match Request::parse(class, number_low, payload) {
        Ok(r) => r,
        Err(e) => return assert!(e.position() <= payload.len(), "{e}"),
    };
    let _ = format!("{r}");
    let proof: Vec<_> = r.proof.iter().collect();
    let wants: Vec<_> = r.wants().collect();
    let uconts: Vec<_> = r.uconts().collect();
    assert_eq!((proof.len(), wants.len(), uconts.len()), (r.proof.len(), r.want_count(), r.ucont_count()));
    let b = RequestBuilder {
        class,
        tor: r.tor,
        attempt: r.attempt,
        continuation: r.continuation.as_ref(),
        proof: &proof,
        hold: r.hold,
        covers: r.covers,
        wants: &wants,
        token: r.token,
        former: r.former,
        retire: r.retire,
        uconts: &uconts,
        input: r.input,
        pad_to: if r.padding > 0 { payload.len() } else { 0 },
    };
    let mut again = vec![0; payload.len()];
    assert_eq!(b.write(&mut again), Ok(payload.len()));
    // Padding is not kept, and its flag may be set without padding.
    let end = payload.len() - r.padding;
    let body_flags =
        29 + if r.continuation.is_some() { SealedContinuation::LENGTH + proof.len() * 8 } else { 0 };
    again[body_flags] = payload[body_flags];
    assert_eq!(&again[..end], &payload[..end]);
}

/// Parses a response, reads all of it, and writes it again: the bytes must be the same.
pub fn exercise_response(class: ResponseClass, number_low: u16, payload: &[u8]) {
    let r = match Response::parse(class, number_low, payload) {
        Ok(r) => r,
        Err(e) => return assert!(e.position() <= payload.len(), "{e}"),
    };
    let _ = format!("{r}");
    if let Body::Group(g) = r.body {
        assert_eq!(g.iter().count(), g.len());
    }
    assert_eq!(r.uconts.iter().count(), r.uconts.len());
    let mut again = vec![0; payload.len()];
    assert_eq!(r.write(&mut again), Ok(payload.len()));
    assert_eq!(again, payload);
}

/// Input of the fuzz target for requests: class, number of the option, payload.
pub fn request_input(bytes: &[u8]) {
    if let [class, high, low, payload @ ..] = bytes
        && let Some(class) = RequestClass::from_wire(class & 7)
    {
        exercise_request(class, u16::from_be_bytes([*high, *low]), payload);
    }
}

/// Input of the fuzz target for responses.
pub fn response_input(bytes: &[u8]) {
    if let [class, high, low, payload @ ..] = bytes
        && let Some(class) = ResponseClass::from_wire(0x80 | class & 0xf)
    {
        exercise_response(class, u16::from_be_bytes([*high, *low]), payload);
    }
}

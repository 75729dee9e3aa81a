//! The fields of a parsed packet as JSON, with the names of the wire format.

use rivulet_packet::*;
use serde_json::{Value, json};

pub fn hex(b: &[u8]) -> String {
    b.iter().map(|b| format!("{b:02x}")).collect()
}

fn mac(a: [u8; 6]) -> String {
    a.map(|b| format!("{b:02x}")).join(":")
}

pub fn continuation(c: &SealedContinuation) -> Value {
    let f = &c.fields;
    json!({
        "tag": f.tag, "number": f.number, "base": f.base, "time": f.time, "nonce_epoch": f.nonce_epoch,
        "seal_epoch": f.seal_epoch, "generation": f.generation, "tor_id": f.tor_id,
        "tcp_base": f.tcp_base, "start_cwnd": f.start_cwnd, "gain": f.gain,
        "ssthresh": f.ssthresh, "wire_base": f.wire_base, "mss": f.mss,
        "flags": u8::from(f.marked) | u8::from(f.first) << 1 | u8::from(f.rekey_wanted) << 2, "srtt": f.srtt,
        "connection": f.connection, "mac": hex(&c.mac),
    })
}

fn delta(d: &Delta) -> Value {
    use rivulet_packet::delta::{SrttChange, TimeChange};
    json!({
        "time_low": match d.time { Some(TimeChange::Low(t)) => Some(t), _ => None },
        "time": match d.time { Some(TimeChange::Whole(t)) => Some(t), _ => None },
        "tor_id": d.tor_id,
        "seal_epoch": d.seal_epoch,
        "srtt_step": match d.srtt { Some(SrttChange::Step(s)) => Some(s), _ => None },
        "srtt": match d.srtt { Some(SrttChange::Whole(s)) => Some(s), _ => None },
        "flags": d.flags,
        "check": d.check, "mac": hex(&d.mac),
    })
}

fn tor(t: &TorBlock) -> Value {
    json!({
        "tor_time": t.time, "tor_id": t.id,
        "tor_seal_epoch": t.seal_epoch, "tor_nonce_epoch": t.nonce_epoch,
        "tor_flags": u8::from(t.checked) | u8::from(t.time_valid) << 1,
        "tor_key_epoch": t.key_epoch, "tor_tag": t.tag,
    })
}

fn request(r: &Request<'_>, sums_right: impl Fn(&Request<'_>) -> bool) -> Value {
    let entry =
        |e: ProofEntry| json!({ "kind": e.kind.name(), "first": e.first, "last": e.last, "sum": e.sum });
    let want = |w: Want| {
        json!({ "offset": w.offset, "length": w.length, "ucont": w.ucont.unwrap_or(255),
                "flags": u8::from(w.retransmit) })
    };
    let input = |i: Input<'_>| {
        json!({ "stream": i.stream, "flags": u8::from(i.end), "ucont": i.ucont.unwrap_or(255),
                "offset": i.offset, "data": hex(i.data) })
    };
    json!({
        "tor": tor(&r.tor),
        "attempt": r.attempt,
        "continuation": r.continuation.as_ref().map(continuation),
        "proof": r.proof.iter().map(entry).collect::<Vec<_>>(),
        "sums_right": sums_right(r),
        "hold": r.hold, "covers": r.covers, "retire": r.retire,
        "wants": r.wants().map(want).collect::<Vec<_>>(),
        "token": r.token.map(hex),
        "former": r.former.map(|a| json!({ "address": a.ip().to_string(), "port": a.port() })),
        "uconts": r.uconts().map(hex).collect::<Vec<_>>(),
        "input": r.input.map(input),
        "padding": r.padding,
    })
}

fn response(r: &Response<'_>) -> Value {
    let (full, delta) = match &r.continuation {
        NewContinuation::None => (None, None),
        NewContinuation::Full(c) => (Some(continuation(c)), None),
        NewContinuation::Delta(d) => (None, Some(delta(d))),
    };
    let body = match r.body {
        Body::Data | Body::Retransmission | Body::Input => json!({}),
        Body::Group(g) => {
            let member = |m: response::GroupMember| json!({ "nonce": m.nonce, "continuation": continuation(&m.continuation) });
            json!({ "members": g.iter().map(member).collect::<Vec<_>>() })
        }
        Body::Skip { offset, length } => json!({ "offset": offset, "length": length }),
        Body::Wait { milliseconds } => json!({ "milliseconds": milliseconds }),
        Body::NotMine { code } | Body::Error { code } => json!({ "code": code }),
        Body::Challenge { token } => json!({ "token": hex(token) }),
    };
    json!({
        "number": r.number, "nonce": r.nonce, "prime": r.prime, "end": r.end, "answers": r.answers,
        "continuation": full, "delta": delta, "offset": r.offset, "uconts": r.uconts.iter().map(hex).collect::<Vec<_>>(),
        "consumed": r.consumed.map(|c| json!({ "stream": c.stream, "offset": c.offset })),
        "token": r.token.map(hex),
        "body": body, "data": hex(r.data),
    })
}

/// Whether every range has the right sum under the vectors' keys, like the switch's check.
fn sums_right(r: &Request<'_>) -> bool {
    let Some(c) = &r.continuation else { return true };
    r.proof.ranges().all(|e| {
        let key = if e.kind == EntryKind::Original { super::K } else { super::K_PRIME };
        let at = |o: u16| c.fields.base.wrapping_add(u32::from(o));
        key.tag(c.fields.tag).range_sum(at(e.first), at(e.last)) == e.sum
    })
}

/// The fields of a frame, by parsing it.
pub fn frame(name: &str, bytes: &[u8]) -> Value {
    let (eth, s) = Segment::parse_frame(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    s.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
    let syn = s.syn_options.map(|o| {
        json!({ "mss": o.mss, "ts_value": o.ts_value, "ts_echo": o.ts_echo, "window_scale": o.window_scale })
    });
    let bare = s.is_bare_syn() || s.is_bare_syn_ack();
    let is_request = matches!(s.option.class, Class::Request(_));
    let req = (is_request && !bare).then(|| request(&s.request().expect(name), sums_right));
    let resp = (!is_request && !bare).then(|| response(&s.response().expect(name)));
    json!({
        "name": name,
        "frame": hex(bytes),
        "eth": { "dst": mac(eth.dst), "src": mac(eth.src), "vlan": eth.vlan },
        "ip": { "src": s.src.ip().to_string(), "dst": s.dst.ip().to_string(), "ecn": s.ecn.name(), "ttl": s.ttl },
        "tcp": { "src_port": s.src.port(), "dst_port": s.dst.port(), "seq": s.seq, "ack": s.ack,
                 "flags": s.flags.to_string(), "window": s.window, "syn_options": syn },
        "option": { "class": s.option.class.name(), "number_low": s.option.number_low },
        "request": req,
        "response": resp,
    })
}

//! HTTP/2 on a simulated machine, frame by frame: the input is read as a list of frames, so that a fuzzer gets past
//! lengths and prefaces. A client's frames meet an instance that behaves by HTTP/1 (nothing malformed may reach it), or
//! an instance whose frames are the input's too. Nothing panics or hangs, and all connections end.
#![no_main]

use std::cell::RefCell;
use std::rc::Rc;

use libfuzzer_sys::fuzz_target;
use sluicegate_dataplane::table::Protocol;
use sluicegate_fuzz::instance::{bad, good};
use sluicegate_fuzz::{PREFACE, night, pieces};
use sluicegate_ring::sim::FaultProfile;

/// A frame with nothing in it, of type SETTINGS.
const NO_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// `POST http://app/`: three fields of HPACK's static table, and an authority.
const POST: &[u8] = b"\x83\x86\x84\x41\x03app";
/// `:status: 200`.
const OK: &[u8] = b"\x88";

/// Flags that two frames share (RFC 9113, section 6).
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fuzz_target!(|input: &[u8]| {
    let [choice, cut, bytes @ ..] = input else { return };
    let fault_profile = || if choice & 2 == 0 { FaultProfile::calm() } else { pieces() };
    if choice & 1 == 0 {
        let client = [PREFACE, &NO_SETTINGS, &frames(bytes, POST)].concat();
        let seen = Rc::new(RefCell::new(Vec::new()));
        night(&client, Protocol::Http1, fault_profile(), async move |ring, listener| good(ring, listener, seen).await);
    } else {
        let (client, instance) = bytes.split_at(bytes.len() * usize::from(*cut) / 256);
        let ask = frame(1, END_STREAM | END_HEADERS, 1, POST);
        let client = [PREFACE, &NO_SETTINGS, &ask, &frames(client, POST)].concat();
        let script = [&NO_SETTINGS[..], &frames(instance, OK)].concat();
        night(&client, Protocol::H2c, fault_profile(), async move |ring, listener| bad(ring, listener, script).await);
    }
});

/// Three bytes say which frame comes next (what it is, its flags, its stream and how long it is), the bytes after them
/// what is in it. `head` begins every other HEADERS frame, so that there is often a good one.
fn frames(mut script: &[u8], head: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let [what, flags, size, rest @ ..] = script {
        let (payload, rest) = rest.split_at(usize::from(*size >> 2).min(rest.len()));
        let stream = u32::from(what >> 4) * 2 + u32::from(*size & 1);
        let kind = what & 15; // ten are known, the others may come anyway
        if kind == 1 && size & 2 == 0 {
            all.extend(frame(kind, flags & END_STREAM | END_HEADERS, stream, &[head, payload].concat()));
        } else {
            all.extend(frame(kind, *flags, stream, payload));
        }
        script = rest;
    }
    all
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it is short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

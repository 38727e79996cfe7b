//! A whole connection to the proxy on a simulated machine: a client's bytes, and in one half of the
//! runs an instance's bytes too. Nothing panics or hangs, all connections end; and with an instance that
//! behaves, both sides see the same bytes whether the network delivers at once or seven bytes at a time.
#![no_main]

use std::cell::RefCell;
use std::rc::Rc;

use libfuzzer_sys::fuzz_target;
use sluicegate_dataplane::table::Protocol;
use sluicegate_fuzz::instance::{Request, bad, good};
use sluicegate_fuzz::{PREFACE, pieces};
use sluicegate_ring::sim::FaultProfile;

/// What one night looked like.
#[derive(Debug, Default, PartialEq, Eq)]
struct Night {
    /// What the instance saw.
    requests: Vec<Request>,
    /// What the client got.
    answer: Vec<u8>,
}

impl Night {
    /// The same, but for a line that never ended: seen whole it is refused for what is in it, seen in pieces
    /// it is read at its end, so it runs out of time.
    fn is_as(&self, other: &Self) -> bool {
        let late = |night: &Self| night.answer.windows(LATE.len()).rposition(|window| window == LATE);
        let same_answer = match (late(self), late(other)) {
            (None, None) | (Some(_), Some(_)) => self.answer == other.answer,
            (Some(at), None) | (None, Some(at)) => {
                let refused =
                    |night: &Self| night.answer.get(at..).is_some_and(|a| a.starts_with(b"HTTP/1.1 "));
                refused(self) && refused(other) && self.answer[..at] == other.answer[..at]
            }
        };
        same_answer && self.requests == other.requests
    }
}

const LATE: &[u8] = b"HTTP/1.1 408 Request Timeout\r\n";

fuzz_target!(|input: &[u8]| {
    let [choice, cut, bytes @ ..] = input else { return };
    if choice % 2 == 0 {
        let kind = night(bytes, None, FaultProfile::calm());
        let rough = night(bytes, None, pieces());
        // What an HTTP/2 connection has said before its first bad frame depends on when that came.
        assert!(bytes.starts_with(PREFACE) || kind.is_as(&rough), "{kind:?}\n{rough:?}");
    } else {
        let (client, instance) = bytes.split_at(bytes.len() * usize::from(*cut) / 256);
        night(client, Some(instance), FaultProfile::calm());
        night(client, Some(instance), pieces());
    }
});

fn night(client: &[u8], instance: Option<&[u8]>, fault_profile: FaultProfile) -> Night {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (noted, script) = (Rc::clone(&seen), instance.map(<[u8]>::to_vec));
    let answer = sluicegate_fuzz::night(client, Protocol::Http1, fault_profile, async move |ring, listener| match script {
        Some(bytes) => bad(ring, listener, bytes).await,
        None => good(ring, listener, noted).await,
    });
    Night { requests: seen.take(), answer: undated(answer) }
}

/// Without what the wall clock said: between two nights a second may begin.
fn undated(mut answer: Vec<u8>) -> Vec<u8> {
    const DATE: &[u8] = b"\r\nDate: ";
    for at in 0..answer.len() {
        if answer[at..].starts_with(DATE) {
            answer[at + DATE.len()..].iter_mut().take_while(|byte| **byte != b'\r').for_each(|byte| *byte = b'-');
        }
    }
    answer
}

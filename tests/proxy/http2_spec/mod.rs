//! The cases of h2spec as a table of our own: frames in, and the server's reaction as RFC 9113 and RFC 7541 require it, over
//! real sockets. Each case has a connection of its own; the sections are the RFCs'.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod framing;
mod headers;
mod hpack;
mod peer;
mod states;

use kit::{Appliance, ApplianceSetup, HttpCall, TestUpstream};

use peer::{Expect, HOST, Http2Case, play};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn gateway(upstream: &TestUpstream) -> Appliance {
    ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("workers", "1").start()
}

/// Plays all cases and tells of all that went wrong.
fn check(cases: &[Http2Case]) {
    let upstream = TestUpstream::start("one");
    let mut appliance = gateway(&upstream);
    let mut wrong = Vec::new();
    for case in cases {
        let before = upstream.requests();
        if let Err(why) = play(appliance.http(), case) {
            wrong.push(format!("{} {}: {why}", case.section, case.name));
        } else if matches!(case.expect, Expect::Malformed) && upstream.requests() != before {
            wrong.push(format!("{} {}: the instance has seen it", case.section, case.name));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    assert!(appliance.is_running() && !appliance.stderr().contains("panicked"), "{}", appliance.stderr());
}

/// RFC 9113 sections 3 and 4, and 6: what a frame may be.
#[test]
fn frames_are_what_they_have_to_be() {
    check(&framing::cases());
}

/// RFC 9113 section 5: which frame may come when.
#[test]
fn streams_go_through_their_states_only() {
    check(&states::cases());
}

/// RFC 9113 section 8: what a request may be.
#[test]
fn a_malformed_request_is_none() {
    check(&headers::cases());
}

/// RFC 7541: what a field block may be.
#[test]
fn field_blocks_are_decoded_or_refused() {
    check(&hpack::cases());
}

#[test]
fn the_table_is_as_long_as_it_says() {
    let all = [framing::cases(), states::cases(), headers::cases(), hpack::cases()].concat();
    assert!(all.len() >= 90, "{} cases", all.len());
    let mut names: Vec<_> = all.iter().map(|case| (case.section, case.name)).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len(), "two cases have one name");
}

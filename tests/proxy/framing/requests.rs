//! Requests: rejected, or received by the instance exactly as they were sent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use kit::server::{HandlerReply, ReceivedMessage, TestServer};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, HttpRequest};

use crate::framing::cases::{FramingCase, bytes, read};

pub(crate) const TABLE: &str = include_str!("requests.txt");

/// An instance that notes every whole request as `METHOD TARGET BODY`.
pub(crate) struct Oracle {
    server: TestServer,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Oracle {
    pub(crate) fn start() -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let server = TestServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), move || {
            move |request: HttpRequest| {
                let HttpRequest { method, target, body, .. } = &request;
                let line = format!("{method} {target} {}", String::from_utf8_lossy(body));
                noted.lock().unwrap().push(line.trim_end().to_owned());
                async { HandlerReply::Send(ReceivedMessage::new(200).body("ok")) }
            }
        });
        Self { server, seen }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

/// What happened to one case: the statuses that came back, and what the instance saw.
pub(crate) fn put(case: &FramingCase, to: SocketAddr, oracle: &Oracle, wanted: usize) -> (Vec<u16>, Vec<String>) {
    let mut connection = HttpConnection::open(to);
    connection.send(&case.bytes);
    let to_head = case.bytes.starts_with(b"HEAD");
    let mut statuses = Vec::new();
    while statuses.len() < wanted {
        match connection.try_receive(to_head) {
            Ok(answer) => statuses.push(answer.status),
            Err(_) => break,
        }
    }
    (statuses, oracle.take())
}

fn whole(line: &str) -> String {
    String::from_utf8(bytes(line.trim())).unwrap()
}

fn check(case: &FramingCase, appliance: &Appliance, oracle: &Oracle) -> Result<(), String> {
    let verdict = case.columns[0];
    if let Some(listed) = verdict.strip_prefix("= ") {
        let wanted: Vec<_> = listed.split(" ; ").map(whole).collect();
        let (statuses, seen) = put(case, appliance.http(), oracle, wanted.len());
        let fine = seen == wanted && statuses.len() == wanted.len() && statuses.iter().all(|s| *s == 200);
        return if fine { Ok(()) } else { Err(format!("{statuses:?}, seen {seen:?}")) };
    }
    if verdict == "late -" {
        return unfinished(case, appliance, oracle);
    }
    let late = verdict.strip_prefix("late ");
    let status: u16 = late.unwrap_or(verdict).parse().unwrap();
    let (statuses, seen) = put(case, appliance.http(), oracle, 2);
    match statuses.as_slice() {
        [one] if *one == status && seen.is_empty() => Ok(()),
        // Part of it may have been forwarded, and the instance's response to the broken request overtakes ours.
        [400] | [] if late.is_some() && seen.is_empty() => Ok(()),
        _ => Err(format!("{statuses:?}, seen {seen:?}")),
    }
}

/// The body is shorter than announced: there is no response, and the instance never sees a request.
fn unfinished(case: &FramingCase, appliance: &Appliance, oracle: &Oracle) -> Result<(), String> {
    let mut connection = HttpConnection::open(appliance.http());
    connection.send(&case.bytes);
    connection.finish();
    let answer = connection.try_receive(false);
    let seen = oracle.take();
    match answer {
        Err(_) if seen.is_empty() => Ok(()),
        other => Err(format!("{other:?}, seen {seen:?}")),
    }
}

#[test]
fn request_is_rejected_or_unambiguous() {
    let oracle = Oracle::start();
    let mut appliance = ApplianceSetup::new(env!("CARGO_BIN_EXE_sluicegate")).route("a", oracle.address()).start();
    let mut wrong = Vec::new();
    for case in read(TABLE) {
        if let Err(found) = check(&case, &appliance, &oracle) {
            wrong.push(format!("{}: wanted {:?}, found {found}", case.what, case.columns[0]));
        }
        assert!(appliance.is_running(), "{}", case.what);
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));

    let after = HttpCall::get("/after").host("a").send(appliance.http());
    assert_eq!((after.status, oracle.take()), (200, vec!["GET /after".to_owned()]));
}

/// A client that stops in the middle of the first bytes of HTTP/2, which may still become HTTP/1, gets the reason
/// it is let go, as any other that dawdles over its head.
#[test]
fn incomplete_preface_gets_reason() {
    let oracle = Oracle::start();
    let appliance = ApplianceSetup::new(env!("CARGO_BIN_EXE_sluicegate")).route("a", oracle.address()).start();
    let mut connection = HttpConnection::open(appliance.http());
    connection.send(b"PRI * HT");
    assert_eq!(connection.receive().status, 408);
    assert_eq!(connection.rest(), Some(Vec::new()));
}

//! Responses: complete, rejected or visibly broken, and never delivered to the next client.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use kit::{ApplianceSetup, HttpCall, HttpConnection, TIMEOUT, wait};

use crate::framing::cases::{FramingCase, read};

const TABLE: &str = include_str!("responses.txt");
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// An instance that answers `/N` with the bytes of case N, and anything else well. Its thread ends with the
/// process.
fn instance(cases: &Arc<Vec<FramingCase>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let cases = Arc::clone(cases);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let cases = Arc::clone(&cases);
            thread::spawn(move || converse(stream.unwrap(), &cases));
        }
    });
    address
}

fn converse(mut stream: TcpStream, cases: &[FramingCase]) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (mut held, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        while !held.ends_with(b"\r\n\r\n") {
            match wait::read(&mut stream, &mut piece) {
                Ok(0) | Err(_) => return,
                Ok(length) => held.extend_from_slice(&piece[..length]),
            }
        }
        let head = String::from_utf8(std::mem::take(&mut held)).unwrap();
        let number = head.split([' ', '/']).nth(2).unwrap().parse::<usize>();
        let bytes = number.map_or(OK, |number| cases[number].bytes.as_slice());
        let (bytes, close) = bytes.strip_suffix(b"!").map_or((bytes, false), |bytes| (bytes, true));
        if stream.write_all(bytes).is_err() || close {
            return;
        }
    }
}

fn check(case: &FramingCase, number: usize, to: SocketAddr) -> Result<(), String> {
    let (method, verdict) = (case.columns[0], case.columns[1]);
    let mut connection = HttpConnection::open(to);
    connection.send(&HttpCall::new(method, &format!("/{number}")).host("a").to_bytes(to));
    let answer = connection.try_receive(method == "HEAD");
    let found = match (&answer, verdict) {
        (Ok(answer), "502") => (answer.status == 502).then_some(()),
        // Nothing of it may have left when it broke: then it can still be refused.
        (Ok(answer), "cut") => (answer.status == 502).then_some(()),
        (Err(_), "cut") => Some(()),
        (Ok(answer), whole) => {
            let found = format!("= {} {}", answer.status, answer.text());
            (found.trim_end() == whole).then_some(())
        }
        (Err(_), _) => None,
    };
    found.ok_or_else(|| format!("{answer:?}"))?;

    // The next request gets its own response: on the same connection, if it is open, and on another.
    let next = || HttpCall::get("/fine").host("a");
    if answer.is_ok_and(|answer| answer.status != 502 && answer.header("connection").is_none()) {
        let mine = connection.try_call(&next()).map_err(|why| format!("the next request: {why}"))?;
        if mine.body != b"ok" {
            return Err(format!("the next request got {mine:?}"));
        }
    }
    for _ in 0..2 {
        let others = next().send(to);
        if others.body != b"ok" {
            return Err(format!("somebody else got {others:?}"));
        }
    }
    Ok(())
}

#[test]
fn an_answer_is_whole_or_it_is_none() {
    let cases = Arc::new(read(TABLE));
    let setup = ApplianceSetup::new(env!("CARGO_BIN_EXE_sluicegate"));
    // One core, so that what an instance's connection was left with meets the very next request.
    let mut appliance = setup.flag("workers", "1").route("a", instance(&cases)).start();
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        if let Err(found) = check(case, number, appliance.http()) {
            wrong.push(format!("{}: wanted {:?}, found {found}", case.what, case.columns[1]));
        }
        assert!(appliance.is_running(), "{}", case.what);
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

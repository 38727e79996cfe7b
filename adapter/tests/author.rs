//! A transport needs no more code than the example greeter, which is run here as a program.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

fn greeter() -> Option<Command> {
    // target/debug/deps/author-… is next to target/debug/examples.
    let own = std::env::current_exe().unwrap();
    let directory = own.parent().unwrap().parent().unwrap();
    let program = directory.join("examples/greeter");
    if !program.is_file() {
        eprintln!("skipped: {} is not built; cargo test without --test builds it", program.display());
        return None;
    }
    let mut command = Command::new(program);
    command.env_clear();
    Some(command)
}

/// TRN-25, TRN-26, TRN-27, TRN-28, TRN-30, TRN-32: a typed configuration, one constructor, one loop and a `main` of one call make
/// an adapter that retries and keeps the order, with no code of its own for HTTP, CloudEvents or the environment.
#[test]
fn transport_of_one_loop_is_a_whole_adapter() {
    let source =
        std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/greeter.rs")).unwrap();
    for word in ["http::", "hyper", "env::", "ce-"] {
        assert!(!source.contains(word), "{word}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = format!("http://{}/", listener.local_addr().unwrap());
    let receiver = r#"{"greetings":["hello","hi","hey"]}"#;
    let Some(mut program) = greeter() else { return };
    let mut child = program.env("ADAPTER_RECEIVER", receiver).env("K_SINK", sink).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut bodies = Vec::new();
    // The first request is answered 503 and comes again.
    for status in [503, 202, 202, 202] {
        let mut length = 0;
        for line in reader.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty()) {
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        bodies.push(String::from_utf8(body).unwrap());
        stream.write_all(format!("HTTP/1.1 {status} Test\r\ncontent-length: 0\r\n\r\n").as_bytes()).unwrap();
    }
    assert_eq!(bodies, ["hello", "hello", "hi", "hey"]);
    assert!(child.wait().unwrap().success());

    let mut program = greeter().unwrap();
    let output =
        program.env("ADAPTER_RECEIVER", r#"{"greetings":7}"#).env("K_SINK", "http://127.0.0.1:1/").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("ADAPTER_RECEIVER: greetings: invalid type"), "{text}");
}

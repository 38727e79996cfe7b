//! The appliance as a plain gateway: `--route HOST=ADDR`, through the built binary.

use std::{fs, thread};

use kit::message::HttpResponse;
use kit::server::{HandlerReply, ReceivedMessage, TestServer, closed_address};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, HttpConnection, SinkResponse, TIMEOUT, TestUpstream, wait};
use serde_json::Value;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";
/// The number of the system call, on every architecture since there is one table for new calls.
const IO_URING_ENTER: &str = "426";

/// One upstream behind one host, on one core: connections to the upstream can be counted.
fn gateway(upstream: &TestUpstream) -> Appliance {
    ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("workers", "1").start()
}

/// What the upstream saw of a call.
fn seen(appliance: &Appliance, call: HttpCall) -> Value {
    let response = call.host(HOST).send(appliance.http());
    assert_eq!(response.status, 200, "{response}");
    response.json()
}

fn header<'a>(seen: &'a Value, name: &str) -> &'a str {
    seen["headers"][name].as_str().unwrap_or("(absent)")
}

/// SRV-REQ-01, APP-12: the Host decides, whatever its case and port; an unknown one is a 404.
#[test]
fn a_routed_host_reaches_its_own_address_and_an_unknown_one_nobody() {
    let (one, two) = (TestUpstream::start("one"), TestUpstream::start("two"));
    let appliance = ApplianceSetup::new(BIN)
        .route("one.example.com", one.address())
        .route("two.example.com", two.address())
        .start();
    let name = |host: &str| HttpCall::get("/").host(host).send(appliance.http()).json()["name"].clone();

    assert_eq!(name("one.example.com"), "one");
    assert_eq!(name("two.example.com"), "two");
    assert_eq!(name("ONE.Example.com:8080"), "one");

    let before = one.requests() + two.requests();
    for host in ["example.com", "three.example.com", "one.example.com.evil", "localhost"] {
        assert_eq!(HttpCall::get("/").host(host).send(appliance.http()).status, 404, "{host}");
    }
    assert_eq!(one.requests() + two.requests(), before);
}

#[test]
fn a_star_takes_every_host_that_has_no_route_of_its_own() {
    let (one, any) = (TestUpstream::start("one"), TestUpstream::start("any"));
    let appliance = ApplianceSetup::new(BIN).route("one.example.com", one.address()).route("*", any.address()).start();
    for (host, name) in [("one.example.com", "one"), ("two.example.com", "any"), ("x", "any")] {
        assert_eq!(HttpCall::get("/").host(host).send(appliance.http()).json()["name"], name, "{host}");
    }
}

#[test]
fn of_two_addresses_the_less_busy_one_is_taken() {
    let (one, two) = (TestUpstream::start("one"), TestUpstream::start("two"));
    let both = format!("{HOST}={},{}", one.address(), two.address());
    let appliance = ApplianceSetup::new(BIN).flag("route", &both).start();
    let http = appliance.http();

    let long = thread::spawn(move || HttpCall::get("/delay?ms=1000").host(HOST).send(http).json());
    wait::until(TIMEOUT, "the long request to arrive", || (one.requests() + two.requests() == 1).then_some(()));
    let busy = if one.requests() == 1 { "one" } else { "two" };
    for _ in 0..5 {
        assert_ne!(HttpCall::get("/").host(HOST).send(http).json()["name"], busy);
    }
    assert_eq!(long.join().unwrap()["name"], busy);
}

#[test]
fn an_address_that_refuses_is_passed_over() {
    let upstream = TestUpstream::start("one");
    let both = format!("{HOST}={},{}", closed_address(), upstream.address());
    let appliance = ApplianceSetup::new(BIN).flag("route", &both).start();
    for round in 0..20 {
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200, "round {round}");
    }
}

/// RT-HDR-01, RT-HDR-04: nothing of the request is changed on its way but what a proxy must change.
#[test]
fn method_target_host_and_headers_arrive_as_they_were_sent() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let target = "/a%2Fb/../c?x=1&y=%20&x=2";
        let call = HttpCall::new(method, target)
            .header("X-Custom", "  spaced, \"quoted\"; q=0.5")
            .header("Cookie", "a=1; b=2")
            .header("Authorization", "Bearer token")
            .header("User-Agent", "kit");
        let seen = seen(&appliance, call);
        assert_eq!((&seen["method"], &seen["target"]), (&method.into(), &target.into()));
        assert_eq!(header(&seen, "host"), HOST);
        assert_eq!(header(&seen, "x-custom"), "spaced, \"quoted\"; q=0.5");
        assert_eq!(header(&seen, "cookie"), "a=1; b=2");
        assert_eq!(header(&seen, "authorization"), "Bearer token");
        assert_eq!(header(&seen, "user-agent"), "kit");
    }
    let with_port = HttpCall::get("/").host("app.example.com:8080").send(appliance.http()).json();
    assert_eq!(header(&with_port, "host"), "app.example.com:8080");
}

#[test]
fn what_belongs_to_one_connection_stays_on_it() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let call = HttpCall::get("/")
        .header("Connection", "keep-alive, X-Private")
        .header("X-Private", "1")
        .header("Keep-Alive", "timeout=5")
        .header("Proxy-Connection", "keep-alive")
        .header("TE", "gzip")
        .header("Upgrade", "foo");
    let seen = seen(&appliance, call);
    for name in ["x-private", "keep-alive", "proxy-connection", "te", "upgrade"] {
        assert_eq!(header(&seen, name), "(absent)", "{name}");
    }
}

/// RT-HDR-05, RT-HDR-06, RT-HDR-07: the client's address, and the proxies in between.
#[test]
fn upstream_gets_client_address() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);

    let plain = seen(&appliance, HttpCall::get("/"));
    assert_eq!(header(&plain, "x-forwarded-for"), "127.0.0.1");
    assert_eq!(header(&plain, "x-forwarded-proto"), "http");
    assert_eq!(header(&plain, "x-forwarded-host"), HOST);
    let forwarded = header(&plain, "forwarded").to_ascii_lowercase();
    assert!(forwarded.contains("for=127.0.0.1") && forwarded.contains("proto=http"), "{forwarded}");
}

/// RT-HDR-08: the trace continues, or begins here.
#[test]
fn a_trace_is_passed_on_or_begun() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);

    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    let call = HttpCall::get("/").header("traceparent", &parent).header("tracestate", "a=1");
    let passed = seen(&appliance, call);
    assert_eq!(header(&passed, "traceparent").split('-').nth(1), Some(trace));
    assert_eq!(header(&passed, "tracestate"), "a=1");

    let (first, second) = (seen(&appliance, HttpCall::get("/")), seen(&appliance, HttpCall::get("/")));
    for begun in [&first, &second] {
        let parts: Vec<_> = header(begun, "traceparent").split('-').collect();
        let lengths: Vec<_> = parts.iter().map(|part| part.len()).collect();
        assert_eq!(lengths, [2, 32, 16, 2], "{parts:?}");
        assert!(parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_hexdigit())), "{parts:?}");
        assert!(parts[1].bytes().any(|b| b != b'0') && parts[2].bytes().any(|b| b != b'0'), "{parts:?}");
    }
    assert_ne!(header(&first, "traceparent"), header(&second, "traceparent"));
}

#[test]
fn connections_are_kept_on_both_sides() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let mut client = HttpConnection::open(appliance.http());
    for _ in 0..50 {
        assert_eq!(client.call(&HttpCall::get("/").host(HOST)).status, 200);
    }
    assert_eq!((upstream.requests(), upstream.connections()), (50, 1));
}

#[test]
fn an_upstream_that_closes_after_each_answer_costs_no_request() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let mut client = HttpConnection::open(appliance.http());
    for round in 0..20 {
        assert_eq!(client.call(&HttpCall::get("/close").host(HOST)).status, 200, "round {round}");
    }
}

#[test]
fn a_client_that_wants_to_close_is_closed() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let mut client = HttpConnection::open(appliance.http());
    assert_eq!(client.call(&HttpCall::get("/").host(HOST).header("Connection", "close")).status, 200);
    assert_eq!(client.rest(), Some(Vec::new()));

    let mut old = HttpConnection::open(appliance.http());
    old.send(format!("GET / HTTP/1.0\r\nHost: {HOST}\r\n\r\n").as_bytes());
    assert_eq!(old.receive().status, 200);
    assert_eq!(old.rest(), Some(Vec::new()));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let mut client = HttpConnection::open(appliance.http());
    let calls: Vec<_> = ["/delay?ms=100", "/b", "/status?code=404", "/d"]
        .iter()
        .map(|target| HttpCall::get(target).host(HOST).to_bytes(client.peer()))
        .collect();
    client.send(&calls.concat());

    let answers: Vec<HttpResponse> = (0..calls.len()).map(|_| client.receive()).collect();
    assert_eq!(answers[0].json()["target"], "/delay?ms=100");
    assert_eq!(answers[1].json()["target"], "/b");
    assert_eq!(answers[2].status, 404);
    assert_eq!(answers[3].json()["target"], "/d");
}

#[test]
fn bodies_pass_unchanged_in_both_framings_and_all_sizes() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let mut client = HttpConnection::open(appliance.http());
    for size in [0, 1, 16 * 1024 - 1, 16 * 1024, 100_001, 4 * 1024 * 1024] {
        let body: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let call = HttpCall::post("/mirror").host(HOST).body(body.clone());
        assert!(client.call(&call).body == body, "{size} bytes with a length");

        let bytes = call.to_chunked_bytes(client.peer(), 1000);
        client.send(&bytes);
        let mirrored = client.receive();
        assert!(mirrored.chunked && mirrored.body == body, "{size} bytes as chunks");
    }
}

#[test]
fn a_long_chunked_answer_arrives_whole() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let response = HttpCall::get("/chunks?count=2000&bytes=1500").host(HOST).send(appliance.http());
    assert_eq!((response.chunked, response.body.len()), (true, 3_000_000));
}

#[test]
fn a_body_that_comes_byte_by_byte_is_one_body() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let mut client = HttpConnection::open(appliance.http());
    for byte in HttpCall::post("/mirror").host(HOST).body("slow").to_chunked_bytes(client.peer(), 3) {
        client.send(&[byte]);
    }
    assert_eq!(client.receive().text(), "slow");
}

#[test]
fn an_answer_to_head_has_no_body_and_leaves_the_connection_usable() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let mut client = HttpConnection::open(appliance.http());
    assert_eq!(client.call(&HttpCall::new("HEAD", "/").host(HOST)).status, 200);
    assert_eq!(client.call(&HttpCall::get("/status?code=204").host(HOST)).status, 204);
    assert_eq!(client.call(&HttpCall::get("/status?code=304").host(HOST)).status, 304);
    assert_eq!(client.call(&HttpCall::get("/after").host(HOST)).json()["target"], "/after");
}

#[test]
fn a_client_that_waits_to_be_invited_is_invited() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let mut client = HttpConnection::open(appliance.http());
    let head = format!("POST /mirror HTTP/1.1\r\nHost: {HOST}\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    client.send(head.as_bytes());
    assert_eq!(client.receive_one(false).unwrap().status, 100);
    client.send(b"hello");
    let response = client.receive();
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
}

#[test]
fn every_status_comes_back_as_it_is() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let mut client = HttpConnection::open(appliance.http());
    for code in [200, 201, 299, 301, 307, 400, 404, 418, 429, 500, 503, 599] {
        let call = HttpCall::get(&format!("/status?code={code}")).host(HOST);
        assert_eq!(client.call(&call).status, code);
    }
}

#[test]
fn an_answer_that_comes_before_the_body_is_passed_on() {
    let early = TestServer::start("127.0.0.1:0".parse().unwrap(), || {
        |_| async { HandlerReply::Send(ReceivedMessage::new(200).body("whole")) }
    });
    // The fixture itself wants whole requests; a raw answer without waiting needs a bare socket.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let refuser = thread::spawn(move || {
        use std::io::{Read, Write};

        let (mut socket, _) = listener.accept().unwrap();
        let mut head = [0; 1024];
        let _ = socket.read(&mut head).unwrap();
        socket.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig").unwrap();
        let _ = socket.read(&mut head); // until the proxy lets go
    });
    let appliance = ApplianceSetup::new(BIN).route("early.example.com", address).route(HOST, early.address()).start();
    let mut client = HttpConnection::open(appliance.http());
    client.send(b"POST / HTTP/1.1\r\nHost: early.example.com\r\nContent-Length: 1000000\r\n\r\nfirst bytes");
    let response = client.receive();
    assert_eq!((response.status, response.text().as_str()), (413, "big"));
    drop(client);
    refuser.join().unwrap();
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).text(), "whole");
}

/// RT-PORT-01: a backend that does not answer in HTTP is a 502, and affects no others.
#[test]
fn an_upstream_that_fails_is_a_502_and_the_appliance_goes_on() {
    let upstream = TestUpstream::start("one");
    let babble = EventSink::answering(|_| SinkResponse::raw(b"SSH-2.0-OpenSSH_9.9\r\n"));
    let appliance = ApplianceSetup::new(BIN)
        .route(HOST, upstream.address())
        .route("babble.example.com", babble.address())
        .route("closed.example.com", closed_address())
        .start();
    let status = |host: &str, target: &str| HttpCall::get(target).host(host).send(appliance.http()).status;

    assert_eq!(status("babble.example.com", "/"), 502);
    assert_eq!(status(HOST, "/hangup"), 502);
    assert!(matches!(status("closed.example.com", "/"), 502 | 503));
    assert_eq!(status(HOST, "/"), 200);
}

#[test]
fn many_clients_at_once_get_their_own_answers() {
    let upstream = TestUpstream::start("one");
    let appliance = ApplianceSetup::new(BIN).route("*", upstream.address()).start();
    let http = appliance.http();
    let clients: Vec<_> = (0..32)
        .map(|client| {
            thread::spawn(move || {
                let mut connection = HttpConnection::open(http);
                for round in 0..50 {
                    let text = format!("client {client} round {round}");
                    let call = HttpCall::post("/mirror").host(HOST).body(text.clone());
                    assert_eq!(connection.call(&call).text(), text);
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    assert_eq!(upstream.requests(), 32 * 50);
}

/// APP-02: a core waits in `io_uring_enter` and serves requests without a read or write of its own.
#[test]
fn a_core_does_its_io_by_the_ring() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let tasks = format!("/proc/{}/task", appliance.pid());
    let core = fs::read_dir(tasks)
        .unwrap()
        .map(|task| task.unwrap().path())
        .find(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "core-0"));
    let core = core.expect("a thread for each worker");
    // Reads and writes by system call; the ring's are not among them.
    let calls = || -> u64 {
        let counts = fs::read_to_string(core.join("io")).unwrap();
        let counts = counts.lines().filter_map(|line| line.strip_prefix("syscr: ").or(line.strip_prefix("syscw: ")));
        counts.map(|count| count.parse::<u64>().unwrap()).sum()
    };
    let mut connection = HttpConnection::open(appliance.http());
    let mut ask = |count| {
        for _ in 0..count {
            assert_eq!(connection.call(&HttpCall::get("/").host(HOST)).status, 200);
        }
    };
    ask(10);
    let before = calls();
    ask(200);
    assert!(calls() - before < 20, "{} reads and writes for 200 requests", calls() - before);
    wait::until(TIMEOUT, "the core to wait in its ring", || {
        let call = fs::read_to_string(core.join("syscall")).unwrap();
        call.split(' ').next().filter(|number| *number == IO_URING_ENTER).map(drop)
    });
}

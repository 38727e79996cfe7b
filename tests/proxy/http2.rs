//! HTTP/2 without TLS through the built binary, with a third-party client.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request};
use kit::api::is_ready;
use kit::http2::{H2Client, H2Server, answer, run, send_all};
use kit::manifest::{NAMESPACE, greets, service};
use kit::server::{HandlerReply, ReceivedMessage, TestServer};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, TIMEOUT, TestUpstream, wait};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";
const IMAGE: &str = "example.com/hello";
/// Well above every window and buffer on the way.
const LARGE_BYTES: usize = 8 << 20;

fn gateway(address: SocketAddr) -> Appliance {
    ApplianceSetup::new(BIN).route(HOST, address).flag("workers", "1").start()
}

/// A gateway to an instance that speaks HTTP/2.
fn gateway_h2c(instance: &H2Server) -> Appliance {
    let rule = format!("{HOST}=h2c://{}", instance.address());
    ApplianceSetup::new(BIN).flag("route", &rule).flag("workers", "1").start()
}

fn request(method: Method, path: &str) -> Request<()> {
    Request::builder().method(method).uri(format!("http://{HOST}{path}")).body(()).unwrap()
}

fn get(path: &str) -> Request<()> {
    request(Method::GET, path)
}

fn post(path: &str) -> Request<()> {
    request(Method::POST, path)
}

/// Bytes of which no two neighbouring pages are alike.
fn large() -> Bytes {
    (0..LARGE_BYTES as u32 / 4).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect()
}

fn trailers(name: &'static str, value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))])
}

/// SRV-REQ-03: every request on a connection is divided on its own.
#[test]
fn a_thousand_streams_of_one_connection_reach_both_revisions() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    api.create(&service("hello", IMAGE, "one"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    api.patch("Service", NAMESPACE, "hello", &greets(IMAGE, "two"));
    api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
        is_ready(service) && service["status"]["latestReadyRevisionName"] == "hello-00002"
    });
    let half = |number| json!({ "revisionName": format!("hello-0000{number}"), "percent": 50 });
    api.patch("Service", NAMESPACE, "hello", &json!({ "spec": { "traffic": [half(1), half(2)] } }));
    let ready = api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let url = ready["status"]["url"].as_str().unwrap_or_default().to_owned();

    let answers = run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let calls: Vec<_> = (0..1000)
            .map(|_| {
                let (client, request) = (client.clone(), Request::get(&url).body(()).unwrap());
                tokio::task::spawn_local(async move { client.call(request).await.unwrap() })
            })
            .collect();
        let mut answers = BTreeMap::<String, u32>::new();
        for call in calls {
            let answer = call.await.unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            let text = answer.text();
            *answers.entry(text.trim().rsplit(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
        answers
    });
    // Half of 1000, give or take five times the standard deviation of 16.
    for revision in ["hello-00001", "hello-00002"] {
        let count = answers.get(revision).copied().unwrap_or_default();
        assert!((420..=580).contains(&count), "{answers:?}");
    }
}

/// RT-HDR-01, RT-HDR-05: an HTTP/1 instance gets the request that was meant, with what a proxy adds.
#[test]
fn an_http1_instance_gets_the_request_as_it_was_meant() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(upstream.address());
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let mut asked = post("/a%2Fb/../c?x=1&x=2");
        for (name, value) in [("cookie", "a=1"), ("cookie", "b=2"), ("x-custom", "é"), ("te", "trailers")] {
            asked.headers_mut().append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let answer = client.send(asked, Bytes::from_static(b"body"), None).await.unwrap();
        assert_eq!((answer.status, &answer.headers["x-upstream"]), (200, &HeaderValue::from_static("one")));
        assert_eq!(answer.headers["content-length"], answer.body.len().to_string());
        let seen: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((&seen["method"], &seen["target"]), (&json!("POST"), &json!("/a%2Fb/../c?x=1&x=2")));
        assert_eq!(seen["body"], "body");
        let headers = &seen["headers"];
        assert_eq!((&headers["host"], &headers["cookie"]), (&json!(HOST), &json!("a=1; b=2")));
        assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
        assert_eq!(headers["transfer-encoding"], "chunked");
        assert!(headers["te"].is_null() && headers["traceparent"].is_string(), "{headers}");

        let mut sized = post("/");
        sized.headers_mut().insert("content-length", 4.into());
        let answer = client.send(sized, Bytes::from_static(b"body"), None).await.unwrap();
        let seen: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((&seen["headers"]["content-length"], &seen["body"]), (&json!("4"), &json!("body")));
    });
}

#[test]
fn answers_without_a_body_have_none_and_keep_their_length() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(upstream.address());
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        for code in [200, 204, 304, 404, 503] {
            let answer = client.call(get(&format!("/status?code={code}"))).await.unwrap();
            assert_eq!((answer.status, answer.body.len()), (code, 0));
        }
        let whole = client.call(get("/")).await.unwrap();
        let head = client.call(request(Method::HEAD, "/")).await.unwrap();
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert!(head.headers["content-length"].to_str().unwrap().parse::<usize>().unwrap() > 100);
        assert!(!whole.body.is_empty());
        // An instance that hangs up is a 502 for its own stream only.
        assert_eq!(client.call(get("/hangup")).await.unwrap().status, 502);
        assert_eq!(client.call(get("/")).await.unwrap().status, 200);
        let elsewhere = Request::get("http://unknown.example.com/").body(()).unwrap();
        assert_eq!(client.call(elsewhere).await.unwrap().status, 404);
    });
}

/// Answers one chunked request with an interim answer, chunks and trailers; gives back what it read.
fn http1_with_trailers(listener: TcpListener) -> JoinHandle<String> {
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") || !read.windows(3).any(|w| w == b"0\r\n") {
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "ended after {}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&piece[..count]);
        }
        stream
            .write_all(
                b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
                  HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                  3\r\nabc\r\n0\r\nX-Sum: 7\r\nContent-Length: 9\r\n\r\n",
            )
            .unwrap();
        String::from_utf8_lossy(&read).into_owned()
    })
}

#[test]
fn trailers_and_interim_answers_pass_between_http2_and_http1() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let appliance = gateway(listener.local_addr().unwrap());
    let instance = http1_with_trailers(listener);
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let (mut response, mut stream) = client.begin(post("/"), false).await.unwrap();
        send_all(&mut stream, Bytes::from_static(b"hello"), false).await.unwrap();
        stream.send_trailers(trailers("x-check", "5")).unwrap();
        let hint = std::future::poll_fn(|cx| response.poll_informational(cx)).await.unwrap().unwrap();
        assert_eq!((hint.status().as_u16(), &hint.headers()["link"]), (103, &HeaderValue::from_static("</a>")));
        let answer = answer(response.await.unwrap()).await.unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, "abc"));
        assert_eq!(answer.trailers, Some(trailers("x-sum", "7")));
    });
    let read = instance.join().unwrap();
    assert!(read.ends_with("5\r\nhello\r\n0\r\nx-check: 5\r\n\r\n"), "{read}");
}

#[test]
fn large_bodies_pass_both_ways_at_once_to_both_kinds_of_instance() {
    let (upstream, instance) = (TestUpstream::start("one"), H2Server::start());
    let body = large();
    for appliance in [gateway(upstream.address()), gateway_h2c(&instance)] {
        run(async {
            let (client, _ended) = H2Client::open(appliance.http()).await;
            let answer = client.send(post("/mirror"), body.clone(), None).await.unwrap();
            assert!(answer.status == 200 && answer.body == body, "{} bytes", answer.body.len());
        });
    }
    // ... and from a client that speaks HTTP/1.
    let appliance = gateway_h2c(&instance);
    let answer = HttpCall::post("/mirror").host(HOST).body(body.to_vec()).send(appliance.http());
    assert!(answer.status == 200 && answer.chunked && answer.body == body, "{} bytes", answer.body.len());
}

/// A client that does not read stalls only its own stream.
#[test]
fn a_stream_that_is_not_read_stops_only_itself() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(upstream.address());
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        // 40,000 of the connection's 65,535 bytes of window stay taken.
        let (stuck, _stream) = client.begin(get("/chunks?count=2&bytes=20000"), true).await.unwrap();
        let mut stuck = stuck.await.unwrap();
        for _ in 0..20 {
            assert_eq!(client.call(get("/")).await.unwrap().status, 200);
        }
        let mut read = 0;
        while let Some(piece) = stuck.body_mut().data().await {
            read += piece.unwrap().len();
        }
        assert_eq!(read, 40_000);
    });
}

#[test]
fn grpc_streams_both_ways_and_its_trailers_arrive() {
    let instance = H2Server::start();
    let appliance = gateway_h2c(&instance);
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let mut call = post("/mirror");
        call.headers_mut().insert("te", HeaderValue::from_static("trailers"));
        let (response, mut stream) = client.begin(call, false).await.unwrap();
        let mut response = response.await.unwrap(); // before any message was sent
        for turn in 0..10_u8 {
            stream.send_data(Bytes::copy_from_slice(&[turn]), false).unwrap();
            let received = response.body_mut().data().await.unwrap().unwrap();
            assert_eq!(&received[..], [turn]);
        }
        stream.send_trailers(trailers("x-check", "5")).unwrap();
        assert!(response.body_mut().data().await.is_none());
        let fields = response.body_mut().trailers().await.unwrap().unwrap();
        assert_eq!((&fields["grpc-status"], &fields["x-check"]), (&"0".parse().unwrap(), &"5".parse().unwrap()));

        let refused = client.call(post("/trailers-only")).await.unwrap();
        assert_eq!((refused.status, &refused.headers["grpc-status"]), (200, &HeaderValue::from_static("7")));

        let mut call = get("/fields");
        call.headers_mut().insert("te", HeaderValue::from_static("trailers"));
        let text = client.call(call).await.unwrap().text();
        for line in [format!("authority: Some({HOST})"), "te: trailers".into(), "x-forwarded-for: 127.0.0.1".into()] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    });
}

#[test]
fn many_requests_share_one_connection_to_an_instance() {
    let instance = H2Server::start();
    let appliance = gateway_h2c(&instance);
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        client.call(get("/first")).await.unwrap();
        let calls: Vec<_> = (0..50)
            .map(|_| {
                let client = client.clone();
                tokio::task::spawn_local(async move { client.call(get("/x")).await.unwrap().status })
            })
            .collect();
        for call in calls {
            assert_eq!(call.await.unwrap(), 200);
        }
    });
    assert_eq!((instance.requests(), instance.connections()), (51, 1));
}

#[test]
fn an_http1_client_reaches_an_instance_that_speaks_http2() {
    let instance = H2Server::start();
    let appliance = gateway_h2c(&instance);
    let mut connection = HttpConnection::open(appliance.http());
    let whole = connection.call(&HttpCall::get("/a?b=1").host(HOST).header("X-Y", "z"));
    assert_eq!(whole.status, 200, "{whole}");
    let text = whole.text();
    for line in ["GET /a", &format!("authority: Some({HOST})"), "x-y: z", "x-forwarded-for: 127.0.0.1"] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    let head = connection.call(&HttpCall::new("HEAD", "/a").host(HOST));
    assert_eq!((head.status, head.body.len()), (200, 0));
    let mirrored = connection.call(&HttpCall::post("/mirror").host(HOST).body("hello"));
    assert_eq!((mirrored.status, mirrored.chunked, mirrored.text().as_str()), (200, true, "hello"));
    let empty = connection.call(&HttpCall::post("/trailers-only").host(HOST));
    assert_eq!(
        (empty.status, empty.header("content-length"), empty.header("grpc-status")),
        (200, Some("0"), Some("7"))
    );
    assert_eq!(connection.call(&HttpCall::get("/again").host(HOST)).status, 200);
    assert_eq!(instance.connections(), 1);
}

#[test]
fn a_request_that_is_taken_back_is_taken_back_from_the_instance() {
    let instance = H2Server::start();
    let appliance = gateway_h2c(&instance);
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let (response, mut stream) = client.begin(get("/hang"), true).await.unwrap();
        while instance.requests() == 0 {
            tokio::task::yield_now().await;
        }
        stream.send_reset(h2::Reason::CANCEL);
        drop(response);
        while instance.taken_back() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(client.call(get("/x")).await.unwrap().status, 200);
    });
}

/// APP-09: a stop finishes what was begun, tells the client, and exits 0.
#[test]
fn a_stop_says_goaway_and_finishes_open_streams() {
    let upstream = TestUpstream::start("one");
    let mut appliance = gateway(upstream.address());
    let pid = appliance.pid();
    let ended = run(async {
        let (client, ended) = H2Client::open(appliance.http()).await;
        let slow = client.clone();
        let slow = tokio::task::spawn_local(async move { slow.call(get("/delay?ms=1500")).await });
        while upstream.requests() == 0 {
            tokio::task::yield_now().await;
        }
        let term = std::process::Command::new("kill").arg(pid.to_string()).status().unwrap();
        assert!(term.success());
        assert_eq!(slow.await.unwrap().unwrap().status, 200);
        drop(client);
        ended.await.unwrap()
    });
    assert!(ended.is_ok(), "{ended:?}");
    assert!(appliance.wait().success());
}

/// Both protocols on one port, whatever pieces their first bytes come in.
#[test]
fn the_first_bytes_decide_what_is_spoken() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(upstream.address());
    for method in ["GET", "POST", "PRI", "PRINT", "PATCH"] {
        let mut stream = TcpStream::connect(appliance.http()).unwrap();
        stream.set_nodelay(true).unwrap();
        let head = format!("{method} / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
        for byte in head.as_bytes() {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{method}: {answer}");
        assert!(answer.contains(&format!("\"method\":\"{method}\"")), "{method}: {answer}");
    }
    let mut stream = TcpStream::connect(appliance.http()).unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in kit::http2::opening() {
        stream.write_all(&[byte]).unwrap();
    }
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 0x4, "a SETTINGS frame: {head:?}");
}

/// An instance that goes away between two requests is asked again on a new connection.
#[test]
fn a_connection_that_an_instance_closed_is_replaced() {
    let instance = TestServer::start(([127, 0, 0, 1], 0).into(), || {
        |_| async { HandlerReply::Send(ReceivedMessage { close: true, ..ReceivedMessage::new(200) }) }
    });
    let appliance = gateway(instance.address());
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        for _ in 0..20 {
            assert_eq!(client.call(get("/")).await.unwrap().status, 200);
        }
    });
    wait::until(TIMEOUT, "twenty connections", || (instance.connections() == 20).then_some(()));
}

/// A client that is still sending its request gets the answer that was given meanwhile, not a reset instead of it.
#[test]
fn a_refusal_is_not_swallowed_by_the_reset_behind_it() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(upstream.address());
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        for _ in 0..50 {
            let asked = Request::post("http://nobody.example.com/").body(()).unwrap();
            let (response, mut body) = client.begin(asked, false).await.unwrap();
            body.send_data(Bytes::from_static(b"more to come"), false).unwrap();
            assert_eq!(response.await.unwrap().status(), 404);
        }
    });
}

/// A program of others, if this host has it and it speaks HTTP/2.
fn program(name: &str) -> Option<Command> {
    let output = Command::new(name).arg("--version").output().ok()?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    if name == "curl" && !output.contains("HTTP2") {
        return None;
    }
    Some(Command::new(name))
}

/// Common clients: curl, and h2load with many streams on few connections.
#[test]
fn programs_of_others_are_served() {
    let upstream = TestUpstream::start("one");
    let appliance = ApplianceSetup::new(BIN).route("*", upstream.address()).flag("workers", "2").start();
    let url = format!("http://{}/mirror", appliance.http());
    match program("curl") {
        Some(mut curl) => {
            let body = "x".repeat(1_000_000);
            let file = appliance.setup().write_file("body", &body);
            let data = format!("@{}", file.display());
            curl.args(["--silent", "--http2-prior-knowledge", "--max-time", "30", "--data-binary", &data]);
            let said = curl.args(["--write-out", " %{http_code} %{http_version}", &url]).output().unwrap();
            let said = String::from_utf8(said.stdout).unwrap();
            assert_eq!(said.strip_prefix(&body), Some(" 200 2"), "{} bytes", said.len());
        }
        None => eprintln!("skipped: no curl with HTTP/2 here"),
    }
    match program("h2load") {
        Some(mut h2load) => {
            let said = h2load.args(["-n", "2000", "-c", "4", "-m", "50", &url]).output().unwrap();
            let said = String::from_utf8(said.stdout).unwrap();
            let all = "2000 total, 2000 started, 2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout";
            assert!(said.contains(all), "{said}");
        }
        None => eprintln!("skipped: no h2load here"),
    }
}

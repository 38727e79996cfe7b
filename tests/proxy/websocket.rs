//! WebSockets through the built binary: tunnels, with an instance that echoes its input.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestUpstream, http2, wait};
use tungstenite::Message;
use tungstenite::protocol::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";
/// Close with 1001, from a server to its client.
const GOING_AWAY: &[u8] = &[0x88, 0x02, 0x03, 0xe9];

fn gateway(address: SocketAddr) -> Appliance {
    ApplianceSetup::new(BIN).route(HOST, address).flag("workers", "1").start()
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Switches, then sends back all bytes until the client has finished; gives the head and the bytes back.
fn echo() -> (SocketAddr, thread::JoinHandle<(String, Vec<u8>)>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = read_head(&mut stream);
        stream
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                  Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            )
            .unwrap();
        let mut heard = Vec::new();
        let mut piece = [0; 65536];
        loop {
            let count = wait::read(&mut stream, &mut piece).unwrap();
            if count == 0 {
                return (head, heard);
            }
            heard.extend_from_slice(&piece[..count]);
            if stream.write_all(&piece[..count]).is_err() {
                return (head, heard);
            }
        }
    });
    (address, thread)
}

/// Asks for a WebSocket; the connection and the answer's head.
fn open(appliance: &Appliance) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(appliance.http()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = format!(
        "GET /chat HTTP/1.1\r\nHost: {HOST}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let head = read_head(&mut stream);
    (stream, head)
}

/// X-KI-11: bytes pass both ways as they are, and the end of one side is passed to the other.
#[test]
fn a_websocket_passes_everything_both_ways() {
    let (address, instance) = echo();
    let appliance = gateway(address);
    let (mut stream, head) = open(&appliance);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    for line in ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="] {
        assert!(head.lines().any(|found| found.eq_ignore_ascii_case(line)), "{line} in {head}");
    }

    let sent: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut writer = stream.try_clone().unwrap();
    let copy = sent.clone();
    let writing = thread::spawn(move || writer.write_all(&copy).unwrap());
    let mut heard = vec![0; sent.len()];
    stream.read_exact(&mut heard).unwrap();
    writing.join().unwrap();
    assert!(heard == sent, "the echo is not what was sent");

    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(wait::read(&mut stream, &mut [0; 10]).unwrap(), 0);
    let (head, heard) = instance.join().unwrap();
    assert!(heard == sent && head.starts_with("GET /chat HTTP/1.1\r\n"), "{head}");
    for line in ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"] {
        assert!(head.lines().any(|found| found.eq_ignore_ascii_case(line)), "{line} in {head}");
    }
}

/// A server of another library: echoes its input, until its client closes.
fn library_echo() -> (SocketAddr, thread::JoinHandle<Option<CloseFrame>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut socket = tungstenite::accept(stream).unwrap();
        let mut said = None;
        loop {
            match socket.read() {
                Ok(Message::Close(frame)) => said = frame,
                Ok(message @ (Message::Text(_) | Message::Binary(_))) => socket.send(message).unwrap(),
                Ok(_) => {} // pings are answered by the library
                Err(tungstenite::Error::ConnectionClosed) => return said,
                Err(why) => panic!("the server's side: {why}"),
            }
        }
    });
    (address, thread)
}

/// X-KI-11: a client's library and a server's understand each other: texts, a message in many frames' size, pings and a
/// close with its code and reason.
#[test]
fn libraries_on_both_sides_understand_each_other() {
    let (address, instance) = library_echo();
    let appliance = gateway(address);
    let stream = TcpStream::connect(appliance.http()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (mut socket, answer) = tungstenite::client(format!("ws://{HOST}/chat?x=1"), stream).unwrap();
    assert_eq!(answer.status(), 101);
    let large: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
    for message in [Message::text("gr\u{fc}\u{df}e"), Message::binary(large), Message::binary(Vec::new())] {
        socket.send(message.clone()).unwrap();
        assert!(socket.read().unwrap() == message, "not what was said");
    }
    socket.send(Message::Ping(vec![1, 2, 3].into())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Pong(vec![1, 2, 3].into()));
    let goodbye = CloseFrame { code: CloseCode::Normal, reason: "done".into() };
    socket.close(Some(goodbye.clone())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Close(Some(goodbye.clone())));
    assert!(matches!(socket.read(), Err(tungstenite::Error::ConnectionClosed)));
    assert_eq!(instance.join().unwrap(), Some(goodbye));
}

/// APP-09: a stop says goodbye at the end of the frame that is in progress, to both sides.
#[test]
fn a_stop_closes_a_websocket_between_two_frames() {
    let (address, instance) = echo();
    let mut appliance = gateway(address);
    let (mut stream, _) = open(&appliance);
    // Ten bytes of content are promised, four are sent before the stop.
    let frame = [0x82, 0x8a, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    stream.write_all(&frame[..10]).unwrap();
    let mut heard = [0; 10];
    stream.read_exact(&mut heard).unwrap();
    let pid = appliance.pid().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    stream.set_nonblocking(true).unwrap();
    wait::nothing(Duration::from_millis(200), "a goodbye inside a frame", || stream.peek(&mut [0]).ok());
    stream.set_nonblocking(false).unwrap();
    stream.write_all(&frame[10..]).unwrap();

    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, [&frame[10..], GOING_AWAY].concat());
    assert!(appliance.wait().success());
    let (_, heard) = instance.join().unwrap();
    let (content, goodbye) = heard.split_at(frame.len());
    assert_eq!((content, &goodbye[..2], goodbye.len()), (&frame[..], &[0x88, 0x82][..], 8));
}

/// An instance that resets its connection at the goodbye does not cost a client its own, however much that still sends.
#[test]
fn client_that_sends_gets_goodbye_though_instance_resets() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut appliance = gateway(listener.local_addr().unwrap());
    let instance = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_head(&mut stream);
        let switched = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
        stream.write_all(switched.as_bytes()).unwrap();
        let mut frame = [0; 8];
        while stream.read_exact(&mut frame).is_ok() && frame[0] != 0x88 {}
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    let (mut stream, _) = open(&appliance);
    let mut sender = stream.try_clone().unwrap();
    let sending = thread::spawn(move || while sender.write_all(&[0x82, 0x82, 0, 0, 0, 0, 1, 2]).is_ok() {});
    assert!(Command::new("kill").arg(appliance.pid().to_string()).status().unwrap().success());
    instance.join().unwrap();
    wait::rest(Duration::from_millis(200)); // more than it sends until then is on its way
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard); // after the goodbye it may be reset, as it never ends
    assert_eq!(heard, GOING_AWAY);
    sending.join().unwrap();
    assert!(appliance.wait().success());
}

#[test]
fn an_instance_that_does_not_switch_answers_as_ever() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(upstream.address());
    let (_, head) = open(&appliance);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let refused = HttpCall::new("CONNECT", "app.example.com:80").host("app.example.com:80").send(appliance.http());
    assert_eq!(refused.status, 405);
}

#[test]
fn an_instance_that_speaks_http2_has_no_websockets() {
    let instance = kit::http2::H2Server::start();
    let rule = format!("{HOST}=h2c://{}", instance.address());
    let appliance = ApplianceSetup::new(BIN).flag("route", &rule).start();
    let (_, head) = open(&appliance);
    assert!(head.starts_with("HTTP/1.1 501 "), "{head}");
}

/// RFC 8441: one stream of an HTTP/2 connection is a WebSocket to an instance that knows only HTTP/1, and the streams
/// next to it are not disturbed.
#[test]
fn a_websocket_can_be_a_stream_of_http2() {
    let (address, instance) = echo();
    let appliance = gateway(address);
    let sent: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let wanted = sent.clone();
    http2::run(async {
        let (client, _ended) = http2::H2Client::open(appliance.http()).await;
        client.knows_extended_connect().await;
        let mut asked = http::Request::builder()
            .method("CONNECT")
            .uri(format!("https://{HOST}/chat"))
            .header("sec-websocket-version", "13")
            .body(())
            .unwrap();
        asked.extensions_mut().insert(h2::ext::Protocol::from("websocket"));
        let (response, mut stream) = client.begin(asked, false).await.unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(response.headers().get("sec-websocket-accept").is_none());
        let mut heard = response.into_body();
        let reading = async {
            let mut all = Vec::new();
            while let Some(bytes) = heard.data().await {
                let bytes = bytes.unwrap();
                heard.flow_control().release_capacity(bytes.len()).unwrap();
                all.extend_from_slice(&bytes);
            }
            all
        };
        let writing = http2::send_all(&mut stream, sent.into(), true);
        let (all, written) = http2::both(reading, writing).await;
        written.unwrap();
        assert!(all == wanted, "{} of {} bytes came back", all.len(), wanted.len());
        // An unknown protocol is handled like any other CONNECT.
        let mut other = http::Request::builder().method("CONNECT").uri(format!("https://{HOST}/")).body(()).unwrap();
        other.extensions_mut().insert(h2::ext::Protocol::from("gopher"));
        let (response, _stream) = client.begin(other, false).await.unwrap();
        assert_eq!(response.await.unwrap().status(), 405);
    });
    let (head, _) = instance.join().unwrap();
    assert!(head.starts_with("GET /chat HTTP/1.1\r\n"), "{head}");
    for line in ["upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13"] {
        assert!(head.lines().any(|found| found.eq_ignore_ascii_case(line)), "{line} in {head}");
    }
    assert!(head.lines().any(|line| line.to_ascii_lowercase().starts_with("sec-websocket-key: ")), "{head}");
}

/// RFC 8441: the handshake goes by a kept connection like any request; one that its instance was about to close is replaced.
#[test]
fn a_handshake_that_its_instance_did_not_read_is_asked_for_again() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let appliance = gateway(listener.local_addr().unwrap());
    let instance = thread::spawn(move || {
        let (mut kept, _) = listener.accept().unwrap();
        read_head(&mut kept);
        kept.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        read_head(&mut kept);
        drop(kept);
        let (mut fresh, _) = listener.accept().unwrap();
        read_head(&mut fresh);
        let switched = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
        fresh.write_all(switched.as_bytes()).unwrap();
        fresh.read_to_end(&mut Vec::new()).unwrap();
    });
    http2::run(async {
        let (client, _ended) = http2::H2Client::open(appliance.http()).await;
        client.knows_extended_connect().await;
        let plain = http::Request::get(format!("http://{HOST}/")).body(()).unwrap();
        assert_eq!(client.call(plain).await.unwrap().status, 204);
        let mut asked = http::Request::builder().method("CONNECT").uri(format!("http://{HOST}/")).body(()).unwrap();
        asked.extensions_mut().insert(h2::ext::Protocol::from("websocket"));
        let (response, mut stream) = client.begin(asked, false).await.unwrap();
        assert_eq!(response.await.unwrap().status(), 200);
        stream.send_data(bytes::Bytes::new(), true).unwrap();
    });
    instance.join().unwrap();
}

//! Instances: one that behaves, and one that sends the bytes of the input.

use std::cell::RefCell;
use std::rc::Rc;

use sluicegate_dataplane::codec::http::{BodyDecoder, MalformedHttp, Parsed, BodyEvent, RequestHead, parse_request};
use sluicegate_ring::{RingListener, Ring, RingStream};

/// A whole request at an instance: method, path, body.
pub type Request = (String, String, Vec<u8>);

/// Answers each request with the length of its body, and notes it.
pub async fn good(ring: Ring, listener: RingListener, seen: Rc<RefCell<Vec<Request>>>) {
    while let Ok(stream) = listener.accept().await {
        ring.spawn(behave(stream, Rc::clone(&seen)));
    }
}

/// Says `bytes` on every connection.
pub async fn bad(ring: Ring, listener: RingListener, bytes: Vec<u8>) {
    while let Ok(stream) = listener.accept().await {
        ring.spawn(misbehave(stream, bytes.clone()));
    }
}

/// Sends its bytes at the first sign of a request, reads on, and closes when the other side does.
async fn misbehave(stream: RingStream, bytes: Vec<u8>) {
    let closes = bytes.last().is_some_and(|last| last % 2 == 0);
    if stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {
        let _ = stream.send(bytes).await;
    }
    while !closes && stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {}
}

/// Reads whole requests and answers each with the length of its body.
async fn behave(stream: RingStream, seen: Rc<RefCell<Vec<Request>>>) {
    let mut held = Vec::new();
    let mut head = RequestHead::default();
    loop {
        let end = match parse_request(&held, &mut head) {
            Parsed::Head { bytes } => bytes,
            Parsed::NeedBytes if more(&stream, &mut held).await => continue,
            Parsed::NeedBytes => return,
            // HTTP/1.0 without a host, as RFC 9112 3.2 has it passed on. We would not take it ourselves.
            Parsed::Malformed(MalformedHttp::HostInvalid) if held.windows(10).any(|w| w == b"\r\nHost: \r\n") => {
                return;
            }
            Parsed::Malformed(why) => {
                panic!("{why:?} reached an instance: {}", String::from_utf8_lossy(&held))
            }
        };
        let view = head.view(&held);
        let (method, path) = (view.method().to_owned(), view.path().to_owned());
        held.drain(..end);

        let (mut reader, mut body) = (BodyDecoder::new(head.framing), Vec::new());
        loop {
            match reader.next(&held).expect("our framing is right") {
                BodyEvent::Data { skip, take } => {
                    body.extend_from_slice(&held[skip..skip + take]);
                    held.drain(..skip + take);
                }
                BodyEvent::End { skip } => {
                    held.drain(..skip);
                    break;
                }
                BodyEvent::NeedBytes => {
                    held.clear();
                    if !more(&stream, &mut held).await {
                        return; // the client broke off, and so did we
                    }
                }
            }
        }
        let text = body.len().to_string();
        let body_sent = if method == "HEAD" { "" } else { &text };
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body_sent}", text.len());
        seen.borrow_mut().push((method, path, body));
        if stream.send(answer.into_bytes()).await.is_err() {
            return;
        }
    }
}

async fn more(stream: &RingStream, held: &mut Vec<u8>) -> bool {
    match stream.recv().await {
        Ok(chunk) => {
            held.extend_from_slice(&chunk);
            !chunk.is_empty()
        }
        Err(_) => false,
    }
}

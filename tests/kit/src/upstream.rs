//! An upstream application. The path of a request selects its behavior, so that
//! a test is readable by itself:
//!
//! | Path | Answer |
//! |---|---|
//! | `/mirror` | the body of the request, as chunks if it came as chunks |
//! | `/chunks?count=N&bytes=M` | N chunks of M bytes |
//! | `/delay?ms=N` | as any other path, after N ms |
//! | `/status?code=N` | that status, empty |
//! | `/hangup` | none: the connection is closed |
//! | `/close` | as any other path, then the connection is closed |
//! | any other | the request as JSON: `name`, `method`, `target`, `headers` (lower case), `body` |

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::message::HttpRequest;
use crate::server::{HandlerReply, ReceivedMessage, TestServer};

#[derive(Debug)]
pub struct TestUpstream {
    server: TestServer,
    counts: Arc<UpstreamCounts>,
}

#[derive(Debug, Default)]
struct UpstreamCounts {
    requests: AtomicU64,
    inside: AtomicU64,
    inside_max: AtomicU64,
}

impl TestUpstream {
    /// Starts on a free port; `name` is in every answer's `X-Upstream` header.
    pub fn start(name: &str) -> Self {
        let counts = Arc::new(UpstreamCounts::default());
        let (seen, name) = (Arc::clone(&counts), name.to_owned());
        let server = TestServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), move || {
            move |request| serve(request, name.clone(), Arc::clone(&seen))
        });
        Self { server, counts }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Requests that arrived whole.
    pub fn requests(&self) -> u64 {
        self.counts.requests.load(SeqCst)
    }

    /// Most requests that were inside at one time.
    pub fn overlap_max(&self) -> u64 {
        self.counts.inside_max.load(SeqCst)
    }

    /// Connections accepted.
    pub fn connections(&self) -> u64 {
        self.server.connections()
    }
}

async fn serve(request: HttpRequest, name: String, counts: Arc<UpstreamCounts>) -> HandlerReply {
    counts.requests.fetch_add(1, SeqCst);
    let inside = counts.inside.fetch_add(1, SeqCst) + 1;
    counts.inside_max.fetch_max(inside, SeqCst);
    if request.path() == "/delay" {
        monoio::time::sleep(Duration::from_millis(request.query_number("ms").unwrap_or(0))).await;
    }
    counts.inside.fetch_sub(1, SeqCst);
    answer(request, &name)
}

fn answer(request: HttpRequest, name: &str) -> HandlerReply {
    let number = |key| match request.query_number(key) {
        Some(number) => number,
        None => panic!("{} needs {key}=NUMBER", request.target),
    };
    let message = match request.path() {
        "/hangup" => return HandlerReply::HangUp,
        "/mirror" if request.chunked => ReceivedMessage::new(200).chunks(vec![request.body]),
        "/mirror" => ReceivedMessage::new(200).body(request.body),
        "/status" => ReceivedMessage::new(u16::try_from(number("code")).unwrap()),
        "/chunks" => {
            let piece = vec![b'x'; usize::try_from(number("bytes")).unwrap()];
            ReceivedMessage::new(200).chunks((0..number("count")).map(|_| piece.clone()).collect())
        }
        path => {
            let close = path == "/close";
            let json = describe(&request, name).to_string();
            ReceivedMessage { close, ..ReceivedMessage::new(200).header("Content-Type", "application/json").body(json) }
        }
    };
    HandlerReply::Send(message.header("X-Upstream", name))
}

fn describe(request: &HttpRequest, name: &str) -> Value {
    let mut headers = Map::new();
    for (header, value) in &request.headers.0 {
        // A header that came twice shows as one list, as RFC 9110 reads it.
        let slot = headers.entry(header.to_ascii_lowercase()).or_insert(Value::Null);
        *slot = match slot.as_str() {
            Some(before) => json!(format!("{before}, {value}")),
            None => json!(value),
        };
    }
    json!({
        "name": name,
        "method": request.method,
        "target": request.target,
        "headers": headers,
        "body": String::from_utf8_lossy(&request.body),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HttpCall;

    #[test]
    fn requests_that_overlap_are_counted() {
        let upstream = TestUpstream::start("one");
        let address = upstream.address();
        let callers: Vec<_> =
            (0..4).map(|_| std::thread::spawn(move || HttpCall::get("/delay?ms=200").send(address).status)).collect();
        for caller in callers {
            assert_eq!(caller.join().unwrap(), 200);
        }
        assert_eq!(upstream.requests(), 4);
        assert!(upstream.overlap_max() >= 2, "{}", upstream.overlap_max());
    }

    #[test]
    fn the_path_says_what_is_answered() {
        let upstream = TestUpstream::start("one");
        let get = |target: &str| HttpCall::get(target).send(upstream.address());

        let chunked = get("/chunks?count=3&bytes=5");
        assert_eq!((chunked.chunked, chunked.body.len()), (true, 15));
        assert_eq!(get("/status?code=503").status, 503);
        assert_eq!(get("/close").header("connection"), Some("close"));
        assert_eq!(get("/").header("x-upstream"), Some("one"));
    }
}

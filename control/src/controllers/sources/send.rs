//! Sends one event by plain HTTP, in binary mode, until it is taken.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{SourceName, Tally};

/// How often an event is sent in all, if nobody takes it.
const ATTEMPTS_MAX: u32 = 6;
/// The pause after the first attempt; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(500);
/// How long one attempt may take.
const ATTEMPT_MAX: Duration = Duration::from_secs(30);

/// An event on its way.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) from: SourceName,
    pub(super) sink: String,
    /// In the order in which they are written.
    pub(super) attributes: Vec<(String, String)>,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Outgoing {
    /// Empty: it has none of this name.
    pub(super) fn attribute(&self, name: &str) -> &str {
        self.attributes.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

/// Sends it; whoever is to know of a failure is told by the log. Names below `domain` are this host. Each attempt is
/// counted.
pub(super) async fn send(event: Outgoing, domain: String, tally: Arc<Tally>) {
    let mut pause = PAUSE;
    for attempt in 1..=ATTEMPTS_MAX {
        let began = Instant::now();
        let outcome = tokio::time::timeout(ATTEMPT_MAX, post(&event, &domain)).await;
        let status = outcome.iter().flatten().next().map_or(0, StatusCode::as_u16);
        tally.note(&event.from, status, began.elapsed());
        let why = match outcome {
            Ok(Ok(status)) if status.is_success() => return,
            Ok(Ok(status)) if !is_worth_another(status) => {
                tracing::warn!(sink = event.sink, %status, "a PingSource's event is not taken, and not sent again");
                return;
            }
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(why)) => why,
            Err(_) => format!("no answer within {} seconds", ATTEMPT_MAX.as_secs()),
        };
        if attempt == ATTEMPTS_MAX {
            tracing::warn!(
                sink = event.sink,
                why,
                attempts = attempt,
                "a PingSource's event could not be delivered"
            );
            return;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

/// The answers after which the specification of event delivery has an event sent again.
fn is_worth_another(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 404 | 408 | 409 | 425 | 429)
}

async fn post(event: &Outgoing, domain: &str) -> Result<StatusCode, String> {
    let uri: Uri = event.sink.parse().map_err(|why| format!("{}: {why}", event.sink))?;
    let host = uri.host().ok_or("the sink's URL names no host")?;
    let here = [domain, "localhost"].iter().any(|name| host == *name || host.ends_with(&format!(".{name}")));
    let address = if here { "127.0.0.1" } else { host.trim_matches(['[', ']']) };
    let stream = TcpStream::connect((address, uri.port_u16().unwrap_or(80)));
    let stream = stream.await.map_err(|why| format!("{host}: {why}"))?;
    let request = request(event, &uri)?;
    let opened = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.map_err(|why| why.to_string())?;
    let answer = sender.send_request(request);
    tokio::pin!(answer);
    let answer = tokio::select! {
        answer = &mut answer => answer,
        ended = connection => {
            ended.map_err(|why| why.to_string())?;
            // A sink that closes at once: its answer came before the end.
            answer.await
        }
    };
    answer.map(|answer| answer.status()).map_err(|why| why.to_string())
}

fn request(event: &Outgoing, uri: &Uri) -> Result<Request<Body>, String> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let mut request = Request::post(path).header(header::HOST, authority);
    for (key, value) in &event.attributes {
        request = request.header(format!("ce-{key}"), in_header(value));
    }
    if let Some(media) = &event.content_type {
        request = request.header(header::CONTENT_TYPE, media);
    }
    request.body(Body::from(event.body.clone())).map_err(|why| why.to_string())
}

/// A value as headers carry it: what is no plain letter is written in bytes.
fn in_header(value: &str) -> String {
    let mut found = String::with_capacity(value.len());
    for letter in value.chars() {
        if matches!(letter, '!'..='~') && !matches!(letter, '"' | '%') {
            found.push(letter);
            continue;
        }
        for byte in letter.to_string().bytes() {
            let _ = write!(found, "%{byte:02X}"); // text takes everything
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn values_are_written_as_headers_carry_them() {
        assert_eq!(in_header("a b\"%ü"), "a%20b%22%25%C3%BC");
    }

    /// The answer and the end come in one: it counted as no answer, and the event was sent again.
    #[tokio::test]
    async fn an_event_is_sent_once_to_a_sink_that_closes_at_once() {
        const EVENTS: usize = 30;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sink = format!("http://127.0.0.1:{}/", listener.local_addr().unwrap().port());
        let taken = std::sync::atomic::AtomicUsize::new(0);
        let serve = async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = [0; 4096];
                let _ = stream.read(&mut bytes).await.unwrap();
                taken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                stream.write_all(b"HTTP/1.0 202 Accepted\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            }
        };
        let send_all = async {
            for _ in 0..EVENTS {
                let event = Outgoing {
                    from: SourceName::default(),
                    sink: sink.clone(),
                    attributes: vec![("id".into(), "1".into())],
                    content_type: None,
                    body: Vec::new(),
                };
                send(event, "example.com".into(), Arc::default()).await;
            }
        };
        tokio::select! {
            () = send_all => {}
            () = serve => unreachable!("it serves for ever"),
        }
        assert_eq!(taken.into_inner(), EVENTS);
    }

    /// SRC-38, X-OBS-01: a sink that is busy twice gets the event once it is not, and each attempt
    /// is counted.
    #[tokio::test]
    async fn an_event_is_sent_until_it_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sink = format!("http://sink.localhost:{}/x?y", listener.local_addr().unwrap().port());
        let attributes = vec![("type".to_owned(), "a b".to_owned())];
        let from = ("ns".to_owned(), "p".to_owned());
        let event =
            Outgoing { from: from.clone(), sink, attributes, content_type: None, body: b"hi".to_vec() };
        let answers = tokio::spawn(async move {
            let mut heads = Vec::new();
            for status in ["503 Busy", "503 Busy", "202 Accepted"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut text = Vec::new();
                while !text.ends_with(b"hi") {
                    let mut bytes = [0; 1024];
                    let read = stream.read(&mut bytes).await.unwrap();
                    assert!(read > 0);
                    text.extend_from_slice(&bytes[..read]);
                }
                heads.push(String::from_utf8(text).unwrap());
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            heads
        });
        let tally = Arc::new(Tally::default());
        send(event, "example.com".into(), Arc::clone(&tally)).await;
        let [(of, outcomes)] = &tally.all()[..] else { panic!("{tally:?}") };
        let counts: Vec<_> = outcomes.iter().map(|one| (one.key.status, one.durations.count())).collect();
        assert_eq!((of, counts), (&from, vec![(503, 2), (202, 1)]));
        tally.keep(|source| *source != from);
        assert!(tally.all().is_empty());
        let heads = answers.await.unwrap();
        assert!(heads[2].starts_with("POST /x?y HTTP/1.1\r\n"), "{}", heads[2]);
        assert!(heads[2].contains("ce-type: a%20b\r\n"), "{}", heads[2]);
    }
}

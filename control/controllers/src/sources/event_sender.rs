//! Sends one event, in binary mode, and retries until it is accepted.

use std::fmt::Write as _;
use std::time::Duration;

use codec::encode;
use codec::http::LocalResponse;
use contract::post_error::PostError;
use tokio::time::Instant;

use super::SourceName;
use crate::destination_resolver::DestinationAddress;

/// Attempts to send the event of a PingSource, if every one fails: the next one comes anyway.
pub(super) const PING_ATTEMPTS_MAX: u32 = 6;
/// The same of an ApiServerSource: some five minutes. Its watch waits meanwhile, so no event overtakes another.
pub(super) const API_SERVER_ATTEMPTS_MAX: u32 = 40;
/// The pause after the first attempt, as upstream's sources make it; each further one is twice as long, up to the next.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The longest pause: a sink that is back gets the next attempt soon.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(10);
/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// An event on its way.
#[derive(Debug)]
pub(super) struct OutgoingEvent {
    pub(super) from: SourceName,
    pub(super) sink: DestinationAddress,
    /// The account that it is sent as, if the sink authenticates senders.
    pub(super) account: Option<String>,
    /// In the order in which they are written.
    pub(super) attributes: Vec<(String, String)>,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
}

impl OutgoingEvent {
    /// Empty: it has none of this name.
    pub(super) fn attribute(&self, name: &str) -> &str {
        self.attributes.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

/// Sends it by `post`, with so many attempts at most; failures are logged. `count` gets the status of each attempt (0: there
/// was no response) and how long it took.
pub(super) async fn send<P>(event: OutgoingEvent, attempts_max: u32, count: impl Fn(u16, Duration), post: P)
where
    P: AsyncFn(&OutgoingEvent, encode::EncodedEvent, Duration) -> Result<LocalResponse, PostError>,
{
    let mut pause = RETRY_DELAY;
    for attempt in 1..=attempts_max {
        let began = Instant::now();
        let outcome = post(&event, request(&event), ATTEMPT_TIMEOUT).await;
        let status = outcome.as_ref().map_or(0, |answer| answer.status);
        count(status, began.elapsed());
        let why = match outcome {
            Ok(answer) if (200..300).contains(&answer.status) => return,
            Ok(answer) if !is_retryable(answer.status) => {
                let (sink, status) = (event.sink.url, answer.status);
                tracing::warn!(sink, status, "the sink rejects the event of a source; it is not sent again");
                return;
            }
            Ok(answer) => format!("the sink answers {}", answer.status),
            Err(why) => why.to_string(),
        };
        if attempt == attempts_max {
            tracing::warn!(
                sink = event.sink.url,
                why,
                attempts = attempt,
                "the event of a source could not be delivered"
            );
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_DELAY_MAX);
    }
}

/// The answers after which the specification of event delivery has an event sent again.
fn is_retryable(status: u16) -> bool {
    status >= 500 || matches!(status, 404 | 408 | 409 | 429)
}

fn request(event: &OutgoingEvent) -> encode::EncodedEvent {
    let mut request = encode::EncodedEvent { body: event.body.clone().into(), ..encode::EncodedEvent::default() };
    for (key, value) in &event.attributes {
        request.push(&format!("ce-{key}"), header_value(value).as_bytes());
    }
    if let Some(media) = &event.content_type {
        request.push("Content-Type", media.as_bytes());
    }
    request.push("Kn-Namespace", event.from.0.as_bytes());
    request
}

/// A value as headers carry it: what is no plain letter is written in bytes.
fn header_value(value: &str) -> String {
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
    use std::cell::RefCell;

    use super::*;
    use crate::sources::PingOutcomes;

    #[test]
    fn values_are_written_as_headers_carry_them() {
        assert_eq!(header_value("a b\"%ü"), "a%20b%22%25%C3%BC");
    }

    /// The requests to a sink with these responses, in order, and the counters.
    async fn asked(answers: &[Result<u16, PostError>]) -> (Vec<(String, encode::EncodedEvent)>, Vec<(u16, u64)>) {
        let from = ("ns".to_owned(), "p".to_owned());
        let event = OutgoingEvent {
            from: from.clone(),
            sink: DestinationAddress { url: "http://sink/x?y".to_owned(), audience: None, ca_certs: None },
            account: None,
            attributes: vec![("type".to_owned(), "a b".to_owned())],
            content_type: Some("text/plain".to_owned()),
            body: b"hi".to_vec(),
        };
        let (tally, calls) = (PingOutcomes::default(), RefCell::new(Vec::new()));
        let count = |status, took| tally.record(&from, status, took);
        send(event, PING_ATTEMPTS_MAX, count, async |event, request, _| {
            let nth = calls.borrow().len();
            calls.borrow_mut().push((event.sink.url.clone(), request));
            answers[nth].clone().map(|status| LocalResponse::text(status, ""))
        })
        .await;
        let [(of, outcomes)] = &tally.all()[..] else { panic!("{tally:?}") };
        assert_eq!(of, &from);
        let counts = outcomes.iter().map(|one| (one.key.status, one.durations.count())).collect();
        tally.retain(|source| *source != from);
        assert!(tally.all().is_empty());
        (calls.take(), counts)
    }

    /// SRC-36, SRC-38, X-OBS-01: in binary mode; a sink that is busy or away gets the event once it is not, and each attempt is counted.
    #[tokio::test(start_paused = true)]
    async fn an_event_is_sent_until_it_is_taken() {
        let away = || Err(PostError::Transport("nobody".into()));
        let (calls, counts) = asked(&[Ok(503), away(), Ok(429), Ok(202)]).await;
        assert_eq!(calls.len(), 4);
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 4);
        for (sink, request) in &calls {
            assert_eq!((sink.as_str(), &request.body[..]), ("http://sink/x?y", &b"hi"[..]));
            assert_eq!(request.header("ce-type"), Some(&b"a%20b"[..]));
            assert_eq!(request.header("content-type"), Some(&b"text/plain"[..]));
            assert_eq!(request.header("kn-namespace"), Some(&b"ns"[..]), "as every delivery says whose it is");
        }
        for refused in [301, 400, 401, 403, 410, 425] {
            assert_eq!(asked(&[Ok(refused)]).await.1, [(refused, 1)], "it would be refused again");
        }
        let never: Vec<_> = (0..PING_ATTEMPTS_MAX).map(|_| Ok(500)).collect();
        assert_eq!(asked(&never).await.1, [(500, u64::from(PING_ATTEMPTS_MAX))]);
    }
}

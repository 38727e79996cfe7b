//! A core's door for TLS: lets a handshake happen within its limits, and counts how it ended.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use ring::{Ring, Stream};
use rustls::HandshakeKind;

use super::hello::{self, Hello};
use super::turnstile::{Pass, Turnstile};
use super::{Outcome, Terms, TlsLimits, TlsStream};
use crate::counters::CoreCounters;

pub struct Door {
    ring: Ring,
    terms: Terms,
    turnstile: Turnstile,
    limits: TlsLimits,
    counters: Arc<CoreCounters>,
}

impl Door {
    #[must_use]
    pub fn new(ring: &Ring, terms: Terms, limits: TlsLimits, counters: Arc<CoreCounters>) -> Self {
        let turnstile = Turnstile::new(limits.handshakes_max);
        Self { ring: ring.clone(), terms, turnstile, limits, counters }
    }

    /// Shakes hands; without a stream the connection is over, and its reason is counted.
    pub async fn open(&self, stream: Stream) -> Option<TlsStream> {
        let (outcome, stream) = match self.in_bounds(stream).await {
            Ok((kind, stream)) => (kind, Some(stream)),
            Err(outcome) => (outcome, None),
        };
        self.counters.handshakes[outcome.index()].fetch_add(1, Relaxed);
        stream
    }

    async fn in_bounds(&self, stream: Stream) -> Result<(Outcome, TlsStream), Outcome> {
        let pass = self.turnstile.enter(self.ring.now()).ok_or(Outcome::Crowded)?;
        let handshake = self.handshake(stream, &pass);
        let turned_out = pass.turned_out();
        let either = async {
            let (mut handshake, mut turned_out) = (pin!(handshake), pin!(turned_out));
            poll_fn(|cx| match handshake.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(done),
                Poll::Pending => turned_out.as_mut().poll(cx).map(|()| Err(Outcome::Crowded)),
            })
            .await
        };
        self.ring.timeout(self.limits.handshake_max, either).await.unwrap_or(Err(Outcome::Slow))
    }

    async fn handshake(&self, stream: Stream, pass: &Pass<'_>) -> Result<(Outcome, TlsStream), Outcome> {
        let said = hello::read(&self.ring, &stream).await.map_err(|_| Outcome::Gone)?;
        let (accepted, rest) = match said {
            Hello::Said { accepted, rest } => (accepted, rest),
            Hello::Plain => return Err(Outcome::Plain),
            Hello::Gone => return Err(Outcome::Gone),
            Hello::Refused(why) => return Err(refused(&why)),
        };
        pass.speaks();

        let turn = self.turnstile.turn().await;
        let begun = accepted.into_connection(Arc::clone(&self.terms.0));
        self.ring.yield_now().await;
        drop(turn);
        let session = match begun {
            Ok(session) => session,
            Err((why, mut alert)) => {
                let mut bytes = Vec::new();
                if alert.write_all(&mut bytes).is_ok() {
                    hello::part(&self.ring, &stream, bytes).await;
                }
                return Err(refused(&why));
            }
        };

        let stream = TlsStream::new(stream, session.into(), rest);
        pass.owes(self.ring.now() + self.limits.answer_min);
        match stream.finish_handshake().await {
            Ok(HandshakeKind::Resumed) => Ok((Outcome::Resumed, stream)),
            Ok(_) => Ok((Outcome::Full, stream)),
            Err(why) if why.kind() == io::ErrorKind::InvalidData => {
                tracing::debug!(%why, "a handshake failed");
                Err(Outcome::Refused)
            }
            Err(_) => Err(Outcome::Gone),
        }
    }
}

fn refused(why: &rustls::Error) -> Outcome {
    tracing::debug!(%why, "a handshake was refused");
    Outcome::Refused
}

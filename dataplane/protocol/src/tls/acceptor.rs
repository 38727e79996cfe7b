//! Accepts TLS connections of a core: runs handshakes within their limits, and counts how they ended.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use contract::counters::CoreCounters;
use ring::{Chunk, Ring, RingStream};
use rustls::HandshakeKind;

use super::client_hello::{self, ClientHello};
use super::handshake_limiter::{HandshakeLimiter, HandshakePermit};
use super::server_name_reader::{self, NamedHello};
use super::{HandshakeOutcome, TlsLimits, TlsServerConfig, TlsStream};

pub struct TlsAcceptor {
    ring: Ring,
    server_config: TlsServerConfig,
    /// For connections that are relayed.
    relay_config: TlsServerConfig,
    handshake_limiter: HandshakeLimiter,
    limits: TlsLimits,
    counters: Arc<CoreCounters>,
}

impl TlsAcceptor {
    #[must_use]
    pub fn new(ring: &Ring, server_config: TlsServerConfig, limits: TlsLimits, counters: Arc<CoreCounters>) -> Self {
        let limiter = HandshakeLimiter::new(limits.handshakes_max);
        let relay_config = server_config.without_protocols();
        Self { ring: ring.clone(), server_config, relay_config, handshake_limiter: limiter, limits, counters }
    }

    /// Runs the handshake. Without a stream the connection is over, and the reason is counted.
    pub async fn open(&self, stream: RingStream) -> Option<TlsStream> {
        self.open_after(stream, Chunk::empty()).await
    }

    /// The same for a connection of which the bytes `arrived` were received already.
    pub async fn open_after(&self, stream: RingStream, arrived: Chunk) -> Option<TlsStream> {
        self.open_as(&self.server_config, stream, arrived).await
    }

    /// The same for a connection whose bytes are relayed: it may speak any protocol.
    pub async fn open_relayed(&self, stream: RingStream, arrived: Chunk) -> Option<TlsStream> {
        self.open_as(&self.relay_config, stream, arrived).await
    }

    async fn open_as(&self, config: &TlsServerConfig, stream: RingStream, arrived: Chunk) -> Option<TlsStream> {
        let (outcome, stream) = match self.within_limits(config, stream, arrived).await {
            Ok((kind, stream)) => (kind, Some(stream)),
            Err(outcome) => (outcome, None),
        };
        self.count(outcome);
        stream
    }

    /// Reads the ClientHello of a connection. The caller decides whether the handshake is made here. Without a ClientHello the
    /// connection is over, and the reason is counted.
    pub async fn read_server_name(&self, stream: &RingStream, arrived: Chunk) -> Option<NamedHello> {
        let read = async {
            let permit = self.handshake_limiter.enter(self.ring.now()).ok_or(HandshakeOutcome::Overload)?;
            self.in_time(&permit, server_name_reader::read(&self.ring, stream, arrived)).await
        };
        read.await.map_err(|outcome| self.count(outcome)).ok()
    }

    /// Counts a connection that has no handshake here.
    pub fn count(&self, outcome: HandshakeOutcome) {
        self.counters.handshakes[outcome.index()].fetch_add(1, Relaxed);
    }

    async fn within_limits(
        &self,
        config: &TlsServerConfig,
        stream: RingStream,
        arrived: Chunk,
    ) -> Result<(HandshakeOutcome, TlsStream), HandshakeOutcome> {
        let permit = self.handshake_limiter.enter(self.ring.now()).ok_or(HandshakeOutcome::Overload)?;
        self.in_time(&permit, self.handshake(config, (stream, arrived), &permit)).await
    }

    /// Ends with the time for a handshake, or when the permit is taken.
    async fn in_time<T>(
        &self,
        permit: &HandshakePermit<'_>,
        handshake: impl Future<Output = Result<T, HandshakeOutcome>>,
    ) -> Result<T, HandshakeOutcome> {
        let evicted = permit.evicted();
        let either = async {
            let (mut handshake, mut evicted) = (pin!(handshake), pin!(evicted));
            poll_fn(|cx| match handshake.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(done),
                Poll::Pending => evicted.as_mut().poll(cx).map(|()| Err(HandshakeOutcome::Overload)),
            })
            .await
        };
        self.ring.timeout(self.limits.handshake_max, either).await.unwrap_or(Err(HandshakeOutcome::Slow))
    }

    async fn handshake(
        &self,
        config: &TlsServerConfig,
        (stream, arrived): (RingStream, Chunk),
        permit: &HandshakePermit<'_>,
    ) -> Result<(HandshakeOutcome, TlsStream), HandshakeOutcome> {
        let hello = client_hello::read(&self.ring, &stream, arrived).await.map_err(|_| HandshakeOutcome::Gone)?;
        let (accepted, rest) = match hello {
            ClientHello::Received { accepted, rest } => (accepted, rest),
            ClientHello::Plain => return Err(HandshakeOutcome::Plain),
            ClientHello::Gone => return Err(HandshakeOutcome::Gone),
            ClientHello::Refused(why) => return Err(refused(&why)),
        };
        permit.mark_active();

        let turn = self.handshake_limiter.cpu_turn().await;
        let begun = accepted.into_connection(Arc::clone(&config.0));
        self.ring.yield_now().await;
        drop(turn);
        let session = match begun {
            Ok(session) => session,
            Err((why, mut alert)) => {
                let mut bytes = Vec::new();
                if alert.write_all(&mut bytes).is_ok() {
                    client_hello::send_and_drain(&self.ring, &stream, bytes).await;
                }
                return Err(refused(&why));
            }
        };

        let stream = TlsStream::new(stream, session.into(), rest);
        permit.answer_due(self.ring.now() + self.limits.answer_min);
        match stream.finish_handshake().await {
            Ok(HandshakeKind::Resumed) => Ok((HandshakeOutcome::Resumed, stream)),
            Ok(_) => Ok((HandshakeOutcome::Full, stream)),
            Err(why) if why.kind() == io::ErrorKind::InvalidData => {
                tracing::debug!(%why, "TLS handshake failed");
                Err(HandshakeOutcome::Refused)
            }
            Err(_) => Err(HandshakeOutcome::Gone),
        }
    }
}

fn refused(why: &rustls::Error) -> HandshakeOutcome {
    tracing::debug!(%why, "TLS handshake rejected");
    HandshakeOutcome::Refused
}

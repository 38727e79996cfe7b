//! A way to an instance: a connection of its own in HTTP/1, a share of one in HTTP/2.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ring::Tick;

use super::exchange::Due;
use super::{Choice, Place, Proxy, Refusal, Wish};
use crate::h2::client::Turn;
use crate::http::client::To;
use crate::http::pool::{PoolKey, Upstream};
use crate::table::{Backend, Endpoint, Protocol};
use crate::target_policy::TargetRefused;

/// Between two lines of the log about instances that are not trusted: each request meets them.
const DISTRUST_TOLD_EVERY: Duration = Duration::from_secs(10);

pub(super) enum Link {
    Http1(Box<Upstream>),
    Http2(Turn),
}

impl Link {
    pub(super) fn protocol(&self) -> Protocol {
        match self {
            Self::Http1(_) => Protocol::Http1,
            Self::Http2(_) => Protocol::H2c,
        }
    }

    /// It was given a request before.
    fn is_reused(&self) -> bool {
        match self {
            Self::Http1(upstream) => upstream.reused,
            Self::Http2(turn) => turn.reused,
        }
    }
}

/// Why instances were not believed, while others are tried: a certificate that is no good is nothing that waiting
/// mends, and somebody has to be told.
#[derive(Default)]
pub(super) struct Distrust {
    why: Option<Box<str>>,
    /// The target policy refused the last address, which was not connected to at all.
    refused: Option<TargetRefused>,
}

impl Distrust {
    pub(super) fn note(&mut self, why: &io::Error) {
        if why.kind() == io::ErrorKind::InvalidData {
            self.why = Some(why.to_string().into());
        }
        self.refused = TargetRefused::of(why).copied().or(self.refused);
    }

    /// Puts the reason where it only says that nobody was reached.
    pub(super) fn explain(&self, proxy: &Proxy, refusal: Refusal) -> Refusal {
        match (refusal, &self.why) {
            (Refusal::Unreachable(key), _) if let Some(refused) = self.refused => {
                let now = proxy.ring.now();
                if proxy.refusal_told.get().is_none_or(|told| now - told >= DISTRUST_TOLD_EVERY) {
                    proxy.refusal_told.set(Some(now));
                    tracing::warn!(backend = %key, "request not sent: {refused}");
                }
                Refusal::TargetRefused(key)
            }
            (Refusal::Unreachable(key), Some(why)) => {
                let now = proxy.ring.now();
                if proxy.distrust_told.get().is_none_or(|told| now - told >= DISTRUST_TOLD_EVERY) {
                    proxy.distrust_told.set(Some(now));
                    tracing::warn!(backend = %key, %why, "an instance is not trusted");
                }
                Refusal::Untrusted(key, why.clone())
            }
            (other, _) => other,
        }
    }
}

impl Proxy {
    /// A way to the instance of `place`: one that is open, or a new one. `upgrades`: for a WebSocket.
    pub(super) async fn link(&self, place: &Place, upgrades: bool, due: Option<Tick>) -> io::Result<Link> {
        let endpoint = &place.endpoint;
        let protocol = endpoint.protocol(place.backend().protocol, upgrades);
        let kept = match protocol {
            Protocol::Http1 => self.client.kept(PoolKey::Endpoint(endpoint.id)).map(Link::Http1),
            Protocol::H2c => self.h2_client.kept(endpoint.id).map(Link::Http2),
        };
        match kept {
            Some(link) => Ok(self.counted(endpoint, link)),
            None => self.fresh_link(place.backend(), endpoint, protocol, due).await,
        }
    }

    /// A new connection to an instance; in HTTP/2 one that others wait for too, or one that has got room meanwhile.
    pub(super) async fn fresh_link(
        &self,
        backend: &Backend,
        endpoint: &Endpoint,
        protocol: Protocol,
        due: Option<Tick>,
    ) -> io::Result<Link> {
        let trust = backend.trust.as_ref();
        let Endpoint { id, address, unrestricted, .. } = *endpoint;
        let key = PoolKey::Endpoint(id);
        let link = match protocol {
            // Boxed: few requests open a connection, and every one would have room for a handshake by TLS.
            Protocol::Http1 => {
                let to = To { address, key, trust: trust.map(Arc::as_ref), unrestricted };
                Link::Http1(Box::pin(self.client.open(to, due)).await?)
            }
            Protocol::H2c => Link::Http2(Box::pin(self.h2_client.open(endpoint, trust, due)).await?),
        };
        Ok(self.counted(endpoint, link))
    }

    fn counted(&self, endpoint: &Endpoint, link: Link) -> Link {
        if link.is_reused() {
            self.counters.reused();
            return link;
        }
        self.counters.upstream_opened.fetch_add(1, Relaxed);
        if !self.outliers.borrow().is_empty() {
            self.outliers.borrow_mut().accepted(endpoint.id);
        }
        link
    }

    /// A place, waited for if need be, and a way to its instance. An instance that refuses is reported,
    /// and another tried.
    pub(super) async fn reach(
        self: &Rc<Self>,
        mut choice: Choice,
        wish: &mut Wish<'_>,
        started: Tick,
    ) -> Result<(Place, Link), Refusal> {
        let mut distrust = Distrust::default();
        let upgrades = wish.ask.request.is_some_and(|request| request.head.wants_websocket);
        loop {
            let place = self.place(choice, wish).await.map_err(|why| distrust.explain(self, why))?;
            let due = Due::new(started, &place.backend().timeouts).first_byte;
            match self.link(&place, upgrades, due).await {
                Ok(link) => return Ok((place, link)),
                Err(_) if due.is_some_and(|due| self.ring.now() >= due) => return Err(Refusal::TimedOut),
                Err(why) => {
                    distrust.note(&why);
                    wish.tried.push(place.endpoint.id);
                    self.refused_by(&place);
                    choice = place.choice.clone();
                }
            }
        }
    }
}

//! Requests to subscribers over HTTP/1.1: to our own instances through the proxy's waiting room, to all
//! others by address.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use ring::Tick;

use super::Answer;
use super::delivery::{Post, PostError};
use super::encode::Outgoing;
use super::limits::ANSWER_BYTES_MAX;
use super::resolve::Resolver;
use crate::http::client::{self, ExchangeError};
use crate::http::codec::Method;
use crate::http::pool::PoolKey;
use crate::names::Found;
use crate::proxy::{Proxy, Wish};
use crate::signal::{Signal, Signals};
use crate::table::{Ask, Edits, Target};

/// Sends over the core's own client.
#[derive(Clone)]
pub struct Sender {
    pub proxy: Rc<Proxy>,
    pub resolver: Rc<Resolver>,
    pub signals: Signals,
}

impl Post for Sender {
    async fn post(&self, target: &Target, request: Outgoing, timeout: Duration) -> Result<Answer, PostError> {
        let due = self.proxy.ring.now() + timeout;
        let sent = client::Outgoing {
            head: head(target, &request, None),
            body: request.body.clone(),
            method: Method::Post,
            repeatable: true, // at least once is what a subscriber is promised anyway
        };
        let ours = self.proxy.with_table(|table| table.hosts.find(&target.host).is_some());
        let outcome = if ours {
            self.to_instance(target, &request, &sent, due).await?
        } else {
            let address = self.address(target).await;
            let address = address.map_err(|why| PostError::Unresolved { host: target.host.clone(), why })?;
            let key = PoolKey::Address(address);
            self.proxy.client.exchange(address, key, &sent, ANSWER_BYTES_MAX, Some(due)).await
        };
        outcome.map_err(|why| match why {
            ExchangeError::TimedOut => PostError::Timeout(timeout),
            other => PostError::Transport(other.to_string().into()),
        })
    }
}

impl Sender {
    /// Where somebody else's host is: as the table says, or else DNS.
    async fn address(&self, target: &Target) -> Result<SocketAddr, Box<str>> {
        let named = self.proxy.with_table(|table| {
            table.names.find(&target.host, target.port, |count| fastrand::usize(..count))
        });
        match named {
            Some(Found::At(address)) => Ok(address),
            Some(Found::Alias(host)) => self.resolver.resolve(&host, target.port).await,
            Some(Found::Nobody) => {
                Err(format!("the Service has no ready endpoint for port {}", target.port).into())
            }
            None => self.resolver.resolve(&target.host, target.port).await,
        }
    }

    /// A host of ours: an instance with room, which is started and waited for if there is none. One that
    /// refuses the connection is reported, and another is tried.
    async fn to_instance(
        &self,
        target: &Target,
        request: &Outgoing,
        sent: &client::Outgoing,
        due: Tick,
    ) -> Result<Result<Answer, ExchangeError>, PostError> {
        let refused = |why: crate::proxy::Refusal| PostError::Transport(why.to_string().into());
        let ask = Ask::ours(&target.host, &target.path);
        let mut choice = self.proxy.route(&ask).map_err(refused)?;
        let bytes = sent.head.len() + sent.body.len();
        let mut wish = Wish { ask, bytes, tried: Vec::new() };
        loop {
            let place = self.proxy.place(choice, &mut wish).await.map_err(refused)?;
            let edited = place
                .edits()
                .map(|edits| client::Outgoing { head: head(target, request, Some(edits)), ..sent.clone() });
            let sent = edited.as_ref().unwrap_or(sent);
            let (address, id) = (place.endpoint.address, place.endpoint.id);
            let key = PoolKey::Endpoint(id);
            let outcome = self.proxy.client.exchange(address, key, sent, ANSWER_BYTES_MAX, Some(due)).await;
            let Err(ExchangeError::Unreachable { .. }) = outcome else { return Ok(outcome) };
            let lost = Signal::Unreachable { backend: place.backend().key.clone(), endpoint: id };
            if !self.signals.send(lost) {
                tracing::debug!(backend = %place.backend().key, "not reported as unreachable: too many signals wait");
            }
            wish.tried.push(id);
            choice = place.choice.clone();
        }
    }
}

/// Request line, Host and Content-Length of most targets, in bytes.
const FIRST_LINES_BYTES: usize = 256;

fn head(target: &Target, request: &Outgoing, edits: Option<&Edits>) -> Bytes {
    let mut out = BytesMut::with_capacity(FIRST_LINES_BYTES + request.fields.len());
    out.put_slice(b"POST ");
    out.put_slice(if target.path.is_empty() { b"/" } else { target.path.as_bytes() });
    out.put_slice(b" HTTP/1.1\r\nHost: ");
    out.put_slice(edits.and_then(Edits::host).unwrap_or(&target.authority).as_bytes());
    out.put_slice(b"\r\nContent-Length: ");
    out.put_slice(itoa::Buffer::new().format(request.body.len()).as_bytes());
    out.put_slice(b"\r\n");
    out.put_slice(&request.fields);
    for (name, value) in edits.into_iter().flat_map(Edits::headers) {
        for part in [name, ": ", value, "\r\n"] {
            out.put_slice(part.as_bytes());
        }
    }
    out.put_slice(b"\r\n");
    out.freeze()
}

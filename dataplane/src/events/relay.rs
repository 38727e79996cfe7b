//! Between cores: events of a stream whose subscribers want them in order go into one core's log,
//! whichever core they came in at.
//!
//! A core's log keeps the order in which events came to it, and two logs have none between them. Only
//! such streams pay for the way: a copy of the request and two wakes, some 20 µs.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::FixedState;
use tokio::sync::{mpsc, oneshot};

use super::Answer;
use super::ingress;
use super::limits::RELAYED_MAX;

/// One core's end of the ways to all others.
#[derive(Debug)]
pub struct Relay {
    core: usize,
    ways: Arc<[mpsc::Sender<Parcel>]>,
    inbox: mpsc::Receiver<Parcel>,
}

/// Something on its way to another core, whose answer is waited for.
#[derive(Debug)]
pub struct Parcel {
    content: Content,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
pub enum Content {
    /// A request for a stream that the core keeps.
    Request { path: Box<str>, headers: Vec<(Box<str>, Box<[u8]>)>, body: Bytes },
    /// A record for the stream at this path, as [`super::record::addressed`] makes them.
    Copy { path: Box<str>, record: Vec<u8> },
}

impl Parcel {
    /// What it is, and how to answer. A sender that has gone hears nothing.
    pub fn open(self) -> (Content, impl FnOnce(Answer)) {
        let Self { content, answer } = self;
        (content, move |text| drop(answer.send(text)))
    }
}

/// The sending half.
#[derive(Debug, Clone)]
pub struct Ways {
    core: usize,
    ways: Arc<[mpsc::Sender<Parcel>]>,
}

impl Relay {
    /// An end for each core.
    #[must_use]
    pub fn among(cores: usize) -> Vec<Self> {
        let (ways, inboxes): (Vec<_>, Vec<_>) = (0..cores).map(|_| mpsc::channel(RELAYED_MAX)).unzip();
        let ways: Arc<[_]> = ways.into();
        let end = |(core, inbox)| Self { core, ways: Arc::clone(&ways), inbox };
        inboxes.into_iter().enumerate().map(end).collect()
    }

    /// The end of a core that has no others.
    #[must_use]
    pub fn alone() -> Self {
        Self::among(1).remove(0)
    }

    /// The sending half, for whoever is no core.
    #[must_use]
    pub fn ways(&self) -> Ways {
        Ways { core: self.core, ways: Arc::clone(&self.ways) }
    }

    #[must_use]
    pub fn split(self) -> (Ways, mpsc::Receiver<Parcel>) {
        (Ways { core: self.core, ways: self.ways }, self.inbox)
    }
}

impl Ways {
    /// Whether the stream of this name is kept by another core.
    #[must_use]
    pub fn leads_away(&self, stream: &str) -> bool {
        self.keeper_of(stream) != self.core
    }

    fn keeper_of(&self, stream: &str) -> usize {
        let hash = FixedState::default().hash_one(stream);
        usize::try_from(hash % self.ways.len() as u64).unwrap_or_default()
    }

    /// Hands the request over and waits for the answer.
    pub async fn send(&self, stream: &str, path: &str, headers: &[(&str, &[u8])], body: &[u8]) -> Answer {
        let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let body = Bytes::copy_from_slice(body); // the receive buffers are this thread's own
        self.hand_over(stream, Content::Request { path: path.into(), headers, body }).await
    }

    /// Has a record appended to the stream of this name at this path.
    pub async fn copy(&self, stream: &str, path: &str, record: Vec<u8>) -> Answer {
        self.hand_over(stream, Content::Copy { path: path.into(), record }).await
    }

    async fn hand_over(&self, stream: &str, content: Content) -> Answer {
        let (answer, hear) = oneshot::channel();
        if self.ways[self.keeper_of(stream)].try_send(Parcel { content, answer }).is_err() {
            return ingress::unavailable("the core that keeps this stream in order has too much to do");
        }
        hear.await.unwrap_or_else(|_| ingress::unavailable("the core that keeps this stream in order ends"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_kept_by_one_core() {
        for cores in 1..5 {
            let ends: Vec<_> = Relay::among(cores).into_iter().map(|end| end.split().0).collect();
            for stream in ["broker/ns/a/1", "broker/ns/b/2", "channel/ns/c/3"] {
                let keepers = ends.iter().filter(|end| !end.leads_away(stream)).count();
                assert_eq!(keepers, 1, "{stream} among {cores}");
            }
        }
    }
}

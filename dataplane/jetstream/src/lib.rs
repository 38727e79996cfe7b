//! Streams of events in NATS JetStream: the thread that answers the requests of `contract::event_store`.
//!
//! Cores publish and receive, control makes streams and consumers; both only send messages to this thread, which has a
//! runtime of its own because the client needs one. `connections` opens a connection for each set of servers and
//! credentials, `streams` makes streams and consumers, `publisher` sends events, `subscription` pulls them.
#![forbid(unsafe_code)]

mod connections;
mod errors;
mod limits;
mod publisher;
mod streams;
mod subscription;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use contract::event_store::{StoreFinish, StoreRequest};
use contract::target_policy::TargetPolicy;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use connections::Connections;
use limits::FINISH_MAX;

/// The running thread.
#[derive(Debug)]
pub struct JetStreamThread {
    finish: StoreFinish,
    thread: JoinHandle<()>,
}

impl JetStreamThread {
    /// Starts the thread, which answers `requests` and connects to what `targets` allow. Until the first one it has no runtime, and costs its stack.
    ///
    /// # Errors Those of the operating system: there is no thread.
    pub fn start(
        finish: StoreFinish,
        requests: mpsc::Receiver<StoreRequest>,
        targets: Arc<TargetPolicy>,
    ) -> io::Result<Self> {
        let thread = thread::Builder::new().name("jetstream".to_owned()).spawn(move || run(requests, targets))?;
        Ok(Self { finish, thread })
    }

    /// Ends it: what is done is acknowledged, everything else is given back to the servers.
    pub fn finish(self) {
        self.finish.send();
        if self.thread.join().is_err() {
            tracing::error!("the thread that speaks to JetStream panicked");
        }
    }
}

fn run(mut requests: mpsc::Receiver<StoreRequest>, targets: Arc<TargetPolicy>) {
    let Some(first) = requests.blocking_recv() else { return };
    match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(serve(first, requests, targets)),
        // The requests' senders are told that the process is stopping.
        Err(why) => tracing::error!(%why, "no runtime for JetStream: Brokers of its class do not work"),
    }
}

async fn serve(first: StoreRequest, mut requests: mpsc::Receiver<StoreRequest>, targets: Arc<TargetPolicy>) {
    let connections = Arc::new(Connections::new(targets));
    let (stop, stopped) = watch::channel(false);
    let mut subscriptions = JoinSet::new();
    let mut next = Some(first);
    while let Some(request) = next {
        let connections = Arc::clone(&connections);
        match request {
            StoreRequest::Publish(request) => publisher::publish(connections, *request).await,
            StoreRequest::Subscribe(request) => {
                subscriptions.spawn(subscription::run(connections, *request, stopped.clone()));
            }
            StoreRequest::EnsureStream { stream, consumers, answer } => {
                connections.close_unused();
                tokio::spawn(async move {
                    // If the receiver is gone, the next reconcile asks again.
                    drop(answer.send(streams::ensure(&connections, &stream, consumers.as_deref()).await));
                });
            }
            StoreRequest::DeleteStream { stream, answer } => {
                tokio::spawn(async move { drop(answer.send(streams::delete(&connections, &stream).await)) });
            }
            StoreRequest::EnsureConsumer { stream, consumer, answer } => {
                tokio::spawn(async move {
                    drop(answer.send(streams::ensure_consumer(&connections, &stream, &consumer).await.map(drop)));
                });
            }
            StoreRequest::Finish => break,
        }
        while subscriptions.try_join_next().is_some() {} // those that have ended
        next = requests.recv().await;
    }
    stop.send_replace(true);
    let ends = async {
        while subscriptions.join_next().await.is_some() {}
        connections.flush().await;
    };
    if tokio::time::timeout(FINISH_MAX, ends).await.is_err() {
        tracing::warn!(
            "JetStream did not take the last acknowledgements within {FINISH_MAX:?}: some events are repeated"
        );
    }
}

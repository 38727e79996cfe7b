//! Ends processes that a program left outside of its process group, together with its instance.
//!
//! A daemon that created its own session is not reached by the group's signals; it is found by the mark in its
//! environment. Looking through all processes takes milliseconds, so it happens on a thread of its own, and
//! once for all instances that ended meanwhile.

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use super::records::{self, InstanceRecord};
use support::blocking;

/// The queue of the reaper. It holds at most one request per instance.
pub(crate) struct ProcessReaper {
    requests: UnboundedSender<ReapRequest>,
}

struct ReapRequest {
    record: InstanceRecord,
    done: oneshot::Sender<()>,
}

impl ProcessReaper {
    /// Starts it on the current `LocalSet`; it ends when this handle is dropped.
    pub(crate) fn start() -> Self {
        let (requests, inbox) = mpsc::unbounded_channel();
        drop(spawn_local(run(inbox)));
        Self { requests }
    }

    /// Returns when nothing is left of the instance with `record`.
    pub(crate) async fn reap(&self, record: InstanceRecord) {
        let (done, wait) = oneshot::channel();
        if self.requests.send(ReapRequest { record, done }).is_ok() {
            let _ = wait.await; // an error: the reaper has ended with this thread
        }
    }
}

async fn run(mut inbox: UnboundedReceiver<ReapRequest>) {
    while let Some(first) = inbox.recv().await {
        let mut batch = vec![first];
        while let Ok(next) = inbox.try_recv() {
            batch.push(next);
        }
        let records: Vec<InstanceRecord> = batch.iter().map(|request| request.record.clone()).collect();
        let of_thread = records.clone();
        let ended = match blocking::run("sweeper", move || records::kill_all(&of_thread)).await {
            Ok(ended) => ended,
            // No thread is available, maybe because of the processes to end: other work here waits some milliseconds.
            Err(_) => records::kill_all(&records),
        };
        if ended > 0 {
            tracing::info!(ended, "ended processes that left their instance's group");
        }
        for request in batch {
            let _ = request.done.send(()); // the receiver may have ended
        }
    }
}

//! A runtime without processes, for tests: instances do what a script says, in tokio's time.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep};

use super::{Cause, Gone, Instance, InstanceSpec, Reporter, Runtime};

/// How an instance behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Script {
    pub(crate) ready_after: Option<Duration>,
    /// Counted from the start.
    pub(crate) crash_after: Option<Duration>,
    pub(crate) stop_takes: Duration,
}

impl Script {
    pub(crate) const READY_AT_ONCE: Self =
        Self { ready_after: Some(Duration::ZERO), crash_after: None, stop_takes: Duration::ZERO };
}

/// Runs scripts, and notes what it was asked for and when.
pub(crate) struct Scripted {
    script: Box<dyn Fn(u64) -> Script + Send + Sync>,
    pub(crate) notes: Arc<Mutex<Vec<(Instant, Note)>>>,
    pub(crate) living: Arc<AtomicU32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    Started(u64),
    Stopped(u64),
    Verified(u64),
    Frozen(u64),
    Thawed(u64),
    Refreshed,
    Forgotten(String),
}

enum Order {
    Stop,
    Verify,
    Freeze,
    Thaw,
}

impl Scripted {
    /// `script` gives the behaviour of the instance with an id.
    pub(crate) fn new(script: impl Fn(u64) -> Script + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { script: Box::new(script), notes: Arc::default(), living: Arc::default() })
    }

    pub(crate) fn living(&self) -> u32 {
        self.living.load(SeqCst)
    }

    /// When the notes that `wanted` picks were made.
    pub(crate) fn times(&self, wanted: impl Fn(&Note) -> bool) -> Vec<Instant> {
        self.notes.lock().unwrap().iter().filter(|(_, note)| wanted(note)).map(|(at, _)| *at).collect()
    }

    pub(crate) fn starts(&self) -> Vec<Instant> {
        self.times(|note| matches!(note, Note::Started(_)))
    }

    fn note(notes: &Mutex<Vec<(Instant, Note)>>, note: Note) {
        notes.lock().unwrap().push((Instant::now(), note));
    }
}

impl Runtime for Scripted {
    fn start(&self, id: u64, _line: u64, _spec: Arc<InstanceSpec>, reporter: Reporter) -> Box<dyn Instance> {
        Self::note(&self.notes, Note::Started(id));
        self.living.fetch_add(1, SeqCst);
        let (orders, inbox) = mpsc::unbounded_channel();
        let (script, notes, living) = ((self.script)(id), Arc::clone(&self.notes), Arc::clone(&self.living));
        tokio::spawn(async move {
            let cause = play(id, script, &reporter, inbox, &notes).await;
            living.fetch_sub(1, SeqCst);
            reporter.gone(Gone { cause, message: format!("instance {id} is over") });
        });
        Box::new(Handle(orders))
    }

    fn refresh(&self, _spec: Arc<InstanceSpec>) {
        Self::note(&self.notes, Note::Refreshed);
    }

    fn forget(&self, namespace: &str, revision: &str) {
        Self::note(&self.notes, Note::Forgotten(format!("{namespace}/{revision}")));
    }
}

async fn play(
    id: u64,
    script: Script,
    reporter: &Reporter,
    mut orders: UnboundedReceiver<Order>,
    notes: &Mutex<Vec<(Instant, Note)>>,
) -> Cause {
    let at = |after: Option<Duration>| async move {
        match after {
            Some(after) => sleep(after).await,
            None => std::future::pending().await,
        }
    };
    let (ready, crash) = (at(script.ready_after), at(script.crash_after));
    tokio::pin!(ready, crash);
    let mut told = false;
    loop {
        tokio::select! {
            biased;
            () = &mut crash => return Cause::Exited(1),
            order = orders.recv() => match order {
                Some(Order::Verify) => {
                    Scripted::note(notes, Note::Verified(id));
                    sleep(Duration::from_millis(10)).await;
                    reporter.ready(address(id), None);
                }
                Some(Order::Freeze) => Scripted::note(notes, Note::Frozen(id)),
                Some(Order::Thaw) => Scripted::note(notes, Note::Thawed(id)),
                Some(Order::Stop) | None => {
                    Scripted::note(notes, Note::Stopped(id));
                    sleep(script.stop_takes).await;
                    return Cause::Signalled(15);
                }
            },
            () = &mut ready, if !told => {
                told = true;
                reporter.ready(address(id), None);
            }
        }
    }
}

fn address(id: u64) -> std::net::SocketAddr {
    ([127, 0, 0, 1], u16::try_from(id % 60_000).unwrap()).into()
}

struct Handle(UnboundedSender<Order>);

impl Instance for Handle {
    fn stop(&self) {
        let _ = self.0.send(Order::Stop);
    }

    fn verify(&self) {
        let _ = self.0.send(Order::Verify);
    }

    fn freeze(&self) {
        let _ = self.0.send(Order::Freeze);
    }

    fn thaw(&self) {
        let _ = self.0.send(Order::Thaw);
    }
}

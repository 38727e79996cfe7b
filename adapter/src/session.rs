//! One configuration in use: a receiver, its lanes and the sender, reconnected after each failure.

use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::delivery::Delivery;
use crate::error::Error;
use crate::intake::{Intake, Settled, Work};
use crate::limits::{LANES, LANES_BATCHED, RECONNECT_MAX, RECONNECT_MIN};
use crate::server::Submissions;
use crate::status::{AdapterStatus, count};
use crate::traits::{Receiver, Sender};

/// The ends of the lanes that a receiver uses.
pub(crate) struct Ends {
    lanes: Vec<mpsc::UnboundedSender<Work>>,
    settled: mpsc::UnboundedReceiver<Settled>,
    stop: watch::Receiver<bool>,
    status: Rc<AdapterStatus>,
}

impl Ends {
    fn intake<T>(self) -> Intake<T> {
        Intake::new(self.lanes, self.settled, self.stop, self.status)
    }
}

/// A receiver behind a pointer.
pub(crate) trait AnyReceiver {
    fn receive(&mut self, ends: Ends) -> LocalBoxFuture<'_, Result<(), Error>>;

    /// Answers clients that wait while there is no connection.
    fn refuse_waiting(&mut self, _: &str) {}
}

pub(crate) struct Foreign<R>(pub(crate) R);

impl<R: Receiver> AnyReceiver for Foreign<R> {
    fn receive(&mut self, ends: Ends) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.0.receive(&mut ends.intake()).await })
    }
}

/// Events come as requests on `$PORT`.
pub(crate) struct Requests<'a>(pub(crate) &'a mut Submissions);

impl AnyReceiver for Requests<'_> {
    fn receive(&mut self, ends: Ends) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.0.relay(&mut ends.intake()).await })
    }

    fn refuse_waiting(&mut self, reason: &str) {
        self.0.refuse_waiting(reason);
    }
}

/// The properties of a sender that a session needs before it starts.
pub(crate) trait Connects {
    fn connect(&self) -> LocalBoxFuture<'_, Result<(), Error>>;
}

impl<S: Sender> Connects for S {
    fn connect(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(Sender::connect(self))
    }
}

/// Runs until the adapter stops, the source ends, or the configuration proves wrong.
pub(crate) async fn run(
    receiver: &mut dyn AnyReceiver,
    connects: &dyn Connects,
    delivery: Rc<Delivery>,
) -> Result<(), Error> {
    let mut failures = 0;
    loop {
        let started = Instant::now();
        let result = match connects.connect().await {
            Ok(()) => attempt(receiver, &delivery).await,
            Err(error) => Err(error),
        };
        let Err(error) = result else { return Ok(()) };
        if error.fatal {
            return Err(error);
        }
        let changed = delivery.status.set_receiver(Some((error.reason, &error.message)));
        if changed {
            tracing::error!(reason = error.reason, error = %error.message, "adapter is not ready; it connects again");
        }
        receiver.refuse_waiting(&error.message);
        count(&delivery.status.counters.reconnects, 1);
        failures = if started.elapsed() > RECONNECT_MAX { 0 } else { failures + 1 };
        let pause = RECONNECT_MIN.saturating_mul(1 << failures.min(5)).min(RECONNECT_MAX);
        if !wait(&delivery.stop, pause).await {
            return Ok(());
        }
    }
}

/// One connection. Its lanes end with it: what they hold is not acknowledged and comes again.
async fn attempt(receiver: &mut dyn AnyReceiver, delivery: &Rc<Delivery>) -> Result<(), Error> {
    let batched = delivery.sender.batch_max() > 1;
    let lanes_max = if batched { LANES_BATCHED } else { LANES };
    let (reports, settled) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    let mut lanes = Vec::with_capacity(lanes_max);
    for _ in 0..lanes_max {
        let (lane, queue) = mpsc::unbounded_channel();
        lanes.push(lane);
        tasks.spawn_local(Rc::clone(delivery).run(queue, reports.clone()));
    }
    let ends = Ends { lanes, settled, stop: delivery.stop.clone(), status: Rc::clone(&delivery.status) };
    receiver.receive(ends).await?;
    // The receiver dropped its ends, so the lanes end once they have sent the events of quality of service 0.
    if delivery.policy.qos == 0 {
        while tasks.join_next().await.is_some() {}
    }
    Ok(())
}

/// False: the adapter stops.
async fn wait(stop: &watch::Receiver<bool>, pause: Duration) -> bool {
    let mut stop = stop.clone();
    tokio::select! {
        () = tokio::time::sleep(pause) => true,
        _ = stop.wait_for(|stop| *stop) => false,
    }
}

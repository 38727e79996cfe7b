//! What a running instance is told, and how its task hears it.

use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use super::Instance;

pub(super) enum Order {
    Stop,
    Verify,
    Freeze,
    Thaw,
}

pub(super) struct Handle {
    pub(super) orders: UnboundedSender<Order>,
    /// When the process began to run, once it has.
    pub(super) spawned: Arc<OnceLock<Instant>>,
}

impl Instance for Handle {
    fn stop(&self) {
        let _ = self.orders.send(Order::Stop); // fails only when the instance is over
    }

    fn verify(&self) {
        let _ = self.orders.send(Order::Verify);
    }

    fn freeze(&self) {
        let _ = self.orders.send(Order::Freeze);
    }

    fn thaw(&self) {
        let _ = self.orders.send(Order::Thaw);
    }

    fn spawned(&self) -> Option<Instant> {
        self.spawned.get().copied()
    }
}

/// What an instance is told that is being probed.
pub(super) enum Told {
    Stop,
    Freeze,
}

/// A doubt about an instance that is being probed anyway is no news.
pub(super) async fn heard(orders: &mut UnboundedReceiver<Order>) -> Told {
    loop {
        match orders.recv().await {
            Some(Order::Stop) | None => return Told::Stop,
            Some(Order::Freeze) => return Told::Freeze,
            Some(Order::Verify | Order::Thaw) => {}
        }
    }
}

/// Returns on the order to stop; a doubt about an instance that is being probed anyway is no news.
pub(super) async fn stop_ordered(orders: &mut UnboundedReceiver<Order>) {
    while !matches!(orders.recv().await, Some(Order::Stop) | None) {}
}

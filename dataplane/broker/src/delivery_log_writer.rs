//! Writes the delivery log: collects entries in the pending page of a log writer, and appends full and old pages.

use std::rc::Rc;

use super::delivery_log::DeliveryLogEntry;
use super::limits::DELIVERY_LOG_INTERVAL;
use super::log_writer::LogWriter;
use super::wall_clock::wall_clock_ms;

/// The delivery log of one log. Clones stand for the same one.
#[derive(Clone)]
pub struct DeliveryLogWriter {
    writer: Rc<LogWriter>,
}

impl DeliveryLogWriter {
    #[must_use]
    pub fn new(writer: &Rc<LogWriter>) -> Self {
        Self { writer: Rc::clone(writer) }
    }

    /// Adds an entry; `note.at_ms` is set here.
    pub(super) fn note(&self, mut note: DeliveryLogEntry<'_>) {
        note.at_ms = wall_clock_ms();
        if self.writer.delivery_entries.add(&note) {
            self.write();
        }
    }

    /// Appends the pending entries.
    pub(super) fn write(&self) {
        self.writer.append_entries(self.writer.delivery_entries.take());
    }

    /// Writes incomplete pages after the interval. Runs forever.
    pub(super) async fn append(&self, ring: &ring::Ring) {
        loop {
            self.writer.delivery_entries.begun().await;
            ring.sleep(DELIVERY_LOG_INTERVAL).await;
            self.write();
        }
    }
}

//! Prepares the log's next segment on a separate thread: zeroing one takes longer than a request may wait.

use std::sync::mpsc;

use wal::WriteAheadLog;

/// A thread for the slow part of a roll-over, one job at a time.
#[derive(Default)]
pub(super) struct SegmentPreallocator {
    job: Option<mpsc::Receiver<std::io::Result<wal::SpareSegment>>>,
}

impl SegmentPreallocator {
    /// Passes a finished spare segment to the log, or starts preparing the next one.
    pub(super) fn help(&mut self, log: &mut WriteAheadLog) {
        if let Some(job) = &self.job {
            match job.try_recv() {
                Ok(spare) => log.spare_ready(spare),
                Err(mpsc::TryRecvError::Empty) => return,
                Err(mpsc::TryRecvError::Disconnected) => {
                    log.spare_ready(Err(std::io::Error::other("the thread that prepared it ended")));
                }
            }
            self.job = None;
        }
        let Some(prepare) = log.prepare_spare() else { return };
        let (sender, receiver) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("log-spare".into());
        match thread.spawn(move || drop(sender.send(prepare.run()))) {
            Ok(_) => self.job = Some(receiver),
            Err(why) => log.spare_ready(Err(why)), // the roll-over does it inline
        }
    }
}

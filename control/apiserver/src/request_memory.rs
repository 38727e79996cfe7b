//! Memory that large requests have taken and given back. The heap keeps its empty pages until it is told to release them.

use tokio::sync::watch;

/// Bytes that large requests have given back, in all.
#[derive(Debug, Default)]
pub struct RequestMemory {
    returned: watch::Sender<u64>,
}

impl RequestMemory {
    pub(crate) fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.returned.send_modify(|all| *all = all.wrapping_add(u64::try_from(bytes).unwrap_or(u64::MAX)));
        }
    }

    /// Changes with every large request that ends.
    #[must_use]
    pub fn returned(&self) -> watch::Receiver<u64> {
        self.returned.subscribe()
    }
}

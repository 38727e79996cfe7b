//! A request body that may not have more bytes than its route allows.

use super::{BodyFault, BodyPart, RequestBody};

pub(super) struct LimitedBody<'a, B> {
    body: &'a mut B,
    bytes: u64,
    bytes_max: u64,
}

impl<'a, B> LimitedBody<'a, B> {
    /// `bytes_max`: `None` is no limit.
    pub(super) fn new(body: &'a mut B, bytes_max: Option<u64>) -> Self {
        Self { body, bytes: 0, bytes_max: bytes_max.unwrap_or(u64::MAX) }
    }
}

impl<B: RequestBody> RequestBody for LimitedBody<'_, B> {
    async fn next(&mut self) -> Result<BodyPart, BodyFault> {
        let part = self.body.next().await?;
        if let BodyPart::Data(bytes) = &part {
            self.bytes = self.bytes.saturating_add(bytes.len() as u64);
            if self.bytes > self.bytes_max {
                return Err(BodyFault::TooLarge(self.bytes_max));
            }
        }
        Ok(part)
    }

    fn forwarded(&mut self, bytes: usize) {
        self.body.forwarded(bytes);
    }

    async fn watch(&mut self) {
        self.body.watch().await;
    }
}

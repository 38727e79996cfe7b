//! Memory budget for bodies that are read whole. Each body has a limit, and so have all bodies of a core together:
//! otherwise ten thousand senders that stop a byte before the end would hold the maximum each.

use std::cell::Cell;
use std::rc::Rc;

use codec::http::LocalResponse;

/// The budget of one core. Clones share it.
#[derive(Debug, Clone)]
pub struct BodyBudget {
    one_bytes_max: usize,
    all_bytes_max: usize,
    held: Rc<Cell<usize>>,
}

/// The bytes that one request holds, until dropped.
#[derive(Debug)]
pub struct BodyReservation {
    bodies: BodyBudget,
    bytes: usize,
}

/// Why the rest of a body is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyLimitExceeded {
    #[error("the body is larger than {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
    #[error("too many large requests in flight: try again later")]
    Full,
}

/// Seconds in `Retry-After` for a sender beyond the budget.
const RETRY_AFTER_S: &str = "1";

impl BodyLimitExceeded {
    /// The response for the sender.
    #[must_use]
    pub fn answer(self) -> LocalResponse {
        match self {
            Self::TooLarge { .. } => LocalResponse::text(413, self.to_string()),
            Self::Full => LocalResponse::text(503, self.to_string()).with("Retry-After", RETRY_AFTER_S),
        }
    }
}

impl BodyBudget {
    #[must_use]
    pub fn new(one_bytes_max: usize, all_bytes_max: usize) -> Self {
        Self { one_bytes_max, all_bytes_max, held: Rc::default() }
    }

    #[must_use]
    pub fn enter(&self) -> BodyReservation {
        BodyReservation { bodies: self.clone(), bytes: 0 }
    }

    /// Whether a body of this length is accepted at all.
    pub fn check_length(&self, length: u64) -> Result<(), BodyLimitExceeded> {
        let bytes_max = self.one_bytes_max;
        if length > bytes_max as u64 { Err(BodyLimitExceeded::TooLarge { bytes_max }) } else { Ok(()) }
    }
}

impl BodyReservation {
    /// Reserves `bytes` more.
    pub fn grow(&mut self, bytes: usize) -> Result<(), BodyLimitExceeded> {
        let BodyBudget { one_bytes_max: bytes_max, all_bytes_max, held } = &self.bodies;
        if self.bytes + bytes > *bytes_max {
            return Err(BodyLimitExceeded::TooLarge { bytes_max: *bytes_max });
        }
        if held.get() + bytes > *all_bytes_max {
            return Err(BodyLimitExceeded::Full);
        }
        held.set(held.get() + bytes);
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.bodies.held.set(self.bodies.held.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_is_released_and_rejection_takes_none() {
        let bodies = BodyBudget::new(10, 15);
        assert_eq!(
            (bodies.check_length(10), bodies.check_length(11)),
            (Ok(()), Err(BodyLimitExceeded::TooLarge { bytes_max: 10 }))
        );
        let (mut one, mut other) = (bodies.enter(), bodies.enter());
        assert_eq!(one.grow(10), Ok(()));
        assert_eq!(one.grow(1), Err(BodyLimitExceeded::TooLarge { bytes_max: 10 }));
        assert_eq!((other.grow(6), other.grow(5)), (Err(BodyLimitExceeded::Full), Ok(())));
        drop(one);
        assert_eq!(other.grow(5), Ok(()));
        drop(other);
        assert_eq!(bodies.held.get(), 0);
    }

    #[test]
    fn rejection_says_whether_to_retry() {
        for (why, status, again) in
            [(BodyLimitExceeded::TooLarge { bytes_max: 1 }, 413, None), (BodyLimitExceeded::Full, 503, Some(&b"1"[..]))]
        {
            let answer = why.answer();
            assert_eq!((answer.status, answer.header("retry-after")), (status, again));
        }
    }
}

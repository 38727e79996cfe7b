//! Room for bodies that are read whole: one has its limit, and so have all that a core holds together. Without that,
//! ten thousand senders that stop a byte before the end would hold what each of them may.

use std::cell::Cell;
use std::rc::Rc;

use super::local_response::LocalResponse;

/// Of one core. Cheap to clone; clones share the room.
#[derive(Debug, Clone)]
pub struct BodyBudget {
    one_bytes_max: usize,
    all_bytes_max: usize,
    held: Rc<Cell<usize>>,
}

/// What one request holds, until this is dropped.
#[derive(Debug)]
pub struct BodyReservation {
    bodies: BodyBudget,
    bytes: usize,
}

/// Why no more of a body is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyLimitExceeded {
    #[error("the body is larger than {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
    #[error("too many large requests at a time: try again in a moment")]
    Full,
}

/// What a sender that found no room is told to wait, in seconds.
const RETRY_AFTER_S: &str = "1";

impl BodyLimitExceeded {
    /// What its sender is told.
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

    /// Whether a body of this length is one that is taken at all.
    pub fn judge(&self, length: u64) -> Result<(), BodyLimitExceeded> {
        let bytes_max = self.one_bytes_max;
        if length > bytes_max as u64 { Err(BodyLimitExceeded::TooLarge { bytes_max }) } else { Ok(()) }
    }
}

impl BodyReservation {
    /// So many bytes more have come.
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
    fn room_is_given_back_and_a_refusal_takes_none() {
        let bodies = BodyBudget::new(10, 15);
        assert_eq!((bodies.judge(10), bodies.judge(11)), (Ok(()), Err(BodyLimitExceeded::TooLarge { bytes_max: 10 })));
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
    fn a_refusal_says_whether_it_is_worth_another_try() {
        for (why, status, again) in
            [(BodyLimitExceeded::TooLarge { bytes_max: 1 }, 413, None), (BodyLimitExceeded::Full, 503, Some(&b"1"[..]))]
        {
            let answer = why.answer();
            assert_eq!((answer.status, answer.header("retry-after")), (status, again));
        }
    }
}

//! Bounded waits on conditions: the only place where a test sleeps.

use std::io::{ErrorKind, Read, Result};
use std::time::{Duration, Instant};

/// Between two looks at a condition.
const STEP: Duration = Duration::from_millis(2);

/// Looks until `look` finds something; panics with `what` when `limit` is over.
pub fn until<T>(limit: Duration, what: &str, look: impl FnMut() -> Option<T>) -> T {
    match try_until(limit, look) {
        Some(found) => found,
        None => panic!("waited {limit:?} in vain for {what}"),
    }
}

/// As [`until`]; `None` when `limit` is over.
pub fn try_until<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        pause(STEP);
    }
}

/// Watches that `look` keeps finding nothing for the whole of `span`; panics with what it found.
/// For promises of the kind "nothing more is sent": such a test can only fail, never prove.
pub fn nothing<T: std::fmt::Debug>(span: Duration, what: &str, mut look: impl FnMut() -> Option<T>) {
    if let Some(found) = try_until(span, &mut look) {
        panic!("{what}: {found:?}");
    }
}

/// One read, begun again after a signal: a socket with a time limit is interrupted even by those that stop and continue
/// the whole process (signal(7)).
pub fn read(from: &mut impl Read, into: &mut [u8]) -> Result<usize> {
    loop {
        match from.read(into) {
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Sleeps, as an idle client does.
pub fn rest(span: Duration) {
    pause(span);
}

#[allow(clippy::disallowed_methods, reason = "fixtures block their own test thread, never a core")]
fn pause(span: Duration) {
    std::thread::sleep(span);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_looked_at_until_it_holds() {
        let mut looks = 0;
        let found = until(Duration::from_secs(5), "the third look", || {
            looks += 1;
            (looks == 3).then_some("there")
        });
        assert_eq!((found, looks), ("there", 3));
    }

    #[test]
    fn a_condition_that_never_holds_ends_the_wait() {
        assert!(try_until(Duration::from_millis(10), || None::<()>).is_none());
    }

    #[test]
    #[should_panic(expected = "a second event: 7")]
    fn what_should_not_have_come_is_named() {
        nothing(Duration::from_millis(10), "a second event", || Some(7));
    }
}

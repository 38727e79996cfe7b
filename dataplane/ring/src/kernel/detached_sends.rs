//! Detached sends: no task waits for them, and the kernel posts no completion when they succeed.
//!
//! A detached send may not wait in the kernel (`MSG_DONTWAIT`), so it is decided when the entry is
//! submitted: all of it was sent, and then there is no completion (`SKIP_SUCCESS`), or a completion says
//! how much was. So once the kernel has consumed all entries and its completions have been read, the sends
//! without one are done. That saves a completion and, more important, a turn of the loop: a wait for
//! arrivals does not end because a send submitted with it has succeeded.

use std::collections::HashMap;

use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use super::SEND_FLAGS;
use crate::op::{Completion, OpKey};

/// A detached send, as submitted to the kernel.
#[derive(Clone, Copy)]
struct DetachedSend {
    key: OpKey,
    fd: i32,
    /// The remaining bytes; the operation in the slab keeps them in place until its last completion.
    start: *const u8,
    bytes: u32,
    /// Total number of bytes.
    whole: u32,
    /// It was not cancelled.
    wanted: bool,
}

#[derive(Default)]
pub(super) struct DetachedSends {
    /// Undecided.
    open: Vec<DetachedSend>,
    /// Were not sent at once, and continue as sends that wait. There are as many as peers that do not read,
    /// so they are found by key: every other completion is looked up here, too.
    slow: HashMap<OpKey, DetachedSend>,
}

impl DetachedSends {
    /// The entry for a new one.
    pub(super) fn start(&mut self, key: OpKey, fd: i32, bytes: &[u8]) -> squeue::Entry {
        let length = super::length(bytes);
        let post = DetachedSend { key, fd, start: bytes.as_ptr(), bytes: length, whole: length, wanted: true };
        self.open.push(post);
        post.entry(SEND_FLAGS | libc::MSG_DONTWAIT).flags(squeue::Flags::SKIP_SUCCESS)
    }

    /// Handles a completion, if it belongs to a detached send: the next entry to submit, or the result.
    pub(super) fn answered(&mut self, key: OpKey, result: i32) -> Option<DetachedOutcome> {
        if let Some(at) = self.open.iter().position(|post| post.key == key) {
            let post = self.open.swap_remove(at);
            let left = match u32::try_from(result) {
                Err(_) if [-libc::EAGAIN, -libc::EINTR].contains(&result) => 0,
                Ok(left) if left < post.bytes => left,
                _ => return Some(DetachedOutcome::Done(result)),
            };
            if !post.wanted {
                return Some(DetachedOutcome::Done(-libc::ECANCELED));
            }
            let rest = DetachedSend { start: post.start.wrapping_add(left as usize), bytes: post.bytes - left, ..post };
            self.slow.insert(key, rest);
            return Some(DetachedOutcome::More(rest.entry(SEND_FLAGS)));
        }
        let post = self.slow.remove(&key)?;
        Some(DetachedOutcome::Done(match result {
            all if all == post.bytes.cast_signed() => post.whole.cast_signed(),
            part if part >= 0 => -libc::EPIPE,
            failure => failure,
        }))
    }

    /// An undecided one may not continue: the kernel's own cancellation would run before its next entry,
    /// and find nothing.
    pub(super) fn cancel(&mut self, key: OpKey) {
        if let Some(post) = self.open.iter_mut().find(|post| post.key == key) {
            post.wanted = false;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.slow.is_empty()
    }

    /// All undecided ones were sent: the kernel has consumed them, and all its completions were read.
    pub(super) fn conclude(&mut self, answers: &mut Vec<Completion>) {
        answers.extend(self.open.drain(..).map(|post| Completion {
            key: post.key,
            result: post.whole.cast_signed(),
            more: false,
            chunk: None,
        }));
    }
}

impl DetachedSend {
    fn entry(&self, flags: i32) -> squeue::Entry {
        opcode::Send::new(Fd(self.fd), self.start, self.bytes).flags(flags).build().user_data(self.key.0)
    }
}

pub(super) enum DetachedOutcome {
    More(squeue::Entry),
    /// The result of the operation: all bytes, or an error.
    Done(i32),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(bytes: &[u8]) -> DetachedSends {
        let mut posts = DetachedSends::default();
        let _ = posts.start(OpKey(7), 3, bytes);
        posts
    }

    fn done(answered: Option<DetachedOutcome>) -> Option<i32> {
        match answered {
            Some(DetachedOutcome::Done(result)) => Some(result),
            Some(DetachedOutcome::More(_)) | None => None,
        }
    }

    #[test]
    fn send_without_completion_has_succeeded() {
        let mut posts = begun(b"hello");
        let mut answers = Vec::new();
        posts.conclude(&mut answers);
        assert_eq!((answers[0].key, answers[0].result, answers[0].more), (OpKey(7), 5, false));
        assert!(posts.is_empty() && posts.answered(OpKey(7), 5).is_none());
    }

    #[test]
    fn partial_send_continues_until_done_or_failed() {
        for (first, last, outcome) in
            [(2, 3, 5), (-libc::EAGAIN, 5, 5), (2, 1, -libc::EPIPE), (2, -libc::ECONNRESET, -libc::ECONNRESET)]
        {
            let mut posts = begun(b"hello");
            assert!(matches!(posts.answered(OpKey(7), first), Some(DetachedOutcome::More(_))));
            let mut answers = Vec::new();
            posts.conclude(&mut answers);
            assert!(answers.is_empty() && !posts.is_empty(), "it is not decided");
            assert_eq!(done(posts.answered(OpKey(7), last)), Some(outcome));
            assert!(posts.is_empty());
        }
    }

    #[test]
    fn cancelled_send_does_not_continue() {
        let mut posts = begun(b"hello");
        posts.cancel(OpKey(8));
        posts.cancel(OpKey(7));
        assert_eq!(done(posts.answered(OpKey(7), 2)), Some(-libc::ECANCELED));
        assert!(posts.is_empty());
    }

    #[test]
    fn failed_send_is_not_retried() {
        let mut posts = begun(b"hello");
        assert!(posts.answered(OpKey(8), 5).is_none());
        assert_eq!(done(posts.answered(OpKey(7), -libc::EPIPE)), Some(-libc::EPIPE));
        assert!(posts.is_empty());
    }
}

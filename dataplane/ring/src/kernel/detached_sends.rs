//! Posts: sends that nobody waits for, and that the kernel does not answer when all went well.
//!
//! A post may not wait in the kernel (`MSG_DONTWAIT`), so it is decided when the entry is taken: all of it left, and then
//! no answer comes (`SKIP_SUCCESS`), or an answer says how much did. So once the kernel has taken all entries and its
//! answers have been read, the posts without one are done. That saves an answer and, which is more, a turn of the loop:
//! a wait for arrivals does not end because what was handed over with it has left.

use std::collections::HashMap;

use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use super::SEND_FLAGS;
use crate::op::{Completion, OpKey};

/// One of them, as the kernel knows it.
#[derive(Clone, Copy)]
struct DetachedSend {
    key: OpKey,
    fd: i32,
    /// What is to be sent yet; the operation in the slab keeps it in place until its last answer.
    start: *const u8,
    bytes: u32,
    /// All of it.
    whole: u32,
    /// Nobody cancelled it.
    wanted: bool,
}

#[derive(Default)]
pub(super) struct DetachedSends {
    /// Not decided.
    open: Vec<DetachedSend>,
    /// Did not leave at once, and are sent on by sends that wait. As many as there are peers that do not read, so they are found
    /// by name: every other answer is looked for here, too.
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

    /// Takes in an answer, if it is one of theirs: what is to be asked next, or the outcome.
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

    /// One that is not decided may not go on: the kernel's own cancellation would come before its next entry, and find nothing.
    pub(super) fn cancel(&mut self, key: OpKey) {
        if let Some(post) = self.open.iter_mut().find(|post| post.key == key) {
            post.wanted = false;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.slow.is_empty()
    }

    /// All that are open have left: the kernel has taken them, and all that it had to say was read.
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
    /// The operation's result: all bytes, or an error.
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
    fn one_without_an_answer_has_left() {
        let mut posts = begun(b"hello");
        let mut answers = Vec::new();
        posts.conclude(&mut answers);
        assert_eq!((answers[0].key, answers[0].result, answers[0].more), (OpKey(7), 5, false));
        assert!(posts.is_empty() && posts.answered(OpKey(7), 5).is_none());
    }

    #[test]
    fn one_that_left_in_part_goes_on_and_is_whole_or_failed_in_the_end() {
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
    fn one_that_was_cancelled_does_not_go_on() {
        let mut posts = begun(b"hello");
        posts.cancel(OpKey(8));
        posts.cancel(OpKey(7));
        assert_eq!(done(posts.answered(OpKey(7), 2)), Some(-libc::ECANCELED));
        assert!(posts.is_empty());
    }

    #[test]
    fn one_that_failed_is_not_tried_again_and_strangers_answers_are_not_theirs() {
        let mut posts = begun(b"hello");
        assert!(posts.answered(OpKey(8), 5).is_none());
        assert_eq!(done(posts.answered(OpKey(7), -libc::EPIPE)), Some(-libc::EPIPE));
        assert!(posts.is_empty());
    }
}

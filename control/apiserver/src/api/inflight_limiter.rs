//! Limits the requests and watches that one client may have at a time, so that no client starves the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::errors::StatusError;

/// Requests of one user that are answered at a time. kubectl has a handful; an informer's start some dozens.
pub(super) const REQUESTS_PER_USER_MAX: usize = 400;
/// Watches of one user. A controller has one for each kind, in some programs for each namespace.
pub(super) const WATCHES_PER_USER_MAX: usize = 2_000;
/// One program of a user may have this part of his places, in percent: over loopback all are one user, and kubectl
/// must get in next to a program that sends requests without end.
const USER_AGENT_PERCENT_MAX: usize = 75;
/// Bytes of a program's name that distinguish it from others.
const USER_AGENT_BYTES_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum RequestClass {
    Request,
    Watch,
}

impl RequestClass {
    fn limit(self) -> usize {
        match self {
            Self::Request => REQUESTS_PER_USER_MAX,
            Self::Watch => WATCHES_PER_USER_MAX,
        }
    }
}

/// The clients with requests in flight, and their counts.
#[derive(Debug, Default)]
pub(super) struct InflightLimiter {
    in_flight: Mutex<HashMap<(String, RequestClass), UserInflight>>,
}

/// One user's places that are taken.
#[derive(Debug, Default)]
struct UserInflight {
    total: usize,
    programs: HashMap<String, usize>,
}

/// A place; given back when dropped.
#[derive(Debug)]
pub(super) struct InflightPermit {
    limiter: Arc<InflightLimiter>,
    key: (String, RequestClass),
    user_agent: String,
}

impl InflightLimiter {
    /// `agent` is what the client calls itself; its first word names the program.
    pub(super) fn acquire(
        self: &Arc<Self>,
        user: &str,
        agent: &str,
        stay: RequestClass,
    ) -> Result<InflightPermit, StatusError> {
        let program = agent.split(['/', ' ']).next().unwrap_or("");
        let program = program[..program.floor_char_boundary(USER_AGENT_BYTES_MAX)].to_owned();
        let user_key = (user.to_owned(), stay);
        let mut here = self.lock();
        let count = here.entry(user_key.clone()).or_default();
        let of_program = count.programs.get(&program).copied().unwrap_or(0);
        let most = stay.limit() * USER_AGENT_PERCENT_MAX / 100;
        if count.total >= stay.limit() || of_program >= most {
            return Err(StatusError::too_many_requests(user, count.total));
        }
        count.total += 1;
        *count.programs.entry(program.clone()).or_default() += 1;
        drop(here);
        Ok(InflightPermit { limiter: Arc::clone(self), key: user_key, user_agent: program })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, RequestClass), UserInflight>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InflightPermit {
    fn drop(&mut self) {
        let mut here = self.limiter.lock();
        let Some(count) = here.get_mut(&self.key) else { return };
        count.total -= 1;
        if let Some(of_program) = count.programs.get_mut(&self.user_agent) {
            *of_program -= 1;
            if *of_program == 0 {
                count.programs.remove(&self.user_agent);
            }
        }
        if count.total == 0 {
            here.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_fills_own_share_and_one_program_only_part_of_it() {
        let inflight = Arc::new(InflightLimiter::default());
        let enter = |user: &str, agent: &str| inflight.acquire(user, agent, RequestClass::Request);
        let part = REQUESTS_PER_USER_MAX * USER_AGENT_PERCENT_MAX / 100;
        let mut places: Vec<InflightPermit> = (0..part).map(|_| enter("a", "storm/1.0 (linux)").unwrap()).collect();
        assert_eq!(enter("a", "storm/2.0").unwrap_err().code, 429);
        places.extend((part..REQUESTS_PER_USER_MAX).map(|_| enter("a", "kubectl/1.34").unwrap()));
        assert_eq!(enter("a", "kubectl/1.34").unwrap_err().code, 429);
        assert!(enter("b", "storm/1.0").is_ok() && inflight.acquire("a", "storm", RequestClass::Watch).is_ok());
        places.pop();
        assert!(enter("a", &"ä".repeat(USER_AGENT_BYTES_MAX)).is_ok());
        places.clear();
        assert!(inflight.lock().is_empty(), "no client is remembered");
    }
}

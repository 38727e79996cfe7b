//! Limits the number of concurrent streaming sessions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use serde_json::Value;

use super::super::errors::StatusError;
use crate::streaming::limits::{SESSIONS_MAX, SESSIONS_PER_INSTANCE_MAX};

#[derive(Debug, Default)]
pub(in crate::api) struct SessionLimiter {
    sessions: Mutex<HashMap<u64, usize>>,
}

/// Released when dropped.
#[derive(Debug)]
pub(super) struct SessionPermit {
    limiter: Arc<SessionLimiter>,
    instance: u64,
}

impl SessionLimiter {
    pub(super) fn acquire(self: &Arc<Self>, instance: u64) -> Result<SessionPermit, StatusError> {
        let mut sessions = self.lock();
        let total: usize = sessions.values().sum();
        let of_instance = sessions.get(&instance).copied().unwrap_or(0);
        if total >= SESSIONS_MAX || of_instance >= SESSIONS_PER_INSTANCE_MAX {
            let message = format!(
                "{of_instance} sessions of this instance and {total} in all are open, the limits are \
                 {SESSIONS_PER_INSTANCE_MAX} and {SESSIONS_MAX}: end one of them first"
            );
            let code = StatusCode::TOO_MANY_REQUESTS;
            return Err(StatusError { code, reason: "TooManyRequests", message, details: Value::Null });
        }
        *sessions.entry(instance).or_default() += 1;
        Ok(SessionPermit { limiter: Arc::clone(self), instance })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        let mut sessions = self.limiter.lock();
        if let Some(count) = sessions.get_mut(&self.instance) {
            *count -= 1;
            if *count == 0 {
                sessions.remove(&self.instance);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_one_instance_and_of_all_are_bounded() {
        let limiter = Arc::new(SessionLimiter::default());
        let mut permits: Vec<_> = (0..SESSIONS_PER_INSTANCE_MAX).map(|_| limiter.acquire(1).unwrap()).collect();
        assert_eq!(limiter.acquire(1).unwrap_err().code, StatusCode::TOO_MANY_REQUESTS);
        permits.extend((permits.len()..SESSIONS_MAX).map(|at| limiter.acquire(2 + at as u64).unwrap()));
        assert_eq!(limiter.acquire(9_999).unwrap_err().code, StatusCode::TOO_MANY_REQUESTS);
        permits.pop();
        assert!(limiter.acquire(9_999).is_ok());
        permits.clear();
        assert!(limiter.lock().is_empty(), "an instance without sessions takes no memory");
    }
}

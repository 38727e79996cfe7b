//! Nobody starves the others: how many requests and watches one client may have at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::errors::Refusal;

/// Requests of one user that are answered at a time. kubectl has a handful; an informer's start some dozens.
pub(super) const REQUESTS_PER_USER_MAX: usize = 400;
/// Watches of one user. A controller has one for each kind, in some programs for each namespace.
pub(super) const WATCHES_PER_USER_MAX: usize = 2_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stay {
    Request,
    Watch,
}

impl Stay {
    fn most(self) -> usize {
        match self {
            Self::Request => REQUESTS_PER_USER_MAX,
            Self::Watch => WATCHES_PER_USER_MAX,
        }
    }
}

/// Who is here, and how often.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    here: Mutex<HashMap<(String, Stay), usize>>,
}

/// A place; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Arc<Crowd>,
    whose: (String, Stay),
}

impl Crowd {
    pub(super) fn enter(self: &Arc<Self>, user: &str, stay: Stay) -> Result<Place, Refusal> {
        let whose = (user.to_owned(), stay);
        let mut here = self.lock();
        let count = here.entry(whose.clone()).or_default();
        if *count >= stay.most() {
            return Err(Refusal::too_many_requests(user, stay.most()));
        }
        *count += 1;
        drop(here);
        Ok(Place { crowd: Arc::clone(self), whose })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, Stay), usize>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut here = self.crowd.lock();
        if let Some(count) = here.get_mut(&self.whose) {
            *count -= 1;
            if *count == 0 {
                here.remove(&self.whose);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_fills_his_own_room_only() {
        let crowd = Arc::new(Crowd::default());
        let mut places: Vec<Place> =
            (0..REQUESTS_PER_USER_MAX).map(|_| crowd.enter("a", Stay::Request).unwrap()).collect();
        assert_eq!(crowd.enter("a", Stay::Request).unwrap_err().code, 429);
        assert!(crowd.enter("b", Stay::Request).is_ok() && crowd.enter("a", Stay::Watch).is_ok());
        places.pop();
        assert!(crowd.enter("a", Stay::Request).is_ok());
        places.clear();
        assert!(crowd.lock().is_empty(), "nobody is remembered");
    }
}

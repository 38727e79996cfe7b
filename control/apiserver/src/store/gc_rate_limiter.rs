//! When terminating namespaces and definitions are checked again: at once when they are empty, otherwise at intervals.
//!
//! Each check reads the whole content of a namespace, or of a kind, and for a namespace writes the remaining count. Ten thousand
//! objects that wait for finalizers and are removed one by one would cause ten thousand checks of thousands of objects each, and
//! as many writes without a reader.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::ObjectKey;

/// Pause between two checks of a terminating namespace that is not empty. Clients that wait for it read its status about as
/// often; an empty one is checked at once.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Recently checked namespaces and definitions.
#[derive(Debug, Default)]
pub(super) struct GcRateLimiter(BTreeMap<ObjectKey, RateLimitEntry>);

#[derive(Debug)]
struct RateLimitEntry {
    next_at: Instant,
    /// Something changed since the last one.
    is_pending: bool,
}

impl GcRateLimiter {
    /// Whether `namespace` may be checked now. If not, [`Looks::take_due`] brings it back.
    pub(super) fn allow(&mut self, namespace: &ObjectKey, is_empty: bool, now: Instant) -> bool {
        if is_empty {
            self.0.remove(namespace);
            return true;
        }
        if let Some(look) = self.0.get_mut(namespace).filter(|look| now < look.next_at) {
            look.is_pending = true;
            return false;
        }
        self.0.insert(namespace.clone(), RateLimitEntry { next_at: now + CHECK_INTERVAL, is_pending: false });
        true
    }

    /// When the first postponed check is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.0.values().filter(|look| look.is_pending).map(|look| look.next_at).min()
    }

    /// The postponed checks that are due.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<ObjectKey> {
        let due = |look: &RateLimitEntry| look.next_at <= now;
        let wanted = self.0.iter().filter(|(_, look)| due(look) && look.is_pending);
        let wanted = wanted.map(|(namespace, _)| namespace.clone()).collect();
        self.0.retain(|_, look| !due(look));
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::super::lifecycle::namespace_key;
    use super::*;

    #[test]
    fn a_namespace_is_looked_at_now_and_then_and_when_it_is_empty_at_once() {
        let (team, start) = (namespace_key("team"), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let mut looks = GcRateLimiter::default();
        assert!(looks.allow(&team, false, at(0)), "the first");
        assert_eq!(looks.next_at(), None, "nothing changed since");
        assert!(!looks.allow(&team, false, at(1)) && !looks.allow(&team, false, at(999)));
        assert!(looks.allow(&namespace_key("other"), false, at(999)), "each has its own");
        assert_eq!(looks.next_at(), Some(at(1000)));
        assert_eq!(looks.take_due(at(999)), []);
        assert_eq!(looks.take_due(at(1000)).len(), 1, "what changed meanwhile is not missed");
        assert_eq!(looks.next_at(), None);

        assert!(looks.allow(&team, false, at(1000)));
        assert_eq!(looks.take_due(at(2000)), [], "nothing changed");
        assert!(looks.0.is_empty(), "and nothing is kept of it");

        assert!(looks.allow(&team, false, at(3000)) && !looks.allow(&team, false, at(3001)));
        assert!(looks.allow(&team, true, at(3002)), "it is empty");
        assert_eq!(looks.take_due(at(9000)), []);
        assert!(looks.allow(&team, false, at(3003)), "another of its name");
    }
}

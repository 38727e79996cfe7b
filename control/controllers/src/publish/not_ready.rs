//! Hosts of objects that cannot be served yet: their clients are told which object it is, and not that nothing has the host.

use super::Publisher;
use super::host_rule::UnservedHosts;

impl Publisher {
    /// Says why the hosts of `owner` are not served. Setting or removing its route takes that back; as long as it has a route,
    /// that is served.
    pub fn set_not_ready(&self, owner: &str, unserved: UnservedHosts) {
        self.update(|model| {
            if model.not_ready.get(owner) == Some(&unserved) {
                return false;
            }
            model.not_ready.insert(owner.to_owned(), unserved);
            model.not_ready_stale = true;
            true
        });
    }
}

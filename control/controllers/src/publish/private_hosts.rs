//! Names of Routes that are served inside only.

use super::Publisher;

impl Publisher {
    /// The name under which the Route `owner` is served while it is private: no client can guess it.
    #[must_use]
    pub fn private_host(&self, owner: &str) -> String {
        format!("{}.{}", self.private_host_key, owner.replace(['/', ' '], ".").to_lowercase())
    }

    /// The secret in requests that this process sends itself.
    #[must_use]
    pub(crate) fn internal_key(&self) -> &str {
        &self.internal_key
    }

    /// Serves the Route `owner` under its [`private_host`](Self::private_host) and no other name, or under all of its own.
    pub fn set_private(&self, owner: &str, is_private: bool) {
        let host = is_private.then(|| self.private_host(owner));
        self.update(|model| model.set_private_host(owner, host));
    }
}

//! Verifies hashes of bcrypt on a thread: one takes milliseconds to a second, which no core can spend.

use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tokio::sync::oneshot;

use super::AuthenticationError;
use crate::limits::PASSWORDS_PENDING_MAX;

/// One for the process. It is started by the first policy with passwords, so not by a core, whose thread is pinned to its CPU.
static VERIFIER: LazyLock<SyncSender<PasswordJob>> = LazyLock::new(|| {
    let (jobs, pending) = sync_channel(PASSWORDS_PENDING_MAX);
    // Without a thread the queue has no receiver, and each request is told that.
    let started = std::thread::Builder::new().name("passwords".to_owned()).spawn(move || verify_all(&pending));
    if let Err(why) = started {
        tracing::error!(%why, "passwords cannot be verified: no thread");
    }
    jobs
});

struct PasswordJob {
    password: Box<[u8]>,
    hash: Box<str>,
    result: oneshot::Sender<bool>,
}

/// A password that is being verified.
#[derive(Debug)]
pub struct PendingPassword {
    result: oneshot::Receiver<bool>,
    /// The user exists. If not, the password is compared with another user's hash: the time does not tell which users exist.
    user_exists: bool,
}

impl PendingPassword {
    /// Starts the thread, unless it runs.
    pub(super) fn prepare() {
        LazyLock::force(&VERIFIER);
    }

    /// # Errors
    ///
    /// Too many passwords wait already.
    pub(super) fn start(password: &[u8], hash: &str, user_exists: bool) -> Result<Self, AuthenticationError> {
        let (result, receiver) = oneshot::channel();
        let job = PasswordJob { password: password.into(), hash: hash.into(), result };
        VERIFIER.try_send(job).map_err(|_| AuthenticationError::Overloaded)?;
        Ok(Self { result: receiver, user_exists })
    }

    /// # Errors
    ///
    /// It is wrong.
    pub async fn verified(self) -> Result<(), AuthenticationError> {
        match self.result.await {
            Ok(true) if self.user_exists => Ok(()),
            Ok(_) => Err(AuthenticationError::Password),
            Err(_) => Err(AuthenticationError::Overloaded),
        }
    }
}

fn verify_all(pending: &Receiver<PasswordJob>) {
    while let Ok(job) = pending.recv() {
        // A client that is gone is not waited for.
        if !job.result.is_closed() {
            let matches = bcrypt::verify(&job.password, &job.hash).unwrap_or(false);
            let _ = job.result.send(matches); // fails only if the client is gone
        }
    }
}

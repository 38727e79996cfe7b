//! Runs blocking work on a short-lived thread of its own.
//!
//! Not on the runtime's pool, which panics if the host has no more threads: here the caller gets an error.

use std::io;

use tokio::sync::oneshot;

/// Returns the result of `work`. `name` is the thread's.
///
/// # Errors
/// No thread could be started, or `work` panicked.
pub async fn run<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, wait) = oneshot::channel();
    let work = move || drop(done.send(work())); // the caller may have gone
    std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
    wait.await.map_err(|_| io::Error::other("its thread panicked"))
}

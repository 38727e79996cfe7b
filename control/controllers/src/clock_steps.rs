//! After a step of the wall clock, reconciles everything with an expiry time again, because timers use the monotonic clock.

use tokio::time::sleep;

use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use support::clock::{STEP_LOOK_EVERY, StepWatch};

/// Compares the two clocks, forever.
pub(crate) async fn watch_clock(context: &ControllerContext) {
    let mut watch = StepWatch::new(context.config.clock.both());
    loop {
        sleep(STEP_LOOK_EVERY).await;
        let Some(step) = watch.look(context.config.clock.both()) else { continue };
        tracing::warn!(
            seconds = step.as_secs(),
            "the wall clock was set, or this host was suspended; tokens that have ended are renewed"
        );
        context.access_tokens.clock_stepped();
        context.jwks.settings_changed();
        context.notify(ContextChange::ClockStepped);
    }
}

//! What instances print, and the message that they leave.

pub(crate) mod instance_log;
pub(crate) mod output_capture;
mod output_limiter;
pub(crate) mod pace;
pub(crate) mod termination_message;

pub use pace::OutputTally;

//! The output of instances, and their termination messages.

pub(crate) mod instance_log;
pub(crate) mod output_capture;
mod output_limiter;
pub(crate) mod pace;
pub(crate) mod termination_message;

pub use pace::OutputTally;

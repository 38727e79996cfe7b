//! Start, stop, hot restart and metrics of the built binary.

mod command_line_tools;
mod demo;
mod io_driver;
mod metrics;
mod reload;
mod start_stop;
mod takeover;
mod validate;

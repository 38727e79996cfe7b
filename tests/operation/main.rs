//! Start, stop, hot restart and metrics of the built binary.

mod banner;
mod command_line_tools;
mod demo;
mod io_driver;
mod load;
mod metrics;
mod reload;
mod service_manager;
mod start_stop;
mod takeover;
mod top;
mod validate;

//! Kills, full disks and power cuts: acknowledged events survive.

mod chaos;
mod full_disk;
mod kill_with_backlog;
mod kills;
mod lost_segment;
mod real_power_cut;
mod selftest;
mod small_disk;
mod soak;
mod unwritable_log;
mod wal_tools;

//! Packages, tarball, image and bill of materials, made of the built programs by the scripts of `deploy/packaging`.
//!
//! Each test says which tool it lacks and is skipped then. The programs are those of the test run, stripped.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod deb;
mod documents;
mod image;
mod rpm;
mod staged;
mod tarball;

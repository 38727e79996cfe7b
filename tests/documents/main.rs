//! The documents agree with the code and the tests.

mod conformance;
mod contributing;
mod documented;
mod helm;
mod limits;
mod monitoring;
mod reference;
mod seccomp;

//! The documents say what the code and the tests say.

mod conformance;
mod documented;
mod limits;
mod reference;

//! A door that asks for a token and believes it.

use std::sync::Arc;

use sluicegate_dataplane::events::admission::{Admission, BadToken, Bearer, Grant, Papers, Subjects};
use sluicegate_dataplane::table::Filter;

/// As long as a service account's with its claims.
pub(crate) fn token() -> String {
    "t".repeat(700)
}

/// Believes everybody.
#[derive(Debug)]
struct Credulous;

impl Papers for Credulous {
    fn read(&self, _: &str, _: u64) -> Result<Bearer, BadToken> {
        Ok(Bearer { subject: "s".into(), audiences: vec!["b".into()], until_s: u64::MAX })
    }
}

pub(crate) fn admission() -> Admission {
    let grant = Grant { subjects: Subjects::everybody(), filter: Filter::Everything };
    Admission { papers: Arc::new(Credulous), audiences: vec!["b".into()], grants: vec![grant] }
}

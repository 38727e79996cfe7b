//! A door that asks for a token and believes it.

use std::sync::Arc;

use sluicegate_dataplane::events::auth::{
    AdmissionRule, StreamAdmission, SubjectMatcher, TokenError, TokenVerifier, VerifiedToken,
};
use sluicegate_dataplane::table::EventFilter;

/// As long as a service account's with its claims.
pub(crate) fn token() -> String {
    "t".repeat(700)
}

/// Believes everybody.
#[derive(Debug)]
struct Credulous;

impl TokenVerifier for Credulous {
    fn read(&self, _: &str, _: u64) -> Result<VerifiedToken, TokenError> {
        Ok(VerifiedToken { subject: "s".into(), audiences: vec!["b".into()], until_s: u64::MAX })
    }
}

pub(crate) fn admission() -> StreamAdmission {
    let grant = AdmissionRule { subjects: SubjectMatcher::any(), filter: EventFilter::Everything };
    StreamAdmission { verifier: Arc::new(Credulous), audiences: vec!["b".into()], grants: vec![grant] }
}

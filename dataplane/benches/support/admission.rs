//! An admission check that requires a token and accepts every token.

use std::sync::Arc;

use sluicegate_dataplane::stream_admission::{
    AdmissionRule, StreamAdmission, SubjectMatcher, TokenError, TokenVerifier, VerifiedToken,
};
use sluicegate_dataplane::table::EventFilter;

/// As long as a service account's token with its claims.
pub(crate) fn token() -> String {
    "t".repeat(700)
}

/// Accepts every token.
#[derive(Debug)]
struct AcceptAllVerifier;

impl TokenVerifier for AcceptAllVerifier {
    fn read(&self, _: &str, _: u64) -> Result<VerifiedToken, TokenError> {
        Ok(VerifiedToken { subject: "s".into(), audiences: vec!["b".into()], until_s: u64::MAX })
    }
}

pub(crate) fn admission() -> StreamAdmission {
    let rule = AdmissionRule { subjects: SubjectMatcher::any(), filter: EventFilter::Everything };
    StreamAdmission { verifier: Arc::new(AcceptAllVerifier), audiences: vec!["b".into()], grants: vec![rule] }
}

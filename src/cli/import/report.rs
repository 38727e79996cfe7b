//! What an import did, and what is different in the appliance.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// What became of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ImportOutcome {
    Created,
    /// It was there, and is as in the cluster now.
    Updated,
    Refused(String),
}

#[derive(Debug, Default)]
pub(super) struct ImportReport {
    is_dry_run: bool,
    lines: String,
    copied: usize,
    refused: usize,
    /// `NAMESPACE/NAME`.
    secrets_left: BTreeSet<String>,
}

impl ImportReport {
    pub(super) fn new(is_dry_run: bool) -> Self {
        Self { is_dry_run, ..Self::default() }
    }

    /// One object with what is different about it.
    pub(super) fn add(&mut self, object: &str, outcome: &ImportOutcome, notes: &[String]) {
        let (verb, why) = match outcome {
            ImportOutcome::Created if self.is_dry_run => ("would create", None),
            ImportOutcome::Created => ("created", None),
            ImportOutcome::Updated if self.is_dry_run => ("would update", None),
            ImportOutcome::Updated => ("updated", None),
            ImportOutcome::Refused(why) => ("refused", Some(why)),
        };
        if why.is_some() {
            self.refused += 1
        } else {
            self.copied += 1
        }
        // A string takes everything.
        let _ = writeln!(self.lines, "{verb:<12} {object}");
        for note in notes.iter().chain(why) {
            let _ = writeln!(self.lines, "{:<12}   {note}", "");
        }
    }

    /// A kind that could not be read.
    pub(super) fn add_unread(&mut self, kind: &str, why: &str) {
        self.refused += 1;
        let _ = writeln!(self.lines, "{:<12} {kind}\n{:<12}   {why}", "not read", "");
    }

    pub(super) fn leave_secret(&mut self, secret: String) {
        self.secrets_left.insert(secret);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.refused == 0
    }

    pub(super) fn text(&self) -> String {
        let mut text = self.lines.clone();
        let verb = if self.is_dry_run { "would be copied" } else { "copied" };
        let _ = writeln!(text, "\n{} objects {verb}, {} refused", self.copied, self.refused);
        for secret in &self.secrets_left {
            let _ =
                writeln!(text, "not copied: Secret {secret}, which an object refers to; --secret {secret} copies it");
        }
        text.push_str(
            "not copied: settings of the cluster (ConfigMaps config-* of knative-serving and knative-eventing), events, and images \
             that only the cluster can pull\n",
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_outcomes_notes_and_what_is_missing() {
        let mut report = ImportReport::new(false);
        report.add("Service shop/web", &ImportOutcome::Created, &["a note".to_owned()]);
        assert!(report.is_complete());
        report.add("Broker shop/b", &ImportOutcome::Refused("no right".to_owned()), &[]);
        report.leave_secret("shop/db".to_owned());
        let text = report.text();
        for part in [
            "created      Service shop/web\n",
            "a note",
            "refused      Broker shop/b\n",
            "no right",
            "1 objects copied, 1 refused",
            "--secret shop/db",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(!report.is_complete());
        let mut dry = ImportReport::new(true);
        dry.add("x", &ImportOutcome::Updated, &[]);
        assert!(dry.text().contains("would update") && dry.text().contains("would be copied"));
    }
}

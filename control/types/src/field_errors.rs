//! The validation errors of an object, in bounded memory.
//!
//! A body of some kilobytes can break a rule a hundred thousand times, and a path or a value in a message can be as long
//! as the body. The first problems are reported; the others are counted.

/// Problems that are reported one by one. A client that has more has the wrong kind.
pub const PROBLEMS_MAX: usize = 64;
/// Bytes of all reported problems. Beyond it the next ones are only counted, so that a long path or value
/// is not repeated 64 times in the answer.
const PROBLEM_BYTES_MAX: usize = 64 * 1024;

/// Upstream's words for a field that is needed, and for one that is not to be set.
pub(crate) const MISSING: &str = "missing field(s)";
pub(crate) const MUST_NOT_SET: &str = "must not set the field(s)";

/// One thing wrong with an object, as it is in `Status.details.causes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `spec.traffic[0].percent`
    pub field: String,
    pub message: String,
}

/// Collects problems with the path they are at.
#[derive(Debug, Default)]
pub struct FieldErrors {
    pub list: Vec<Problem>,
    /// Bytes of those in the list.
    bytes: usize,
    /// The number of those that are not in the list.
    omitted: usize,
}

impl FieldErrors {
    pub fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        if self.is_full() {
            self.omitted += 1;
            return;
        }
        let problem = Problem { field: field.into(), message: message.into() };
        self.bytes += problem.field.len() + problem.message.len();
        self.list.push(problem);
    }

    /// Whether further problems are only counted. A walk over a large object may stop then.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.list.len() >= PROBLEMS_MAX || self.bytes >= PROBLEM_BYTES_MAX
    }

    /// The reported problems, and the number of the others.
    #[must_use]
    pub fn into_list(mut self) -> Vec<Problem> {
        if self.omitted > 0 {
            let count = self.list.len() + self.omitted;
            let message = format!("Too many: {count} problems were found; the first {} are reported", self.list.len());
            self.list.push(Problem { field: String::new(), message });
        }
        self.list
    }
}

/// Why an object was not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdmissionError {
    /// It does not have the kind's shape: 400.
    Malformed(String),
    /// The same, of a kind whose schema Kubernetes itself holds objects against: 422 with causes.
    WrongTypes(Vec<Problem>),
    /// It has it, and breaks the kind's rules: 422 with causes.
    Invalid(Vec<Problem>),
}

/// Adds a problem unless just one of the `fields` is set.
pub(crate) fn exactly_one(set: usize, at: &str, fields: &str, problems: &mut FieldErrors) {
    match set {
        1 => {}
        0 => problems.add(at, format!("expected exactly one, got neither: {fields}")),
        _ => problems.add(at, format!("expected exactly one, got both: {fields}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_beyond_the_limit_are_counted() {
        let mut problems = FieldErrors::default();
        for index in 0..100_000 {
            problems.add(format!("spec.ports[{index}]"), "Required value");
        }
        let into_list = problems.into_list();
        assert_eq!(into_list.len(), PROBLEMS_MAX + 1);
        assert_eq!(into_list[PROBLEMS_MAX].message, "Too many: 100000 problems were found; the first 64 are reported");
    }

    #[test]
    fn long_problem_is_reported_once() {
        let mut problems = FieldErrors::default();
        for _ in 0..3 {
            problems.add("a".repeat(PROBLEM_BYTES_MAX), "Required value");
        }
        assert_eq!(problems.into_list().len(), 2);
    }
}

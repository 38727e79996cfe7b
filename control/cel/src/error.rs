//! Errors of compiling a rule and of evaluating it.

/// A compile error of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileError {
    /// The byte it is about.
    at: usize,
    pub(crate) why: String,
}

impl CompileError {
    pub(crate) fn new(at: usize, why: impl Into<String>) -> Self {
        Self { at, why: why.into() }
    }

    /// As Kubernetes shows it: line and column, the line, and a caret below the place.
    pub fn render(&self, rule: &str) -> String {
        let at = (0..=self.at.min(rule.len())).rev().find(|at| rule.is_char_boundary(*at)).unwrap_or(0);
        let (before, rest) = rule.split_at(at);
        let line = before.matches('\n').count() + 1;
        let begun = before.rsplit('\n').next().unwrap_or("");
        let shown = format!("{begun}{}", rest.split('\n').next().unwrap_or("")).replace('\t', " ");
        let column = begun.chars().count();
        format!("<input>:{line}:{}: {}\n | {shown}\n | {}^", column + 1, self.why, ".".repeat(column))
    }
}

/// Why a rule has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvalError {
    /// There are no steps left.
    BudgetExceeded,
    /// The rule does not fit the value.
    Mismatch(String),
}

pub fn mismatch<T>(why: impl Into<String>) -> Result<T, EvalError> {
    Err(EvalError::Mismatch(why.into()))
}

pub(crate) fn overflow() -> EvalError {
    EvalError::Mismatch("integer overflow".into())
}

//! The remaining evaluation budget of the rules of one write.

use crate::EvalError;
use crate::bounded_regex::{PatternSet, RegexCaches};
use crate::limits::STEPS_MAX;

/// Steps that are left, and the patterns that are read already.
#[derive(Debug)]
pub struct EvalBudget {
    pub(crate) remaining: u64,
    pub(crate) patterns: PatternSet,
    pub(crate) regex_caches: RegexCaches,
}

impl Default for EvalBudget {
    fn default() -> Self {
        Self { remaining: STEPS_MAX, patterns: PatternSet::default(), regex_caches: RegexCaches::default() }
    }
}

impl EvalBudget {
    pub fn spend(&mut self, steps: usize) -> Result<(), EvalError> {
        self.remaining = self.remaining.checked_sub(steps as u64).ok_or(EvalError::BudgetExceeded)?;
        Ok(())
    }

    /// For going through, or making, that much text.
    pub(crate) fn spend_text(&mut self, bytes: usize) -> Result<(), EvalError> {
        self.spend(bytes / 10 + 1)
    }
}

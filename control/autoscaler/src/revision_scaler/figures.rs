//! The inputs and decisions of a revision scaler, for metrics.

use std::sync::Arc;

use super::RevisionScaler;
use crate::{ScalingFigures, ScalingSignals};

impl RevisionScaler {
    pub(crate) fn figures(&self) -> ScalingFigures {
        let awake = self.desired > 0 || self.running() > 0;
        ScalingFigures {
            load: Arc::clone(&self.load),
            is_limited: self.plan.concurrency_max > 0,
            // The windows of a revision without instances are not shown, and it has no demand.
            signals: if awake { self.signals } else { ScalingSignals { stable: 0.0, panic: 0.0, ..self.signals } },
        }
    }
}

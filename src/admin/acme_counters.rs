//! Counters of certificates by ACME.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

/// Written by the thread of ACME. Without `--acme-email` all are zero.
#[derive(Debug, Default)]
pub(crate) struct AcmeCounters {
    orders: AtomicU64,
    failures: AtomicU64,
    certificates: Mutex<CertificateFigures>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CertificateFigures {
    /// Hosts that are to have certificates.
    pub(crate) hosts: usize,
    /// Those that have one.
    pub(crate) certificates: usize,
    /// When the first of them expires.
    pub(crate) earliest_expiry: Option<Timestamp>,
}

impl AcmeCounters {
    pub(crate) fn order_began(&self) {
        self.orders.fetch_add(1, Relaxed);
    }

    pub(crate) fn order_failed(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    pub(crate) fn set_certificates(&self, hosts: usize, certificates: usize, earliest_expiry: Option<Timestamp>) {
        let figures = CertificateFigures { hosts, certificates, earliest_expiry };
        *self.certificates.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }

    /// Orders and failures.
    pub(crate) fn orders(&self) -> (u64, u64) {
        (self.orders.load(Relaxed), self.failures.load(Relaxed))
    }

    pub(crate) fn certificates(&self) -> CertificateFigures {
        *self.certificates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

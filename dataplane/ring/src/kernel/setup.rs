//! Opens the ring, and reports clearly why it cannot be opened.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use io_uring::types::Fd;
use io_uring::{IoUring, Probe, cqueue, opcode};

use super::buffers::{GROUP, ProvidedBuffers};
use crate::limits::RingOptions;
use crate::pool::BufferPool;

/// This machine cannot run the ring.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "io_uring on Linux {kernel} cannot be used: {missing}; Linux 6.1 or newer is needed, with io_uring allowed (see kernel.io_uring_disabled and the container's seccomp profile)"
)]
pub struct Unsupported {
    /// As reported by `uname -r`.
    pub kernel: String,
    /// What is missing or failed.
    pub missing: String,
}

impl Unsupported {
    pub(crate) fn failed(what: &str, why: &io::Error) -> Self {
        // Users other than root have a limit for locked memory, which rings are.
        let hint = match why.kind() {
            io::ErrorKind::OutOfMemory => " (is the limit of locked memory too low? `ulimit -l`, LimitMEMLOCK)",
            _ => "",
        };
        Self { kernel: kernel_release(), missing: format!("{what}: {why}{hint}") }
    }
}

/// The operations used, by their name in the kernel.
const OPERATIONS: [(u8, &str); 11] = [
    (opcode::AcceptMulti::CODE, "IORING_OP_ACCEPT"),
    (opcode::AsyncCancel2::CODE, "IORING_OP_ASYNC_CANCEL"),
    (opcode::Close::CODE, "IORING_OP_CLOSE"),
    (opcode::Connect::CODE, "IORING_OP_CONNECT"),
    (opcode::Fsync::CODE, "IORING_OP_FSYNC"),
    (opcode::PollAdd::CODE, "IORING_OP_POLL_ADD"),
    (opcode::Read::CODE, "IORING_OP_READ"),
    (opcode::RecvMulti::CODE, "IORING_OP_RECV"),
    (opcode::Send::CODE, "IORING_OP_SEND"),
    (opcode::Shutdown::CODE, "IORING_OP_SHUTDOWN"),
    (opcode::Write::CODE, "IORING_OP_WRITE"),
];

/// What the kernel reports about itself.
struct KernelProbe {
    kernel: String,
    operations: [bool; OPERATIONS.len()],
    /// Completions are kept when their queue is full.
    no_drop: bool,
    /// A wait can carry its own timeout.
    ext_arg: bool,
    /// A cancellation that succeeded need not complete.
    skip_success: bool,
}

pub(super) fn open(options: &RingOptions) -> Result<(IoUring, ProvidedBuffers, Rc<BufferPool>), Unsupported> {
    let flags = "the setup flags SINGLE_ISSUER, COOP_TASKRUN and DEFER_TASKRUN";
    let mut uring = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_clamp()
        .setup_cqsize(options.completions_max)
        .build(options.submissions_max)
        .map_err(|why| Unsupported::failed(flags, &why))?;
    judge(&probe(&uring).map_err(|why| Unsupported::failed("IORING_REGISTER_PROBE", &why))?)?;

    let pool = BufferPool::new(options.chunk_bytes, options.chunks)
        .map_err(|why| Unsupported::failed("memory for receive buffers", &why))?;
    let mut buffers = ProvidedBuffers::register(&uring, Rc::clone(&pool))
        .map_err(|why| Unsupported::failed("a provided-buffer ring (IORING_REGISTER_PBUF_RING)", &why))?;
    match try_multishot(&mut uring, &mut buffers) {
        Ok(true) => Ok((uring, buffers, pool)),
        refused => {
            // A receive may still be in flight, and closing the ring does not wait for it: its buffers must
            // stay mapped.
            std::mem::forget(buffers);
            let why = refused.err().unwrap_or_else(|| io::Error::other("it ends after one answer"));
            Err(Unsupported::failed("multishot receive (IORING_RECV_MULTISHOT)", &why))
        }
    }
}

fn probe(uring: &IoUring) -> io::Result<KernelProbe> {
    let mut probe = Probe::new();
    uring.submitter().register_probe(&mut probe)?;
    Ok(KernelProbe {
        kernel: kernel_release(),
        operations: OPERATIONS.map(|(code, _)| probe.is_supported(code)),
        no_drop: uring.params().is_feature_nodrop(),
        ext_arg: uring.params().is_feature_ext_arg(),
        skip_success: uring.params().is_feature_skip_cqe_on_success(),
    })
}

/// Names everything that is missing.
fn judge(probed: &KernelProbe) -> Result<(), Unsupported> {
    let features = [
        (probed.no_drop, "IORING_FEAT_NODROP"),
        (probed.ext_arg, "IORING_FEAT_EXT_ARG"),
        (probed.skip_success, "IORING_FEAT_CQE_SKIP"),
    ];
    let operations = probed.operations.iter().copied().zip(OPERATIONS.map(|(_, name)| name));
    let missing: Vec<&str> = operations.chain(features).filter(|(there, _)| !there).map(|(_, name)| name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Unsupported { kernel: probed.kernel.clone(), missing: format!("no {}", missing.join(", ")) })
}

/// No probe reports multishot receive, so one byte is received that way: the completion must promise
/// another. The end of the stream then ends the operation, so nothing is left behind.
fn try_multishot(uring: &mut IoUring, buffers: &mut ProvidedBuffers) -> io::Result<bool> {
    let (mut here, there) = UnixStream::pair()?;
    here.write_all(&[1])?;
    let receive = opcode::RecvMulti::new(Fd(there.as_raw_fd()), GROUP).build();
    // SAFETY: the entry points to no memory of ours; the receive has ended when this returns successfully,
    // and otherwise the caller never frees the buffers that it may name.
    let pushed = unsafe { uring.submission().push(&receive) };
    pushed.map_err(io::Error::other)?;

    let mut here = Some(here);
    let mut promised = false;
    loop {
        match uring.submit_and_wait(1) {
            Err(why) if why.kind() == io::ErrorKind::Interrupted => continue, // a signal, or the process was stopped
            waited => waited?,
        };
        for entry in uring.completion() {
            if let Some(id) = cqueue::buffer_select(entry.flags()) {
                // SAFETY: the kernel has just named the buffer; the chunk is returned at once.
                drop(unsafe { buffers.filled(id, entry.result().max(0) as u32) });
            }
            if entry.result() < 0 {
                return Err(io::Error::from_raw_os_error(-entry.result()));
            }
            if !cqueue::more(entry.flags()) {
                return Ok(promised);
            }
            promised = true;
            drop(here.take());
        }
    }
}

fn kernel_release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "of unknown version".to_owned(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> KernelProbe {
        KernelProbe {
            kernel: "6.18.1".to_owned(),
            operations: [true; OPERATIONS.len()],
            no_drop: true,
            ext_arg: true,
            skip_success: true,
        }
    }

    #[test]
    fn kernel_with_all_features_is_accepted() {
        assert_eq!(judge(&complete()), Ok(()));
    }

    #[test]
    fn unsupported_error_names_kernel_and_missing_features() {
        let mut old = KernelProbe { kernel: "5.4.0-42-generic".to_owned(), ext_arg: false, ..complete() };
        old.operations[9] = false;
        let text = judge(&old).unwrap_err().to_string();
        for part in ["Linux 5.4.0-42-generic", "IORING_OP_SHUTDOWN, IORING_FEAT_EXT_ARG", "6.1"] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        assert!(!text.contains("IORING_OP_SEND"), "{text:?}");
    }
}
